"""The route table as a file."""

import msgspec
import pytest

from skyroute.nameserver.errors import SnapshotError
from skyroute.nameserver.snapshot_file import decode_snapshot, encode_snapshot
from skyroute.routing.registration import DataVersion
from skyroute.routing.snapshot import GroupSnapshot, MemberSnapshot, TableSnapshot
from skyroute.routing.table import RouteTable
from tests.unit.routing.brokers import OTHER, SLAVE, mapping, registration, tell


def full_table() -> RouteTable:
    table = RouteTable()
    tell(table, registration(acting_master=True, zone="z1", mappings={"T1": mapping("T1")}, filter_servers=("f:1",)))
    tell(table, registration(1, SLAVE, acting_master=True, lease_s=10.0, zone="z1"))
    tell(table, registration(name="broker-b", cluster="c2", address=OTHER, topics={}))
    table.forbid_writes("broker-a")
    return table


def content(image: TableSnapshot) -> bytes:
    return b"".join(encode_snapshot(image, server_id="ns-1", sequence=42, wall_ms=7))


def test_a_snapshot_is_decoded_as_encoded() -> None:
    image = full_table().snapshot(0.0)
    header, read = decode_snapshot(content(image))
    assert read == image
    assert (header.server_id, header.sequence, header.wall_ms) == ("ns-1", 42, 7)


def test_an_empty_table_is_a_table() -> None:
    assert decode_snapshot(content(TableSnapshot()))[1] == TableSnapshot()


def test_a_file_cut_anywhere_is_refused() -> None:
    whole = content(full_table().snapshot(0.0))
    for length in range(len(whole)):
        with pytest.raises(SnapshotError):
            decode_snapshot(whole[:length])


def test_a_file_with_one_changed_byte_is_refused_or_equal() -> None:
    image = full_table().snapshot(0.0)
    whole = content(image)
    for at in range(len(whole)):
        damaged = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        try:
            _, read = decode_snapshot(damaged)
        except SnapshotError:
            continue
        assert read == image, at


@pytest.mark.parametrize("change", [{"form": "other"}, {"version": 2}])
def test_another_format_is_refused_by_name(change: dict[str, object]) -> None:
    first, _, body = content(TableSnapshot()).partition(b"\n")
    header = msgspec.json.decode(first) | change
    with pytest.raises(SnapshotError, match="its format is"):
        decode_snapshot(msgspec.json.encode(header) + b"\n" + body)


def member(broker_id: int = 0, address: str = "a:1") -> MemberSnapshot:
    return MemberSnapshot(broker_id, address, None, DataVersion(), 120.0, False)


def group(
    name: str, *members: MemberSnapshot, cluster: str = "c", forbidden: frozenset[str] = frozenset()
) -> GroupSnapshot:
    return GroupSnapshot(name, cluster, False, None, members, {}, forbidden, {})


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        ((group("a", member()), group("a", member(0, "b:1"))), "the same name"),
        ((group("a", member(), member()),), "the same id or address"),
        ((group("a", member()), group("b", member())), "the same id or address"),
        ((group("a"),), "has no broker"),
        ((group("a", member(), forbidden=frozenset({"T"})),), "does not serve"),
    ],
)
def test_an_inconsistent_snapshot_is_refused(groups: tuple[GroupSnapshot, ...], reason: str) -> None:
    with pytest.raises(SnapshotError, match=reason):
        decode_snapshot(content(TableSnapshot(groups)))


@pytest.mark.parametrize("file", [b'{"x":' + b"[" * 5000, b'{"form":"\xff"}', b"[]"])
def test_a_file_that_cannot_be_decoded_is_refused(file: bytes) -> None:
    with pytest.raises(SnapshotError, match="not a snapshot header"):
        decode_snapshot(file)
