"""Recovery finds queues that lack units, with or without the queue ledger, and rebuilds no others."""

import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.recovery import queue_check
from skyroute.broker.store.recovery.recover import Recovered
from skyroute.files.disk import Disk
from skyroute.message.batch import BatchItem, encode_batch
from skyroute.message.flags import TransactionState
from skyroute.message.message import StoredMessage
from tests.support.disks import NOW_MS, NoSyncDisk, RestartedMachineDisk, bodies, draft, read_all, small_store
from tests.support.single_damage import read_store

LOG = Path("commitlog") / f"{0:020d}"
QUEUE = Path("consumequeue") / "T" / "0"
BATCHES = Path("batchconsumequeue") / "T" / "0"
FIRST = f"{0:020d}"
UNIT_BYTES, BATCH_UNIT_BYTES = 20, 46
QUEUE_OFFSET = 20
"""Where a record has its offset."""


def open_store(folder: Path, disk: Disk | None = None, *, is_batch_topic: bool = False) -> MessageStore:
    return small_store(
        folder,
        disk or NoSyncDisk(),
        is_batch_topic=lambda _: is_batch_topic,
        queue_segment_units=4,
        batch_segment_units=4,
    )


def reopen(folder: Path, disk: Disk | None = None) -> tuple[MessageStore, Recovered]:
    store = open_store(folder, disk)
    assert store.recovered is not None
    return store, store.recovered


def fill(store: MessageStore, count: int, queue_id: int = 0, *, first: int = 0) -> list[StoredMessage]:
    """Store and dispatch messages; return them."""
    for number in range(first, first + count):
        store.append(draft("T", queue_id, b"%d" % number), NOW_MS + number)
    store.dispatch()
    return read_all(store, "T", queue_id)[-count:]


def fill_batches(store: MessageStore, count: int) -> list[StoredMessage]:
    """Store and dispatch batches of two messages; return their records."""
    for number in range(count):
        body = encode_batch([BatchItem(b"%d" % number), BatchItem(b"and")])
        store.append_inner_batch(draft("T", 0, body), 2, NOW_MS + number)
    store.dispatch()
    return read_all(store)


def numbered(numbers: Iterable[int]) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


# ----------------------------------------------------------------------------------------------------- with the ledger


@pytest.mark.parametrize("closes", [True, False])
def test_a_removed_queue_keeps_the_offsets_of_messages_that_the_log_has_lost(tmp_path: Path, *, closes: bool) -> None:
    store = open_store(tmp_path)
    newest = fill(store, 5)[-1]
    store.close() if closes else store.kill()
    change(tmp_path / LOG, newest.log_position, bytes(newest.record_bytes))
    shutil.rmtree(tmp_path / QUEUE)
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 1
    assert store.max_offset("T", 0) == 5
    assert bodies(store) == numbered(range(4))
    store.close()


def test_a_queue_without_its_newest_unit_is_rebuilt_after_a_kill_before_any_flush(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 3)
    store.kill()
    os.truncate(tmp_path / QUEUE / FIRST, 2 * UNIT_BYTES)
    store, recovered = reopen(tmp_path)
    assert (recovered.rebuilt_queues, recovered.records) == (1, 0)
    assert bodies(store) == numbered(range(3))
    store.close()


def test_units_behind_the_checkpoint_of_a_killed_process_are_not_rebuilt_but_replayed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 3)
    before = (tmp_path / "checkpoint").read_bytes()
    fill(store, 2, first=3)
    store.kill()
    (tmp_path / "checkpoint").write_bytes(before)
    store, recovered = reopen(tmp_path)
    assert (recovered.rebuilt_queues, recovered.records) == (0, 2)
    assert bodies(store) == numbered(range(5))
    store.close()


def test_a_damaged_newest_unit_is_rebuilt_after_the_machine_stopped(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 3)
    store.flush()
    store.kill()
    change(tmp_path / QUEUE / FIRST, 2 * UNIT_BYTES, b"\1")  # its position is far behind the log
    store, recovered = reopen(tmp_path, RestartedMachineDisk())
    assert (recovered.rebuilt_queues, recovered.records) == (1, 0)
    assert bodies(store) == numbered(range(3))
    store.close()


def test_messages_that_a_stopped_machine_lost_before_a_flush_leave_no_offsets(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2)
    store.flush()
    lost = fill(store, 1, first=2)[0]
    store.kill()
    change(tmp_path / LOG, lost.log_position, bytes(lost.record_bytes))
    store, recovered = reopen(tmp_path, RestartedMachineDisk())
    assert recovered.rebuilt_queues == 0
    assert store.append(draft("T", 0, b"new"), NOW_MS).queue_offset == 2
    assert bodies(store) == [b"0", b"1", b"new"]
    store.close()


def test_a_queue_with_a_missing_and_a_cut_file_is_rebuilt_from_the_missing_one(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 11)
    store.close()
    (tmp_path / QUEUE / f"{4 * UNIT_BYTES:020d}").unlink()
    os.truncate(tmp_path / QUEUE / f"{8 * UNIT_BYTES:020d}", UNIT_BYTES)
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 1
    assert bodies(store) == numbered(range(11))
    store.close()


def test_a_flipped_bit_behind_the_units_of_a_queue_changes_no_offset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    fill(store, 1)
    store.close()
    change(tmp_path / QUEUE / FIRST, 3 * UNIT_BYTES, b"\1")
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 1
    assert store.max_offset("T", 0) == 1
    assert bodies(store) == [b"0"]
    assert "messages lost" not in caplog.text
    store.close()


@pytest.mark.parametrize("has_ledger", [True, False])
def test_a_damaged_end_of_a_batch_queue_does_not_count(tmp_path: Path, *, has_ledger: bool) -> None:
    store = open_store(tmp_path, is_batch_topic=True)
    batches = fill_batches(store, 3)
    store.close()
    change(tmp_path / BATCHES / FIRST, 2 * BATCH_UNIT_BYTES + 28, (1000).to_bytes(8, "big"))  # its first offset
    if not has_ledger:
        (tmp_path / "queues").unlink()
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 1
    assert store.max_offset("T", 0) == 6
    assert read_all(store) == batches
    store.close()


def test_a_closed_batch_queue_is_not_rebuilt(tmp_path: Path) -> None:
    store = open_store(tmp_path, is_batch_topic=True)
    batches = fill_batches(store, 3)
    store.close()
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 0
    assert read_all(store) == batches
    store.close()


def test_a_newest_unit_that_reaches_behind_the_log_is_rebuilt_though_its_file_is_missing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(5):
        store.append(draft("T", 0, b"%d" % number * 1000), NOW_MS)
    store.close()
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    change(tmp_path / QUEUE / f"{4 * UNIT_BYTES:020d}", 8, (2000).to_bytes(4, "big"))  # the size in the newest unit
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 1
    assert store.max_offset("T", 0) == 5
    assert bodies(store) == [b"%d" % number * 1000 for number in range(3)]
    store.close()


# -------------------------------------------------------------------------------------------------- without the ledger


def without_ledger(store: MessageStore) -> None:
    store.close()
    (store.folder / "queues").unlink()


def test_without_a_ledger_a_complete_queue_is_not_rebuilt(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 5)
    without_ledger(store)
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 0
    assert store.max_offset("T", 0) == 5
    store.close()


@pytest.mark.parametrize("disk", [NoSyncDisk(), RestartedMachineDisk()])
def test_without_a_ledger_a_queue_without_its_newest_unit_is_rebuilt(tmp_path: Path, disk: Disk) -> None:
    store = open_store(tmp_path)
    fill(store, 3)
    store.flush()
    store.kill()
    (tmp_path / "queues").unlink()
    os.truncate(tmp_path / QUEUE / FIRST, 2 * UNIT_BYTES)
    store, recovered = reopen(tmp_path, disk)
    assert recovered.rebuilt_queues == 1
    assert bodies(store) == numbered(range(3))
    store.close()


def test_without_a_ledger_a_missing_queue_of_one_message_is_rebuilt(tmp_path: Path) -> None:
    """Its record is behind damage, and behind a half message, which has no unit."""
    store = open_store(tmp_path)
    first = fill(store, 1)[0]
    half = draft("T", 1, b"half", sys_flag=int(TransactionState.PREPARED))
    store.append(half, NOW_MS)
    fill(store, 1, queue_id=2)
    without_ledger(store)
    change(tmp_path / LOG, first.log_position + 4, b"?")  # its magic
    shutil.rmtree(tmp_path / QUEUE.parent / "2")
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 2
    assert bodies(store, "T", 2) == [b"0"]
    assert [store.max_offset("T", queue_id) for queue_id in (0, 1, 2)] == [1, 0, 1]
    assert not (tmp_path / "batchconsumequeue").exists()
    store.close()


def test_without_a_ledger_the_newest_messages_of_a_queue_keep_their_offsets(tmp_path: Path) -> None:
    """The units of the queue say where it ends. The log has lost the newest record, and the other queue is complete."""
    store = open_store(tmp_path)
    fill(store, 4)
    newest = fill(store, 1, first=4)[0]
    fill(store, 2, queue_id=1)
    without_ledger(store)
    change(tmp_path / LOG, newest.log_position + 4, b"?")
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 1
    assert [store.max_offset("T", queue_id) for queue_id in (0, 1)] == [5, 2]
    assert bodies(store) == numbered(range(4))
    store.close()


@pytest.mark.parametrize("is_batch_topic", [True, False])
def test_offsets_of_messages_in_a_missing_file_of_apaches_log_are_not_used_again(
    tmp_path: Path, *, is_batch_topic: bool
) -> None:
    """Apache's broker has no ledger, and its checkpoint has only times."""
    store = open_store(tmp_path, is_batch_topic=is_batch_topic)
    for number in range(6):
        store.append(draft("T", 0, b"%d" % number * 1000), NOW_MS)
    without_ledger(store)
    change(tmp_path / "checkpoint", 32, bytes(4096 - 32))
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    store, _ = reopen(tmp_path)
    assert store.append(draft("T", 0, b"new"), NOW_MS).queue_offset == 6
    assert [each.queue_offset for each in read_all(store)] == [0, 1, 2, 6]
    store.close()


@pytest.mark.parametrize("is_missing", [True, False])
def test_without_a_ledger_a_batch_queue_is_rebuilt_as_one(tmp_path: Path, *, is_missing: bool) -> None:
    store = open_store(tmp_path, is_batch_topic=True)
    batches = fill_batches(store, 3)
    store.append(draft("other"), NOW_MS)
    without_ledger(store)
    if is_missing:
        shutil.rmtree(tmp_path / "batchconsumequeue")
    else:
        os.truncate(tmp_path / BATCHES / FIRST, 2 * BATCH_UNIT_BYTES)
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 1 + is_missing
    assert (tmp_path / BATCHES).exists()
    assert read_all(store) == batches
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (0, 6)
    store.close()


def test_without_a_ledger_a_complete_batch_queue_is_not_rebuilt(tmp_path: Path) -> None:
    store = open_store(tmp_path, is_batch_topic=True)
    batches = fill_batches(store, 3)
    without_ledger(store)
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 0
    assert read_all(store) == batches
    store.close()


def test_without_a_ledger_the_queue_of_a_record_that_was_never_dispatched_is_not_missing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    fill(store, 2)
    store.append(draft("T", 1, b"late"), NOW_MS)
    store.kill()
    (tmp_path / "queues").unlink()
    store, recovered = reopen(tmp_path)
    assert (recovered.rebuilt_queues, recovered.records) == (0, 1)
    assert bodies(store, "T", 1) == [b"late"]
    store.close()


@pytest.mark.parametrize(
    ("offsets", "kept", "is_rebuilt"),
    [
        ({}, 5, True),
        ({2: 1000}, 6, False),
        ({2: 1000}, 5, True),
        ({1: 1000, 5: 3}, 5, False),
        ({1: 1000, 5: 3}, 4, True),
    ],
)
def test_without_a_ledger_an_offset_counts_if_the_next_record_confirms_it(
    tmp_path: Path, offsets: dict[int, int], kept: int, *, is_rebuilt: bool
) -> None:
    """Six records, some with another offset, and a queue with the first units."""
    store = open_store(tmp_path)
    records = fill(store, 6)
    without_ledger(store)
    for number, offset in offsets.items():
        change(tmp_path / LOG, records[number].log_position + QUEUE_OFFSET, offset.to_bytes(8, "big"))
    os.truncate(tmp_path / QUEUE / f"{4 * UNIT_BYTES:020d}", (kept - 4) * UNIT_BYTES)
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == is_rebuilt
    store.close()


def test_without_a_ledger_offsets_count_behind_a_lost_record(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    lost = fill(store, 8)[3]
    without_ledger(store)
    change(tmp_path / LOG, lost.log_position + 4, b"?")
    os.truncate(tmp_path / QUEUE / f"{4 * UNIT_BYTES:020d}", 3 * UNIT_BYTES)
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 1
    assert [each.offset for each in read_store(store)] == [0, 1, 2, 4, 5, 6, 7]
    store.close()


@pytest.mark.parametrize(("spare", "is_found"), [(0, True), (-1, False)])
def test_without_a_ledger_only_a_log_up_to_the_bound_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, spare: int, *, is_found: bool
) -> None:
    """The first file of the log has expired, and does not count."""
    store = open_store(tmp_path)
    fill(store, 60)
    fill(store, 5, queue_id=1)
    end = store.max_position
    without_ledger(store)
    (tmp_path / LOG).unlink()
    shutil.rmtree(tmp_path / QUEUE.parent / "1")
    monkeypatch.setattr(queue_check, "SCANNED_BYTES_MAX", end - 4096 + spare)
    with caplog.at_level(logging.WARNING):
        store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == is_found
    assert store.max_offset("T", 1) == (5 if is_found else 0)
    skipped = f"search for missing queues skipped, log too long bytes={end - 4096}"
    assert (skipped in caplog.messages) != is_found
    store.close()
