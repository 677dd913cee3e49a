"""Appends and reads of a store."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from skyroute.broker.store.dispatch import BACKLOG_MAX, PENDING_BYTES_MAX
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.errors import RecordTooLargeError, StoreClosedError, StoreLockedError
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.queues.queue_ledger import KnownQueue, KnownQueues, encode_ledger
from skyroute.broker.store.queues.queue_read import ReadStatus
from skyroute.broker.store.reader import SCANNED_UNITS_MIN
from skyroute.broker.store.settings import DELAYS_MS
from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError, FileWriteError
from skyroute.message.batch import BatchItem
from skyroute.message.errors import InvalidNameError, RecordError
from skyroute.message.flags import TransactionState
from skyroute.message.host import encode_host
from skyroute.message.properties import encode_properties
from skyroute.message.record import body_crc, decode_record
from skyroute.message.reserved_topics import SCHEDULE_TOPIC
from skyroute.message.tags import tag_code
from tests.support.disks import NOW_MS, bodies, draft, read_all, small_store


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return small_store(tmp_path)


def test_a_message_is_read_as_it_was_stored(store: MessageStore) -> None:
    properties = {"TAGS": "TagA", "KEYS": "k1 k2", "UNIQ_KEY": "7F000001", "colour": "红"}
    sent = draft("T", 3, b"hello", properties, sys_flag=1, flag=7, reconsume_times=2, prepared_position=9)
    first = store.append(sent, NOW_MS)
    second = store.append(sent, NOW_MS + 5)
    assert (first.log_position, first.queue_offset) == (0, 0)
    assert (second.log_position, second.queue_offset) == (first.record_bytes, 1)
    message = read_all(store, "T", 3)[1]
    assert message.topic == "T"
    assert message.queue_id == 3
    assert message.queue_offset == 1
    assert message.log_position == second.log_position
    assert message.stored_body == b"hello"
    assert message.body_crc == body_crc(b"hello")
    assert message.properties == properties
    assert (message.sys_flag, message.flag, message.reconsume_times, message.prepared_position) == (1, 7, 2, 9)
    assert (message.born_at_ms, message.stored_at_ms) == (NOW_MS, NOW_MS + 5)
    assert (str(message.born_host), str(message.store_host)) == ("10.0.0.1:40000", "127.0.0.1:10911")
    assert message.record_bytes == second.record_bytes
    assert store.record_at(second.log_position) == bytes(store.read_queue("T", 3, 1, 1, 1000).chunks[0])


def test_ipv4_ipv6_and_long_topics_have_their_record_layouts(store: MessageStore) -> None:
    wide = encode_host("fe80::1", 9)
    for topic, changes in (("T", {}), ("T" * 200, {"raw_born_host": wide}), ("t", {"raw_store_host": wide})):
        sent = msgspec.structs.replace(draft(topic, body=b"x"), **changes)
        appended = store.append(sent, NOW_MS)
        record = store.record_at(appended.log_position)
        assert record is not None
        message = decode_record(record, check_crc=True)
        assert (message.topic, message.raw_born_host, message.raw_store_host) == (
            topic,
            sent.raw_born_host,
            sent.raw_store_host,
        )
        assert len(record) == appended.record_bytes == message.record_bytes
        assert store.stored_at_ms(topic, 0, 0) == NOW_MS


def test_a_full_segment_gets_an_end_mark_and_the_next_one_starts(store: MessageStore) -> None:
    positions = [store.append(draft(body=b"x" * 900), NOW_MS).log_position for _ in range(10)]
    assert [position // 4096 for position in positions] == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]
    assert all(position % 4096 == 0 for position in positions[4::4])
    assert len(read_all(store)) == 10
    assert store.max_position == positions[-1] + 992


def test_a_record_larger_than_a_segment_is_refused(store: MessageStore) -> None:
    store.append(draft(body=bytes(4096 - 8 - 92)), NOW_MS)
    with pytest.raises(RecordTooLargeError, match="do not fit a segment"):
        store.append(draft(body=bytes(4096 - 8 - 91)), NOW_MS)
    assert len(read_all(store)) == 1


def test_a_batch_has_consecutive_offsets_in_one_segment(store: MessageStore) -> None:
    store.append(draft(body=b"x" * 3000), NOW_MS)
    items = [BatchItem(f"{number}".encode() * 200, encode_properties({"KEYS": f"k{number}"})) for number in range(4)]
    appended = store.append_batch(draft(flag=5), items, NOW_MS)
    assert (appended.queue_offset, appended.log_positions[0]) == (1, 4096)
    messages = read_all(store)[1:]
    assert [message.body for message in messages] == [item.body for item in items]
    assert [message.log_position for message in messages] == appended.log_positions
    assert messages[-1].log_position + messages[-1].record_bytes == appended.log_end
    assert store.find_by_key("T", "k2", 10, 0, NOW_MS * 2).positions == [appended.log_positions[2]]
    with pytest.raises(RecordTooLargeError):
        store.append_batch(draft(), items * 5, NOW_MS)
    assert store.append(draft(), NOW_MS).queue_offset == 5
    with pytest.raises(RecordError, match="cannot be part of a transaction"):
        store.append_batch(draft(sys_flag=int(TransactionState.PREPARED)), items, NOW_MS)
    with pytest.raises(RecordError, match="or wait for its time"):
        store.append_batch(draft(topic=SCHEDULE_TOPIC), items, NOW_MS)


@pytest.mark.parametrize("topic", ["T", "T" * 200])
@pytest.mark.parametrize("host", ["10.0.0.1", "fe80::1"])
def test_a_batch_has_the_same_records_as_single_messages(tmp_path: Path, topic: str, host: str) -> None:
    born = encode_host(host, 7)
    items = [BatchItem(b"body" * number, b"KEYS\x01k%d\x02" % number, number) for number in range(5)]
    alone, together = small_store(tmp_path / "alone"), small_store(tmp_path / "together")

    def told(body: bytes, raw: bytes, flag: int) -> Draft:
        return Draft(topic, 2, body, raw, NOW_MS - 5, born, born, 1, flag, reconsume_times=3, prepared_position=9)

    positions = [alone.append(told(*item), NOW_MS).log_position for item in items]
    assert together.append_batch(told(b"", b"", 0), items, NOW_MS).log_positions == positions
    assert [together.record_at(at) for at in positions] == [alone.record_at(at) for at in positions]


def test_a_value_that_does_not_fit_a_record_is_refused(tmp_path: Path) -> None:
    store = small_store(tmp_path, log_segment_bytes=1 << 16)
    with pytest.raises(RecordError, match="properties of 32768 bytes"):
        store.append_batch(draft(), [BatchItem(b""), BatchItem(b"", b"x" * 32768)], NOW_MS)
    with pytest.raises(RecordError, match="does not fit its field"):
        store.append(draft(reconsume_times=1 << 40), NOW_MS)
    for topic, queue_id in (("", 0), ("a/b", 0), ("..", 0), ("a\0b", 0), ("T", -1)):
        with pytest.raises(InvalidNameError):
            store.append(draft(topic, queue_id), NOW_MS)
    assert store.max_offset("T", 0) == 0
    assert store.topics() == set()
    assert store.append(draft(), NOW_MS).queue_offset == 0


@pytest.mark.parametrize("name", ["../../beside", "..", "", "a/../../beside", "beside\0", "x" * 256])
def test_a_topic_name_cannot_delete_a_folder_outside_the_store(tmp_path: Path, name: str) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    store = small_store(tmp_path / "store")
    for each in (name, str(beside)):
        with pytest.raises(InvalidNameError):
            store.delete_topic(each)
    assert beside.is_dir()


def test_a_message_during_the_deletion_of_its_topic_restores_no_queue(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    for queue_id in range(3):
        store.append(draft("T", queue_id=queue_id), NOW_MS)
    removal = store.remove_topic("T")
    next(removal)
    store.append(draft("T", queue_id=2), NOW_MS)
    store.dispatch()
    assert list(removal)
    store.kill()
    assert small_store(tmp_path).topics() == set()


def test_a_failed_removal_of_a_queue_is_repeated_by_the_next_request(tmp_path: Path) -> None:
    class Refusing(Disk):
        refuses = True

        def remove(self, path: Path) -> None:
            if self.refuses and path.parent.name == "0":
                raise FileWriteError(f"cannot remove {path}")
            super().remove(path)

    disk = Refusing()
    store = small_store(tmp_path, disk=disk)
    store.append(draft("T"), NOW_MS)
    with pytest.raises(FileWriteError):
        store.delete_topic("T")
    disk.refuses = False
    store.delete_topic("T")
    assert store.topics() == set()
    assert not (tmp_path / "consumequeue" / "T").exists()


def test_a_store_opens_without_a_ledger_on_a_full_disk(tmp_path: Path) -> None:
    class Full(Disk):
        def open(self, path: Path, size: int) -> int:
            if path.name == "queues.tmp":
                raise DiskFullError(f"no room for {path}")
            return super().open(path, size)

    store = small_store(tmp_path)
    store.append(draft("T"), NOW_MS)
    store.kill()
    full = small_store(tmp_path, disk=Full())
    full.append(draft("T"), NOW_MS)
    full.kill()
    assert not (tmp_path / "queues").exists()  # it would be out of date
    assert small_store(tmp_path).max_offset("T", 0) == 2


def test_a_deletion_in_the_ledger_of_another_log_hides_no_message(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.append(draft("T"), NOW_MS)
    store.close()
    known = KnownQueues({("T", 0): KnownQueue(is_batch_queue=False, end=1, flushed_end=1, first=0)}, {"T": 1 << 30})
    (tmp_path / "queues").write_bytes(encode_ledger(known))
    store = small_store(tmp_path)
    store.append(draft("T"), NOW_MS)
    store.kill()
    assert small_store(tmp_path).max_offset("T", 0) == 2


def test_half_and_rolled_back_messages_get_no_unit(store: MessageStore) -> None:
    for state in TransactionState:
        store.append(draft(properties={"UNIQ_KEY": state.name}, sys_flag=int(state)), NOW_MS)
    assert [message.transaction for message in read_all(store)] == [TransactionState.NONE, TransactionState.COMMITTED]
    assert [message.queue_offset for message in read_all(store)] == [0, 1]
    found = {state: store.find_by_key("T", state.name, 9, 0, NOW_MS * 2).positions for state in TransactionState}
    assert [state.name for state, positions in found.items() if positions] == ["NONE", "PREPARED", "COMMITTED"]
    half = store.record_at(found[TransactionState.PREPARED][0])
    assert half is not None
    assert decode_record(half).queue_offset == 0


def test_a_unit_has_the_tag_code_or_the_due_time(store: MessageStore) -> None:
    store.append(draft(properties={"TAGS": "TagB"}), NOW_MS)
    store.append(draft(properties={"TAGS": "x" * 60}), NOW_MS)
    store.append(draft(), NOW_MS)
    units = [store.unit("T", 0, offset) for offset in range(3)]
    assert [unit[2] for unit in units if unit] == [tag_code("TagB"), tag_code("x" * 60), 0]
    assert tag_code("x" * 60) < 0
    levels = {"1": 1_000, "18": 7_200_000, "99": 7_200_000}
    for level in levels:
        store.append(draft(SCHEDULE_TOPIC, properties={"DELAY": level, "TAGS": "TagB"}), NOW_MS)
    store.append(draft(SCHEDULE_TOPIC, properties={"DELAY": "0", "TAGS": "TagB"}), NOW_MS)
    store.append(draft(SCHEDULE_TOPIC, properties={"DELAY": "soon", "TAGS": "TagB"}), NOW_MS)
    dues = [unit[2] for offset in range(5) if (unit := store.unit(SCHEDULE_TOPIC, 0, offset))]
    assert dues == [*(NOW_MS + delay for delay in levels.values()), tag_code("TagB"), tag_code("TagB")]
    assert len(DELAYS_MS) == 18
    assert store.unit("T", 0, 3) is None


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (-1, ReadStatus.TOO_SMALL, 0),
        (0, ReadStatus.FOUND, 2),
        (1, ReadStatus.FOUND, 3),
        (3, ReadStatus.AT_END, 3),
        (4, ReadStatus.BEYOND_END, 3),
    ],
)
def test_a_read_returns_status_and_next_offset_for_every_offset(
    store: MessageStore, offset: int, status: ReadStatus, next_offset: int
) -> None:
    for _ in range(3):
        store.append(draft(), NOW_MS)
    read = store.read_queue("T", 0, offset, 2, 1000)
    assert (read.status, read.next_offset, read.min_offset, read.max_offset) == (status, next_offset, 0, 3)


def test_a_queue_without_messages_is_empty(store: MessageStore) -> None:
    store.append(draft(queue_id=1), NOW_MS)
    for topic, queue_id in (("T", 0), ("U", 1)):
        read = store.read_queue(topic, queue_id, 5, 2, 1000)
        assert (read.status, read.next_offset, read.max_offset) == (ReadStatus.QUEUE_EMPTY, 0, 0)
    assert store.max_offset("U", 1) == store.min_offset("U", 1) == store.offset_at("U", 1, NOW_MS) == 0
    assert store.earliest_ms("U", 1) is None
    assert store.topics() == {"T"}
    assert store.queue_ids("T") == [1]
    assert store.oldest_ms == NOW_MS


def test_a_read_stops_at_the_limits_but_returns_at_least_one_record(store: MessageStore) -> None:
    size = max(store.append(draft(body=b"x" * 100), NOW_MS).record_bytes for _ in range(9))
    counts = {
        (count, limit): store.read_queue("T", 0, 0, count, limit).message_count
        for count, limit in ((3, 1 << 20), (0, 1 << 20), (9, 3 * size), (9, 3 * size - 1), (9, 1), (9, 0))
    }
    assert list(counts.values()) == [3, 1, 3, 2, 1, 1]
    read = store.read_queue("T", 0, 2, 3, 1 << 20)
    assert (read.next_offset, read.record_bytes, read.last_position) == (5, 3 * size, 4 * size)
    assert len(read.chunks) == 1, "what lies side by side is read in one go"


def test_a_read_filters_by_tag_code_then_by_record(store: MessageStore) -> None:
    for number in range(9):
        store.append(draft(body=b"%d" % number, properties={"TAGS": "AB"[number % 2]}), NOW_MS)
    code = tag_code("B")
    read = store.read_queue("T", 0, 0, 2, 1 << 20, lambda found: found == code)
    assert [decode_record(chunk).body for chunk in read.chunks] == [b"1", b"3"]
    assert (read.status, read.next_offset) == (ReadStatus.FOUND, 4)
    read = store.read_queue("T", 0, 4, 9, 1 << 20, None, lambda record: decode_record(record).body in b"57")
    assert [decode_record(chunk).body for chunk in read.chunks] == [b"5", b"7"]
    assert (read.status, read.next_offset) == (ReadStatus.FOUND, 9), "what was passed over need not be read again"
    read = store.read_queue("T", 0, 2, 9, 1 << 20, lambda found: False)
    assert (read.status, read.next_offset, read.message_count) == (ReadStatus.NO_MATCH, 9, 0)


def test_a_search_without_a_match_is_bounded(tmp_path: Path) -> None:
    store = small_store(tmp_path, queue_segment_units=300_000, log_segment_bytes=1 << 20)
    for _ in range(20):
        store.append_batch(draft(), [BatchItem(b"x")] * 50, NOW_MS)
    store.dispatch()
    for wanted, looked_at in ((32, SCANNED_UNITS_MIN), (900, 900)):
        read = store.read_queue("T", 0, 10, wanted, 1 << 20, lambda code: code == 1)
        assert (read.status, read.next_offset) == (ReadStatus.NO_MATCH, 10 + looked_at)


@pytest.mark.parametrize("reads", [False, True])
def test_the_backlog_of_batches_without_properties_is_bounded(tmp_path: Path, reads: bool) -> None:
    store = small_store(tmp_path, log_segment_bytes=1 << 20, queue_segment_units=10_000)
    for number in range(8):
        store.append_batch(draft(), [BatchItem(b"")] * 1000, NOW_MS)
        if reads:
            assert store.max_offset("T", 0) == (number + 1) * 1000
    unit_bytes = (tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}").read_bytes().rstrip(b"\0")
    assert len(unit_bytes) > 20 * 8000 - PENDING_BYTES_MAX - 20 * 1000


def test_an_offset_is_found_by_time(store: MessageStore) -> None:
    for at in (100, 100, 200, 200, 300):
        store.append(draft(), NOW_MS + at)
    lower = {at: store.offset_at("T", 0, NOW_MS + at) for at in (0, 100, 101, 200, 300, 301)}
    upper = {at: store.offset_at("T", 0, NOW_MS + at, upper=True) for at in (0, 100, 101, 200, 300, 301)}
    assert lower == {0: 0, 100: 0, 101: 2, 200: 2, 300: 4, 301: 5}
    assert upper == {0: 0, 100: 1, 101: 1, 200: 3, 300: 4, 301: 4}
    assert store.earliest_ms("T", 0) == store.oldest_ms == NOW_MS + 100


def test_units_cross_the_segments_of_their_queue(store: MessageStore) -> None:
    for number in range(35):
        store.append(draft(body=b"%d" % number), NOW_MS)
        if number == 17:
            store.dispatch()
    assert bodies(store) == [b"%d" % number for number in range(35)]
    store.dispatch()
    assert bodies(store) == [b"%d" % number for number in range(35)]
    assert store.read_queue("T", 0, 8, 10, 1 << 20).next_offset == 10, "a read ends with the queue's segment"


def test_a_read_goes_on_from_written_units_to_those_in_memory(store: MessageStore) -> None:
    for number in range(4):
        store.append(draft(body=b"%d" % number), NOW_MS)
    store.dispatch()
    for number in range(4, 14):
        store.append(draft(body=b"%d" % number), NOW_MS)
    for count, next_offset in ((3, 4), (5, 6), (100, 14)):
        read = store.read_queue("T", 0, 1, count, 1 << 20)
        assert (read.next_offset, read.message_count) == (next_offset, next_offset - 1)
    store.dispatch()
    assert bodies(store) == [b"%d" % number for number in range(14)]


def test_the_backlog_is_bounded_by_reads_too(tmp_path: Path) -> None:
    store = small_store(tmp_path, log_segment_bytes=1 << 20, queue_segment_units=1000)
    for number in range(600):
        store.append(draft(), NOW_MS)
        assert store.max_offset("T", 0) == number + 1
    unit_bytes = (tmp_path / "consumequeue" / "T" / "0" / f"{0:020d}").read_bytes().rstrip(b"\0")
    assert len(unit_bytes) > 20 * (600 - BACKLOG_MAX - 2)


def test_a_position_without_a_record_returns_none(store: MessageStore) -> None:
    appended = store.append(draft(body=b"x" * 200), NOW_MS)
    for position in (-1, 1, 100, appended.log_end - 1, appended.log_end, 1 << 40):
        assert store.record_at(position) is None


def test_with_sync_flush_readers_see_only_flushed_records(tmp_path: Path) -> None:
    store = small_store(tmp_path, sync_flush=True)
    first = store.append(draft(properties={"KEYS": "k"}), NOW_MS)
    assert store.flushed_position == 0
    assert store.max_offset("T", 0) == 0
    flush = store.begin_flush(thorough=False)
    second = store.append(draft(), NOW_MS)
    flush.run()
    store.end_flush(flush)
    assert store.flushed_position == first.log_end
    assert store.max_offset("T", 0) == 1
    assert len(read_all(store)) == 1
    assert store.find_by_key("T", "k", 1, 0, NOW_MS * 2).positions == [0]
    store.flush()
    assert store.flushed_position == second.log_end
    assert store.max_offset("T", 0) == 2
    store.append(draft(), NOW_MS)
    store.close()
    assert len(read_all(small_store(tmp_path, sync_flush=True))) == 3


def test_messages_are_appended_while_another_thread_flushes(tmp_path: Path) -> None:
    going_on, may_end = threading.Event(), threading.Event()

    class SlowDisk(Disk):
        def sync(self, descriptor: int) -> None:
            going_on.set()
            assert may_end.wait(10)
            super().sync(descriptor)

    store = small_store(tmp_path, SlowDisk(), log_segment_bytes=1 << 20, open_segments_max=1)
    first = store.append(draft(), NOW_MS)
    flush = store.begin_flush()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(flush.run)
        assert going_on.wait(10)
        for queue_id in range(5):
            store.append(draft(queue_id=queue_id), NOW_MS)
        store.dispatch()
        assert store.flushed_position == 0
        may_end.set()
        done.result(10)
    store.end_flush(flush)
    assert store.flushed_position == first.log_end
    store.close()
    assert len(read_all(small_store(tmp_path, log_segment_bytes=1 << 20))) == 2


def test_a_store_syncs_the_files_of_a_killed_process(tmp_path: Path) -> None:
    folders: set[Path] = set()
    files: set[Path] = set()

    class RecordingDisk(Disk):
        def sync(self, descriptor: int) -> None:
            files.add(Path(f"/proc/self/fd/{descriptor}").readlink())

        def sync_folder(self, folder: Path) -> None:
            folders.add(folder)

    store = small_store(tmp_path)
    for number in range(12):
        store.append(draft(properties={"KEYS": "k"}), NOW_MS + number)
    store.flush()
    for number in range(70):  # new segments of log, queue and index
        store.append(draft(properties={"KEYS": "k"}), NOW_MS + number)
    store.dispatch()
    store.kill()
    small_store(tmp_path, RecordingDisk()).kill()
    queue, index, log = tmp_path / "consumequeue" / "T" / "0", tmp_path / "index", tmp_path / "commitlog"
    assert len(list(queue.iterdir())) == 9
    assert files >= {*log.iterdir(), *sorted(queue.iterdir())[1:], *sorted(index.iterdir())[1:]}
    assert files >= {tmp_path / "queues", tmp_path / "checkpoint"}
    assert sorted(queue.iterdir())[0] not in files, "the killed process has synced it"
    assert folders >= {queue, queue.parent, queue.parent.parent, index, log, tmp_path}


def test_a_folder_can_be_opened_only_once(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    with pytest.raises(StoreLockedError, match="in use by another broker"):
        small_store(tmp_path)
    store.close()
    small_store(tmp_path).close()


def test_a_closed_store_refuses_messages(store: MessageStore) -> None:
    store.append(draft(), NOW_MS)
    store.close()
    with pytest.raises(StoreClosedError):
        store.append(draft(), NOW_MS)
    with pytest.raises(StoreClosedError):
        store.append_batch(draft(), [BatchItem(b"")], NOW_MS)
    store.close()


def test_a_record_that_was_read_stays_valid_after_its_segment_is_removed(store: MessageStore) -> None:
    for number in range(20):
        store.append(draft(body=b"%d" % number * 400), NOW_MS)
    chunk = store.read_queue("T", 0, 0, 1, 1).chunks[0]
    assert store.delete_expired(NOW_MS, is_due=False, disk_used=0.99).log_segments > 1
    assert store.record_at(0) is None
    assert decode_record(chunk, check_crc=True).body == b"0" * 400
    store.close()
    assert decode_record(chunk, check_crc=True).body == b"0" * 400


def test_the_number_of_open_files_is_bounded(tmp_path: Path) -> None:
    store = small_store(tmp_path, open_segments_max=5)
    for turn in range(3):
        for queue_id in range(40):
            store.append(draft(queue_id=queue_id, body=b"x" * 300), NOW_MS)
        flush = store.begin_flush()
        descriptors = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
        assert len([path for path in descriptors if tmp_path in path.parents]) < 40
        flush.run()
        store.end_flush(flush)
        for queue_id in range(40):
            assert len(read_all(store, "T", queue_id)) == turn + 1
    descriptors = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
    assert len([path for path in descriptors if tmp_path in path.parents]) < 20
    store.close()
    store = small_store(tmp_path, open_segments_max=5)
    assert all(len(read_all(store, "T", queue_id)) == 3 for queue_id in range(40))


def test_refusals_of_a_closed_store_do_not_collect_tracebacks(store: MessageStore) -> None:
    store.close()
    depths = set()
    for _ in range(3):
        with pytest.raises(StoreClosedError) as refused:
            store.append(draft(), NOW_MS)
        depths.add(len(refused.traceback))
    assert len(depths) == 1
