"""Batch queues: one record and one unit for many messages."""

import random
import shutil
import struct
from itertools import combinations
from pathlib import Path

import msgspec
import pytest

from skyroute.broker.store.files.segment import OpenSegments
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.queues.batch_queue import BatchQueue
from skyroute.broker.store.queues.queue_read import ReadStatus
from skyroute.message.batch import BatchItem, encode_batch, unwrap_batches
from skyroute.message.errors import RecordError
from skyroute.message.message import StoredMessage
from skyroute.message.record import decode_record, decode_records
from skyroute.message.tags import tag_code
from tests.support.disks import NOW_MS, NoSyncDisk, RestartedMachineDisk, draft, small_store

UNIT = struct.Struct(">qiqqqhii")
TOPIC = "Whole"


def batch_store(folder: Path) -> MessageStore:
    return small_store(folder, is_batch_topic=lambda topic: topic == TOPIC)


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return batch_store(tmp_path)


def append_batch(store: MessageStore, *bodies: bytes, topic: str = TOPIC, at_ms: int = NOW_MS, tag: str = "A") -> int:
    body = encode_batch([BatchItem(each) for each in bodies])
    properties = {"UNIQ_KEY": f"id-{bodies[0].decode()}", "TAGS": tag}
    return store.append_inner_batch(draft(topic, body=body, properties=properties), len(bodies), at_ms).queue_offset


def unwrapped(store: MessageStore, topic: str = TOPIC) -> list[StoredMessage]:
    """Return all messages, read as a consumer reads them."""
    found: list[StoredMessage] = []
    offset = store.min_offset(topic, 0)
    while offset < store.max_offset(topic, 0):
        read = store.read_queue(topic, 0, offset, 4, 1 << 20)
        found += unwrap_batches(decode_records(b"".join(read.chunks), check_crc=True))
        assert read.next_offset > offset
        offset = read.next_offset
    return found


def test_a_batch_is_one_record_and_one_unit(store: MessageStore, tmp_path: Path) -> None:
    assert store.append(draft(TOPIC, body=b"single"), NOW_MS).queue_offset == 0
    assert append_batch(store, b"a", b"b", b"c", at_ms=NOW_MS + 5) == 1
    assert store.append(draft(TOPIC, body=b"last"), NOW_MS + 9).queue_offset == 4
    store.dispatch()
    content = (tmp_path / "batchconsumequeue" / TOPIC / "0" / f"{0:020d}").read_bytes()
    assert len(content) == 460
    units = list(UNIT.iter_unpack(content[:138]))
    assert content[138:] == bytes(322)
    assert [unit[3:] for unit in units] == [(NOW_MS, 0, 1, -1, 0), (NOW_MS + 5, 1, 3, -1, 0), (NOW_MS + 9, 4, 1, -1, 0)]
    record = store.record_at(units[1][0])
    assert record is not None
    message = decode_record(record, check_crc=True)
    assert (len(record), message.queue_offset, message.sys_flag) == (units[1][1], 1, 0xC0)
    assert units[1][2] == tag_code("A")
    assert message.properties == {"UNIQ_KEY": "id-a", "TAGS": "A", "INNER_NUM": "3", "INNER_BASE": "1"}
    single = store.record_at(0)
    assert single is not None
    assert decode_record(single).sys_flag == 0
    assert [(each.queue_offset, each.body) for each in unwrapped(store)] == [
        *((0, b"single"), (1, b"a"), (2, b"b"), (3, b"c"), (4, b"last"))
    ]
    assert not (tmp_path / "consumequeue").exists()
    assert store.find_by_key(TOPIC, "id-a", 9, 0, NOW_MS * 2).positions == [units[1][0]]


def test_a_read_inside_a_batch_returns_the_whole_batch(store: MessageStore) -> None:
    for name in (b"a", b"b", b"c"):
        append_batch(store, *[name] * 3, tag=name.decode())
    for written in range(2):
        reads = [store.read_queue(TOPIC, 0, offset, 1, 1 << 20) for offset in range(9)]
        assert [read.next_offset for read in reads] == [3, 3, 3, 6, 6, 6, 9, 9, 9], written
        assert [read.message_count for read in reads] == [3] * 9
        assert [store.unit(TOPIC, 0, offset) for offset in (3, 4, 5)] == [store.unit(TOPIC, 0, 3)] * 3
        statuses = [store.read_queue(TOPIC, 0, offset, 1, 1 << 20).status for offset in (-1, 9, 10)]
        assert statuses == [ReadStatus.TOO_SMALL, ReadStatus.AT_END, ReadStatus.BEYOND_END]
        store.dispatch()


def test_a_read_returns_whole_batches_up_to_the_message_limit(store: MessageStore) -> None:
    for name in (b"a", b"b", b"c"):
        append_batch(store, *[name] * 3, tag=name.decode())
    counts = {wanted: store.read_queue(TOPIC, 0, 1, wanted, 1 << 20) for wanted in (1, 3, 5, 6, 8, 9)}
    assert [read.message_count for read in counts.values()] == [3, 3, 3, 6, 6, 9]
    assert [read.next_offset for read in counts.values()] == [3, 3, 3, 6, 6, 9]
    code = tag_code("b")
    read = store.read_queue(TOPIC, 0, 0, 9, 1 << 20, lambda found: found == code)
    assert (read.status, read.message_count, read.next_offset) == (ReadStatus.FOUND, 3, 9)


def test_a_time_maps_to_the_first_offset_of_its_batch(store: MessageStore) -> None:
    for at in (100, 200, 300):
        append_batch(store, b"x", b"y", at_ms=NOW_MS + at)
    lower = {at: store.offset_at(TOPIC, 0, NOW_MS + at) for at in (0, 100, 101, 200, 300, 301)}
    upper = {at: store.offset_at(TOPIC, 0, NOW_MS + at, upper=True) for at in (0, 100, 101, 200, 301)}
    assert lower == {0: 0, 100: 0, 101: 2, 200: 2, 300: 4, 301: 6}
    assert upper == {0: 0, 100: 1, 101: 1, 200: 3, 301: 5}
    assert [store.stored_at_ms(TOPIC, 0, offset) for offset in (1, 2)] == [NOW_MS + 100, NOW_MS + 200]


def test_units_cross_segments_and_old_ones_expire_with_the_log(store: MessageStore, tmp_path: Path) -> None:
    for number in range(35):
        append_batch(store, b"%d" % number * 100, b"%d." % number * 50)
        if number % 12 == 0:
            store.dispatch()
    assert [message.queue_offset for message in unwrapped(store)] == list(range(70))
    store.dispatch()
    assert [message.queue_offset for message in unwrapped(store)] == list(range(70))
    expired = store.delete_expired(NOW_MS, is_due=False, disk_used=0.87)
    assert expired.log_segments > 1
    assert expired.queue_segments > 0
    low = store.min_offset(TOPIC, 0)
    assert low > 20
    assert low % 2 == 0
    assert [message.queue_offset for message in unwrapped(store)] == list(range(low, 70))
    store.close()
    store = small_store(tmp_path)
    assert [message.queue_offset for message in unwrapped(store)] == list(range(low, 70))
    assert append_batch(store, b"more") == 70


@pytest.mark.parametrize("segment", [0, 460])
def test_a_missing_segment_of_a_queue_is_rebuilt(tmp_path: Path, segment: int) -> None:
    store = batch_store(tmp_path)
    for number in range(25):
        append_batch(store, b"%d" % number, b"and")
    store.close()
    (tmp_path / "batchconsumequeue" / TOPIC / "0" / f"{segment:020d}").unlink()
    store = batch_store(tmp_path)
    offset, seen = store.min_offset(TOPIC, 0), []
    while offset < store.max_offset(TOPIC, 0):
        read = store.read_queue(TOPIC, 0, offset, 1, 1 << 20)
        seen += [message.queue_offset for message in decode_records(b"".join(read.chunks))]
        assert read.next_offset > offset
        offset = read.next_offset
    assert seen == list(range(0, 50, 2))


@pytest.mark.parametrize("disk", [None, RestartedMachineDisk()])
@pytest.mark.parametrize("derived_at", [(), (4,), range(30)])
def test_a_process_that_dies_loses_nothing(
    tmp_path: Path, disk: RestartedMachineDisk | None, derived_at: tuple[int, ...]
) -> None:
    store = batch_store(tmp_path)
    for number in range(30):
        if number % 3:
            append_batch(store, b"%d" % number, b"x" * 50, b"y")
        else:
            store.append(draft(TOPIC, body=b"%d" % number), NOW_MS)
        if number in derived_at:
            store.dispatch()
    before = [(message.queue_offset, message.body) for message in unwrapped(store)]
    assert len(before) == 70
    store.kill()
    store = small_store(tmp_path, disk)  # the folder says what kind of topic it is
    assert [(message.queue_offset, message.body) for message in unwrapped(store)] == before
    assert append_batch(store, b"more", b"of it") == 70
    store.close()
    store = small_store(tmp_path)
    assert len(unwrapped(store)) == 72
    assert not (tmp_path / "consumequeue").exists()


def test_offsets_of_messages_lost_with_a_cut_log_are_not_reused(tmp_path: Path) -> None:
    store = batch_store(tmp_path)
    for number in range(5):
        append_batch(store, b"%d" % number, b"two")
    unit = store.unit(TOPIC, 0, 8)
    assert unit is not None
    store.flush()
    store.kill()
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.truncate(unit[0] + unit[1] - 1)
    store = batch_store(tmp_path)
    assert store.max_offset(TOPIC, 0) == 10
    assert append_batch(store, b"again") == 10
    assert [message.queue_offset for message in unwrapped(store)] == [*range(8), 10]


def test_removed_batch_queues_are_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = batch_store(tmp_path)
    store.append(draft(TOPIC, body=b"single"), NOW_MS)
    append_batch(store, b"a", b"b")
    store.close()
    for path in sorted((tmp_path / "batchconsumequeue").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (tmp_path / "batchconsumequeue").rmdir()
    store = batch_store(tmp_path)
    assert [message.body for message in unwrapped(store)] == [b"single", b"a", b"b"]
    assert append_batch(store, b"c") == 3
    assert "messages lost" not in caplog.text


@pytest.mark.parametrize(("dies", "is_lost"), [(False, True), (False, False), (True, False)])
def test_a_count_without_the_batch_flag_is_one_message_after_a_restart_too(
    tmp_path: Path, *, dies: bool, is_lost: bool
) -> None:
    store = batch_store(tmp_path)
    claim = draft(TOPIC, properties={"INNER_NUM": "5"})
    assert [store.append(claim, NOW_MS).queue_offset for _ in range(3)] == [0, 1, 2]
    store.kill() if dies else store.close()
    if is_lost:
        shutil.rmtree(tmp_path / "batchconsumequeue")
    store = batch_store(tmp_path)
    assert store.recovered is not None
    assert store.recovered.rebuilt_queues == is_lost
    assert store.append(claim, NOW_MS).queue_offset == 3
    assert [message.queue_offset for message in unwrapped(store)] == [0, 1, 2, 3]


def test_a_deleted_topic_may_be_created_again_with_the_other_queue_type(tmp_path: Path) -> None:
    store = batch_store(tmp_path)
    append_batch(store, b"a", b"b")
    store.delete_topic(TOPIC)
    assert list((tmp_path / "batchconsumequeue").iterdir()) == []
    assert store.max_offset(TOPIC, 0) == 0
    assert append_batch(store, b"c", b"d", b"e") == 0
    store.kill()
    store = batch_store(tmp_path)
    assert [message.body for message in unwrapped(store)] == [b"c", b"d", b"e"]
    store.delete_topic(TOPIC)
    store.close()
    store = small_store(tmp_path)
    store.append(draft(TOPIC), NOW_MS)
    store.dispatch()
    assert (tmp_path / "consumequeue" / TOPIC / "0").exists()


def test_an_existing_topic_keeps_its_queue_type(tmp_path: Path) -> None:
    """Neither broker opens a folder in which a topic has queues of both types."""
    store = small_store(tmp_path)
    store.append(draft(TOPIC), NOW_MS)
    store.close()
    store = batch_store(tmp_path)
    with pytest.raises(RecordError, match="is no batch topic"):
        append_batch(store, b"a", b"b")
    store.append(draft(TOPIC, queue_id=1), NOW_MS)
    store.close()
    assert not (tmp_path / "batchconsumequeue").exists()


@pytest.mark.parametrize("messages", [0, 32768])
def test_the_number_of_messages_in_a_batch_is_bounded(store: MessageStore, messages: int) -> None:
    with pytest.raises(RecordError, match="expected 1 to 32767"):
        store.append_inner_batch(draft(TOPIC), messages, NOW_MS)
    assert store.append(draft(TOPIC), NOW_MS).queue_offset == 0


@pytest.mark.parametrize("count", ["", "0", "-1", "32768", "many", "٣"])
def test_a_batch_flag_without_a_valid_count_counts_as_one_message(tmp_path: Path, count: str) -> None:
    store = batch_store(tmp_path)
    claim = draft(TOPIC, properties={"INNER_NUM": count} if count else {}, sys_flag=0xC0)
    assert [store.append(claim, NOW_MS).queue_offset for _ in range(3)] == [0, 1, 2]
    store.kill()
    store = batch_store(tmp_path)
    assert store.max_offset(TOPIC, 0) == 3
    assert store.append(claim, NOW_MS).queue_offset == 3


def test_properties_without_a_last_separator_get_one(store: MessageStore) -> None:
    wanted = msgspec.structs.replace(draft(TOPIC), raw_properties=b"K\x01v")
    position = store.append_inner_batch(wanted, 1, NOW_MS).log_position
    record = store.record_at(position)
    assert record is not None
    assert decode_record(record).properties == {"K": "v", "INNER_NUM": "1", "INNER_BASE": "0"}


@pytest.mark.parametrize("bit", [1, 2])
def test_a_unit_with_a_damaged_first_offset_hides_no_other_batch(tmp_path: Path, bit: int) -> None:
    store = batch_store(tmp_path)
    for number in range(0, 12, 2):
        append_batch(store, b"%d" % number, b"%d" % (number + 1))
    store.close()
    path = tmp_path / "batchconsumequeue" / TOPIC / "0" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    content[3 * UNIT.size + 35] ^= 1 << bit  # 6 becomes 4 or 2: the unit claims offsets of a batch before it
    path.write_bytes(content)
    again = batch_store(tmp_path)
    found: set[bytes] = set()
    for offset in range(12):
        read = again.read_queue(TOPIC, 0, offset, 1, 1 << 20)
        found |= {message.body for message in unwrap_batches(decode_records(b"".join(read.chunks)))}
    assert found >= {b"%d" % number for number in range(12) if number not in (6, 7)}
    again.close()


def filled_queue(folder: Path, count: int) -> BatchQueue:
    """Return a queue of batches of three messages, in files of ten units."""
    queue = BatchQueue(folder / "0", TOPIC, 0, 10, NoSyncDisk(), OpenSegments(8))
    for row in range(count):
        queue.add(row * 3, row * 100, 100, 0, NOW_MS, 3)
    queue.write()
    return queue


def reopened_queue(folder: Path) -> BatchQueue:
    queue = BatchQueue(folder / "0", TOPIC, 0, 10, NoSyncDisk(), OpenSegments(8))
    queue.load()
    return queue


def damage(queue: BatchQueue, row: int, first: int, messages: int) -> None:
    queue.segments[row // 10].write(row % 10 * UNIT.size + 28, struct.pack(">qh", first, messages))


@pytest.mark.parametrize("spans", [((1 << 40, 2), (0, 2)), ((0, 3), (0, 3)), ((7, 32767), (1 << 40, 2))])
@pytest.mark.parametrize("reopens", [True, False])
def test_two_damaged_units_hide_no_other_one(
    tmp_path: Path, spans: tuple[tuple[int, int], ...], *, reopens: bool
) -> None:
    """Wherever they are in the queue, and whatever they claim."""
    queue = filled_queue(tmp_path, 22)
    if reopens:
        queue.close()
        queue = reopened_queue(tmp_path)
    for rows in combinations(range(22), 2):
        for row, (first, messages) in zip(rows, spans, strict=True):
            damage(queue, row, first, messages)
        for row in set(range(22)) - {*rows}:
            assert queue.unit(row * 3 + 1) == (row * 100, 100, 0), rows
        for row in rows:
            damage(queue, row, row * 3, 3)
    queue.close()


@pytest.mark.parametrize("truncates", [False, True])
def test_a_new_message_is_found_behind_any_number_of_damaged_units(tmp_path: Path, *, truncates: bool) -> None:
    filled_queue(tmp_path, 25).close()
    queue = reopened_queue(tmp_path)
    if truncates:
        queue.truncate_to(2000)
    start, chance = queue.count, random.Random(3)
    for row in range(start):
        damage(queue, row, chance.randrange(200), chance.randrange(1, 100))
    for row in range(start, 30):
        queue.add(row * 3, row * 100, 100, 0, NOW_MS, 3)
    for _ in range(2):
        for offset in range(start * 3, 90):
            assert queue.unit(offset) == (offset // 3 * 100, 100, 0)
        queue.write()
    queue.close()


@pytest.mark.parametrize("truncates", [True, False])
def test_older_messages_are_found_whatever_end_a_damaged_last_unit_states(tmp_path: Path, *, truncates: bool) -> None:
    queue = filled_queue(tmp_path, 25)
    damage(queue, 24, 0, 1)
    queue.close()
    queue = reopened_queue(tmp_path)
    if truncates:
        queue.truncate_to(2000)
    for count in (queue.count, 26):
        for row in range(20):
            assert queue.unit(row * 3 + 1) == (row * 100, 100, 0), count
        queue.add(75, 2500, 100, 0, NOW_MS, 3)
    assert queue.unit(76) == (2500, 100, 0)
    queue.close()


def test_a_read_advances_past_several_damaged_units(tmp_path: Path, store: MessageStore) -> None:
    for number in range(9):
        append_batch(store, *[b"%d" % number] * 3)
    store.close()
    path = tmp_path / "batchconsumequeue" / TOPIC / "0" / f"{0:020d}"
    content = bytearray(path.read_bytes())
    for row, first, messages in ((3, 12, 9), (7, 9, 4)):
        struct.pack_into(">qh", content, row * UNIT.size + 28, first, messages)
    path.write_bytes(content)
    store = batch_store(tmp_path)
    for offset in range(store.min_offset(TOPIC, 0), store.max_offset(TOPIC, 0)):
        for count_max in range(1, 32):
            assert store.read_queue(TOPIC, 0, offset, count_max, 1 << 20).next_offset > offset
    store.close()
