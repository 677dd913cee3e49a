"""Removal of expired segments."""

from pathlib import Path

import pytest

from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.queues.queue_ledger import LEDGER_NAME, QueueLedger
from skyroute.broker.store.queues.queue_read import ReadStatus
from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError
from tests.support.disks import NOW_MS, NoSyncDisk, bodies, draft, read_all, small_store

HOUR_MS = 3_600_000


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    """Write ten segments of log, one per hour, with four messages each, in two queues by turns."""
    store = small_store(tmp_path, reserved_ms=3 * HOUR_MS)
    for hour in range(10):
        for number in range(4):
            body = b"%d-%d " % (hour, number) + b"x" * 850
            properties = {"KEYS": f"{hour}-{number} all", "UNIQ_KEY": f"{hour}/{number}"}
            store.append(draft("T", number % 2, body, properties), NOW_MS + hour * HOUR_MS)
    assert store.max_position > 9 * 4096
    store.dispatch()
    return store


def first_hour(store: MessageStore) -> int:
    return int(bodies(store)[0].partition(b"-")[0])


def test_nothing_expires_before_it_is_due(store: MessageStore) -> None:
    expired = store.delete_expired(NOW_MS + 100 * HOUR_MS, is_due=False, disk_used=0.5)
    assert (expired.log_segments, expired.queue_segments, expired.index_files) == (0, 0, 0)
    assert first_hour(store) == 0


def test_expired_segments_are_removed_with_their_units_and_keys(store: MessageStore) -> None:
    index_files = len(list((store.folder / "index").iterdir()))
    assert index_files > 2
    expired = store.delete_expired(NOW_MS + 9 * HOUR_MS, is_due=True, disk_used=0.5)
    assert expired.log_segments == 6, "segment 6 ends when segment 7 begins, two hours ago"
    assert store.min_position == 6 * 4096
    assert first_hour(store) == 6
    assert store.min_offset("T", 0) == 12
    assert store.earliest_ms("T", 0) == NOW_MS + 6 * HOUR_MS
    assert expired.queue_segments == 2, "one of ten units for each queue"
    assert expired.index_files > 0
    assert store.find_by_key("T", "3-1", 9, 0, NOW_MS * 2).positions == []
    assert len(store.find_by_key("T", "7-1", 9, 0, NOW_MS * 2).positions) == 1
    assert len(store.find_by_key("T", "all", 64, 0, NOW_MS * 2).positions) == 16
    read = store.read_queue("T", 0, 3, 9, 9999)
    assert (read.status, read.next_offset, read.min_offset) == (ReadStatus.TOO_SMALL, 12, 12)
    assert store.record_at(0) is None
    assert store.offset_at("T", 0, 0) == 12
    store.close()
    again = small_store(store.folder, reserved_ms=3 * HOUR_MS)
    assert (first_hour(again), again.min_offset("T", 0), again.max_offset("T", 0)) == (6, 12, 20)


def test_a_flush_does_not_restore_expired_files(store: MessageStore) -> None:
    store.delete_expired(NOW_MS + 9 * HOUR_MS, is_due=True, disk_used=0.5)
    before = sorted(path for path in store.folder.rglob("*") if path.is_file())
    store.flush()
    assert sorted(path for path in store.folder.rglob("*") if path.is_file()) == before


def test_a_nearly_full_disk_expires_at_any_hour_and_a_full_one_at_any_age(store: MessageStore) -> None:
    assert store.delete_expired(NOW_MS + 4 * HOUR_MS, is_due=False, disk_used=0.76).log_segments == 1
    assert store.delete_expired(NOW_MS + 4 * HOUR_MS, is_due=False, disk_used=0.86).log_segments == 8
    assert first_hour(store) == 9, "the last segment stays"
    assert store.append(draft(), NOW_MS).queue_offset == 20


def test_a_damaged_time_does_not_make_a_segment_expire(store: MessageStore) -> None:
    with (store.folder / "commitlog" / f"{4096:020d}").open("r+b") as segment:
        segment.seek(56)
        segment.write((1).to_bytes(8, "big"))
    assert store.record_at(4096) is not None
    assert store.delete_expired(NOW_MS + 2 * HOUR_MS, is_due=True, disk_used=0.5).log_segments == 0
    assert store.delete_expired(NOW_MS + 9 * HOUR_MS, is_due=True, disk_used=0.5).log_segments == 6


def test_the_number_of_segments_removed_at_once_is_bounded(tmp_path: Path) -> None:
    store = small_store(tmp_path, expired_segments_max=2)
    for _ in range(20):
        store.append(draft(body=bytes(900)), NOW_MS)
    assert store.delete_expired(NOW_MS, is_due=False, disk_used=0.99).log_segments == 2
    assert store.delete_expired(NOW_MS, is_due=False, disk_used=0.99).log_segments == 2


def test_appends_are_refused_while_the_disk_is_nearly_full(store: MessageStore) -> None:
    store.delete_expired(NOW_MS, is_due=False, disk_used=0.91)
    with pytest.raises(DiskFullError, match="make room"):
        store.append(draft(), NOW_MS)
    assert read_all(store)
    store.delete_expired(NOW_MS, is_due=False, disk_used=0.89)
    store.append(draft(), NOW_MS)
    assert 0.0 < store.disk_used() < 1.0


def test_a_queue_whose_messages_have_all_expired_keeps_its_end(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    for _ in range(3):
        store.append(draft("Old"), NOW_MS)
    for _ in range(20):
        store.append(draft("T", body=bytes(900)), NOW_MS)
    store.delete_expired(NOW_MS, is_due=False, disk_used=0.99)
    assert (store.min_offset("Old", 0), store.max_offset("Old", 0)) == (3, 3)
    assert store.read_queue("Old", 0, 0, 1, 1).status is ReadStatus.TOO_SMALL
    assert store.read_queue("Old", 0, 3, 1, 1).status is ReadStatus.AT_END
    assert store.offset_at("Old", 0, NOW_MS) == store.offset_at("Old", 0, NOW_MS, upper=True) == 3
    assert store.earliest_ms("Old", 0) is None
    store.close()
    store = small_store(tmp_path)
    assert store.append(draft("Old", body=b"new"), NOW_MS).queue_offset == 3
    assert bodies(store, "Old") == [b"new"]


def test_a_deleted_topic_starts_again_at_offset_0(store: MessageStore) -> None:
    store.append(draft("Other"), NOW_MS)
    store.dispatch()
    store.append(draft("T", 0, b"not yet written"), NOW_MS)
    store.delete_topic("T")
    assert store.topics() == {"Other"}
    assert not (store.folder / "consumequeue" / "T").exists()
    assert store.read_queue("T", 0, 0, 1, 1).status is ReadStatus.QUEUE_EMPTY
    assert store.append(draft("T", 0, b"first"), NOW_MS).queue_offset == 0
    assert bodies(store) == [b"first"]


def test_deleting_topics_without_messages_adds_nothing_to_the_ledger(tmp_path: Path) -> None:
    class CountingDisk(NoSyncDisk):
        syncs = 0

        def sync(self, descriptor: int) -> None:
            self.syncs += 1

    disk = CountingDisk()
    store = small_store(tmp_path, disk)
    store.append(draft("T"), NOW_MS)
    store.dispatch()
    before, disk.syncs = (tmp_path / LEDGER_NAME).read_bytes(), 0
    for number in range(1_000):
        store.delete_topic(f"never there {number}")
    assert (tmp_path / LEDGER_NAME).read_bytes() == before
    assert not disk.syncs
    store.delete_topic("T")
    known = QueueLedger(tmp_path / LEDGER_NAME, Disk()).read()
    assert known is not None
    assert known.deleted.keys() == {"T"}


@pytest.mark.parametrize("written", [True, False])
def test_a_recreated_topic_has_its_new_messages_after_a_crash(tmp_path: Path, written: bool) -> None:
    store = small_store(tmp_path)
    for number in range(5):
        store.append(draft("T", 0, b"old %d" % number), NOW_MS)
    store.delete_topic("T")
    for number in range(3):
        store.append(draft("T", 0, b"new %d" % number), NOW_MS)
    if written:
        store.dispatch()
    store.kill()
    assert bodies(small_store(tmp_path)) == [b"new 0", b"new 1", b"new 2"]
