"""Epochs: where two logs are equal, and the file in Apache's format."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.broker.replication.epoch_file import BrokerIdentity, EpochFile, IdentityFiles
from skyroute.broker.replication.epochs import Epochs, common_end, parse_epochs, render_epochs
from skyroute.broker.store.errors import StoreDamagedError
from skyroute.wire.auto_switch import EPOCHS_MAX, Epoch

BY_APACHE = b"2\n2063839132\n1-0\n2-219145\n"
"""Written by Apache's broker 5.5.0 after one fail-over."""


def epochs(*pairs: tuple[int, int]) -> Epochs:
    return Epochs(tuple(Epoch(*pair) for pair in pairs))


def test_the_file_is_as_apaches_broker_writes_it() -> None:
    assert parse_epochs(BY_APACHE) == epochs((1, 0), (2, 219145))
    assert render_epochs(epochs((1, 0), (2, 219145))) == BY_APACHE


def test_a_checksum_of_zero_is_not_checked() -> None:
    assert parse_epochs(b"1\n0\n7-7000\n") == epochs((7, 7000))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an epoch file"),
        (b"1\n", "not an epoch file"),
        (b"1\n0\n7\n", "not an epoch file"),
        (b"2\n0\n7-7000\n", "1 epochs (expected 2)"),
        (b"1\n12\n7-7000\n", "checksum"),
        (b"2\n0\n7-7000\n7-8000\n", "not in order"),
        (b"2\n0\n7-7000\n8-6000\n", "not in order"),
    ],
)
def test_a_damaged_file_is_refused(content: bytes, reason: str) -> None:
    with pytest.raises(StoreDamagedError, match=reason.replace("(", r"\(").replace(")", r"\)")):
        parse_epochs(content)


@pytest.mark.parametrize(
    ("own", "own_end", "master", "master_end", "expected"),
    [
        (epochs((1, 0)), 500, epochs((1, 0)), 900, 500),
        (epochs((1, 0)), 900, epochs((1, 0), (2, 500)), 700, 500),
        (epochs((1, 0), (2, 500)), 700, epochs((1, 0), (3, 600)), 800, 500),
        (epochs((1, 0), (2, 500)), 700, epochs((1, 0), (2, 500), (3, 600)), 800, 600),
        # The master was elected without a record of epoch 1, in which this broker has some.
        (epochs((1, 0)), 500, epochs((1, 0), (2, 0)), 800, 0),
        (epochs((1, 0), (4, 800)), 900, epochs((2, 10), (3, 20)), 900, None),
        (epochs((1, 0)), 500, epochs((1, 100)), 500, None),
    ],
)
def test_logs_are_equal_up_to_the_end_of_the_last_common_epoch(
    own: Epochs, own_end: int, master: Epochs, master_end: int, expected: int | None
) -> None:
    assert common_end(own, own_end, master, master_end) == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), min_size=1, max_size=12))
def test_a_replica_that_follows_is_equal_up_to_the_common_end(steps: list[tuple[int, int]]) -> None:
    """Three logs of bytes that say who wrote them: after each election the others cut and copy."""
    logs: list[list[tuple[int, int]]] = [[], [], []]
    known = [Epochs(), Epochs(), Epochs()]
    for number, (master, written) in enumerate(steps, 1):
        known[master] = known[master].begin(Epoch(number, len(logs[master])))
        logs[master] += [(number, at) for at in range(written)]
        follower = (master + number) % 3
        if follower == master:
            continue
        if known[follower]:
            end = common_end(known[follower], len(logs[follower]), known[master], len(logs[master]))
            if end is None:
                continue
            assert logs[follower][:end] == logs[master][:end]
            del logs[follower][end:]
            known[follower] = known[follower].cut(end)
        elif logs[follower]:
            continue
        while len(logs[follower]) < len(logs[master]) - written // 2:
            at = len(logs[follower])
            found = known[master].at(at)
            assert found is not None
            epoch, stop = found
            known[follower] = known[follower].follow(epoch)
            logs[follower] += logs[master][at : min(stop or len(logs[master]), at + 7)]


def test_a_master_drops_epochs_that_the_controller_did_not_give() -> None:
    assert epochs((1, 0), (9, 100)).begin(Epoch(3, 200)) == epochs((1, 0), (3, 200))
    assert epochs((1, 0), (2, 100)).begin(Epoch(3, 50)) == epochs((1, 0), (3, 50))


def test_a_restarted_master_goes_on_with_its_epoch() -> None:
    assert epochs((1, 0), (2, 100)).begin(Epoch(2, 700)) == epochs((1, 0), (2, 100))


def test_a_slave_ignores_an_epoch_that_is_not_new() -> None:
    known = epochs((1, 0), (3, 100))
    assert known.follow(Epoch(2, 200)) is known
    assert known.follow(Epoch(4, 50)) is known
    assert known.follow(Epoch(4, 200)) == epochs((1, 0), (3, 100), (4, 200))


def test_the_number_of_epochs_is_bounded() -> None:
    known = Epochs()
    for number in range(EPOCHS_MAX + 5):
        known = known.begin(Epoch(number, number * 10))
    assert len(known) == EPOCHS_MAX
    assert known.entries[0] == Epoch(5, 50)


def test_epochs_of_removed_files_are_dropped() -> None:
    known = epochs((1, 0), (2, 100), (3, 200))
    assert known.expire(99) == known
    assert known.expire(100) == epochs((2, 100), (3, 200))
    assert known.expire(5_000) == epochs((3, 200))


def test_an_epoch_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    EpochFile(path).replace(epochs((1, 0)))
    EpochFile(path).replace(epochs((1, 0), (2, 219145)))
    assert path.read_bytes() == BY_APACHE
    assert EpochFile(path).epochs == epochs((1, 0), (2, 219145))


def test_the_backup_replaces_a_damaged_epoch_file(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    file = EpochFile(path)
    file.replace(epochs((1, 0)))
    file.replace(epochs((1, 0), (2, 219145)))
    path.write_bytes(b"2\n1\n1-0\n")
    assert EpochFile(path).epochs == epochs((1, 0))
    assert list(tmp_path.glob("epochFileCheckpoint.damaged-*"))


def test_a_damaged_epoch_file_without_backup_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    path.write_bytes(b"2\n1\n1-0\n")
    with pytest.raises(StoreDamagedError, match="empty the store folder"):
        EpochFile(path)


def test_an_epoch_file_without_epochs_does_not_bring_back_its_backup(tmp_path: Path) -> None:
    path = tmp_path / "epochFileCheckpoint"
    file = EpochFile(path)
    file.replace(epochs((1, 0)))
    file.replace(epochs((1, 0), (2, 100)))
    file.replace(Epochs())
    assert EpochFile(path).epochs == Epochs()


def test_identity_files_are_as_apaches_broker_writes_them(tmp_path: Path) -> None:
    files = IdentityFiles(tmp_path / "brokerIdentity")
    assert files.granted() is None
    assert files.applied() is None
    applied = BrokerIdentity("DefaultCluster", "broker-a", 2, "127.0.0.1:10911;1758275140000")
    files.apply(applied)
    expected = "DefaultCluster#broker-a#2#127.0.0.1:10911;1758275140000"
    assert (tmp_path / "brokerIdentity-temp").read_text() == expected
    assert files.applied() == applied
    files.grant(applied)
    assert (tmp_path / "brokerIdentity").read_text() == "DefaultCluster#broker-a#2"
    assert files.applied() is None
    assert files.granted() == BrokerIdentity("DefaultCluster", "broker-a", 2)


def test_a_damaged_identity_is_refused_and_a_damaged_application_is_repeated(tmp_path: Path) -> None:
    files = IdentityFiles(tmp_path / "brokerIdentity")
    (tmp_path / "brokerIdentity-temp").write_bytes(b"C#a#\xff")
    assert files.applied() is None
    for damaged in ("C#a#x", "", "C#a", "C#a#1#2", f"C#a#{'9' * 5000}"):
        (tmp_path / "brokerIdentity").write_text(damaged)
        with pytest.raises(StoreDamagedError, match="expected cluster#brokerName#id"):
            files.granted()
