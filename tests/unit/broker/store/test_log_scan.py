"""A scan of the log skips damage and finds every intact record behind it."""

import random
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.files import sparse
from skyroute.broker.store.files.segment import OpenSegments
from skyroute.broker.store.recovery import log_scan
from skyroute.broker.store.recovery.damage import DamagedRange
from skyroute.broker.store.recovery.log_scan import (
    BAD_BODY,
    BAD_HEAD,
    MISSING_FILE,
    SEARCH_CRC_BYTES,
    SEARCH_CRC_RATIO,
    TORN,
    ZEROS,
    find_next_record,
    read_record,
    scan_log,
)
from skyroute.files.disk import Disk
from skyroute.message.crc import crc32
from skyroute.message.host import encode_host
from skyroute.message.layout import MAGIC_SEGMENT_END, MAGIC_V1, RECORD_BYTES_MIN
from skyroute.message.message import StoredMessage
from skyroute.message.record import encode_record, segment_end
from tests.support.disks import NOW_MS, SMALL, NoSyncDisk, draft, read_all, small_store


def write_log(folder: Path, count: int = 40) -> list[StoredMessage]:
    """Fill several segments; return the messages in order."""
    store = small_store(folder, NoSyncDisk())
    for number in range(count):
        made = draft("T", number % 3, b"%d " % number + b"x" * (number * 37 % 200), {"KEYS": f"k{number}"})
        if number % 5 == 0:
            made = msgspec.structs.replace(made, raw_born_host=encode_host("::1", 4000))
        store.append(made, NOW_MS + number)
    messages = sorted(
        (message for queue_id in range(3) for message in read_all(store, "T", queue_id)),
        key=lambda message: message.log_position,
    )
    store.close()
    return messages


@contextmanager
def opened(folder: Path) -> Generator[CommitLog]:
    log = CommitLog(folder / "commitlog", SMALL.log_segment_bytes, Disk(), OpenSegments())
    log.load()
    try:
        yield log
    finally:
        log.close()


def scan(folder: Path) -> tuple[list[int], list[DamagedRange]]:
    """Return the positions of intact records, and the damage."""
    with opened(folder) as log:
        found = list(scan_log(log, log.start))
    damaged = [each for each in found if isinstance(each, DamagedRange)]
    return [each[0] for each in found if not isinstance(each, DamagedRange)], damaged


def change(folder: Path, position: int, data: bytes) -> None:
    file = folder / "commitlog" / f"{position // 4096 * 4096:020d}"
    content = bytearray(file.read_bytes())
    content[position % 4096 : position % 4096 + len(data)] = data
    file.write_bytes(content)


def test_an_intact_log_has_no_damage(tmp_path: Path) -> None:
    messages = write_log(tmp_path)
    assert scan(tmp_path) == ([message.log_position for message in messages], [])


@pytest.mark.parametrize("byte", range(93))
def test_a_flipped_bit_in_any_byte_of_a_record_costs_at_most_that_record(tmp_path: Path, byte: int) -> None:
    messages = write_log(tmp_path)
    victim = messages[12]
    position = victim.log_position + byte
    record = encode_record(victim)
    change(tmp_path, position, bytes([record[byte] ^ 0x10]))
    found, damaged = scan(tmp_path)
    assert set(found) | {victim.log_position} == {message.log_position for message in messages}
    if damaged:
        assert [(each.position, each.size) for each in damaged] == [(victim.log_position, victim.record_bytes)]
        assert damaged[0].file.name == f"{victim.log_position // 4096 * 4096:020d}"


@pytest.mark.parametrize("number", [11, 15, 29])
def test_a_damaged_body_is_reported_with_its_message(tmp_path: Path, number: int) -> None:
    victim = write_log(tmp_path)[number]
    topic_at = victim.record_bytes - len(victim.raw_properties) - len("T") - 2
    change(tmp_path, victim.log_position + topic_at - 2, b"?")  # the last byte of the body
    (damaged,) = scan(tmp_path)[1]
    assert damaged.reason == BAD_BODY
    assert damaged.lost == (
        *(victim.log_position, victim.record_bytes, "T", victim.queue_id, victim.queue_offset),
        *(victim.sys_flag, victim.stored_at_ms, victim.raw_properties),
    )


def test_a_damaged_topic_is_reported_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    victim = write_log(tmp_path)[12]
    topic_at = victim.record_bytes - len(victim.raw_properties) - len("T") - 2
    change(tmp_path, victim.log_position + topic_at, b"\xff")
    change(tmp_path, victim.log_position + 88, b"?")
    (damaged,) = scan(tmp_path)[1]
    assert damaged.lost is not None
    assert damaged.lost.topic == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(("topic", "properties", "zeros"), [("T", {"KEYS": "k"}, 1), ("TT", {}, 3)])
def test_a_last_record_without_its_end_is_torn(
    tmp_path: Path, topic: str, properties: dict[str, str], zeros: int
) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    store.append(draft(topic, 0, b"body", properties), NOW_MS)
    stored = store.append(draft(topic, 0, b"body", properties), NOW_MS)
    store.close()
    end = stored.log_position + stored.record_bytes
    assert scan(tmp_path)[1] == []
    change(tmp_path, end - zeros, bytes(zeros))
    (damaged,) = scan(tmp_path)[1]
    assert (damaged.position, damaged.size, damaged.reason) == (stored.log_position, stored.record_bytes, TORN)
    assert damaged.lost is not None


def last_of_first_file(messages: list[StoredMessage]) -> int:
    return max(number for number, message in enumerate(messages) if message.log_position < 4096)


@pytest.mark.parametrize("byte", range(8))
def test_a_damaged_size_or_magic_costs_one_record_at_the_end_and_the_start_of_a_file_too(
    tmp_path: Path, byte: int
) -> None:
    messages = write_log(tmp_path)
    last = last_of_first_file(messages)
    for victim in messages[last : last + 2]:
        change(tmp_path, victim.log_position + byte, bytes([encode_record(victim)[byte] ^ 0x01]))
    found, damaged = scan(tmp_path)
    assert [(each.position, each.size, each.reason) for each in damaged] == [
        (victim.log_position, victim.record_bytes, BAD_HEAD) for victim in messages[last : last + 2]
    ]
    assert found == [each.log_position for each in messages[:last] + messages[last + 2 :]]


@pytest.mark.parametrize(("byte", "reason"), [(b"\0", ZEROS), (b"\xff", BAD_HEAD)])
def test_damage_up_to_the_end_of_a_file_is_one_range(tmp_path: Path, byte: bytes, reason: str) -> None:
    messages = write_log(tmp_path)
    last = last_of_first_file(messages)
    position = messages[last].log_position
    change(tmp_path, position, byte * (4096 - position))
    found, damaged = scan(tmp_path)
    assert damaged == [DamagedRange(position, 4096 - position, tmp_path / "commitlog" / f"{0:020d}", reason)]
    assert found == [each.log_position for each in messages[:last] + messages[last + 1 :]]


@pytest.mark.parametrize("chunk_bytes", [3, 4, 5, 7, 64, 1 << 20])
def test_the_next_record_is_found_wherever_the_search_is_divided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    messages = write_log(tmp_path)
    change(tmp_path, messages[12].log_position, bytes(88))
    monkeypatch.setattr(sparse, "CHUNK_BYTES", chunk_bytes)
    with opened(tmp_path) as log:
        assert find_next_record(log.segments[0], messages[12].log_position) == messages[13].log_position


@pytest.mark.parametrize("at", [0, 84], ids=["size", "body"])
def test_a_damaged_length_that_leads_to_a_later_record_costs_one_record(tmp_path: Path, at: int) -> None:
    """All records have 128 bytes, so one flipped bit adds the size of two further ones."""
    store = small_store(tmp_path, NoSyncDisk())
    positions = [store.append(draft(body=bytes(35) + b"."), NOW_MS).log_position for _ in range(9)]
    record = store.record_at(positions[3])
    store.close()
    assert record is not None
    assert len(record) == 128
    length = int.from_bytes(record[at : at + 4], "big") + 256
    change(tmp_path, positions[3] + at, length.to_bytes(4, "big"))
    found, damaged = scan(tmp_path)
    assert found == positions[:3] + positions[4:]
    assert [(each.position, each.size, each.reason) for each in damaged] == [(positions[3], 128, BAD_HEAD)]


def test_the_search_behind_an_intact_record_finds_a_later_one(tmp_path: Path) -> None:
    messages = write_log(tmp_path)
    change(tmp_path, messages[13].log_position, bytes(88))
    with opened(tmp_path) as log:
        assert find_next_record(log.segments[0], messages[12].log_position) == messages[14].log_position


def test_a_damaged_length_leads_to_no_earlier_record(tmp_path: Path) -> None:
    _, _, damaged, following = write_records(tmp_path, 200, RECORD_BYTES_MIN, 200, 200)
    change(tmp_path, damaged, (-RECORD_BYTES_MIN).to_bytes(4, "big", signed=True))
    with opened(tmp_path) as log:
        assert find_next_record(log.segments[0], damaged) == following


def test_a_damaged_body_behind_the_smallest_record_is_reported_by_itself(tmp_path: Path) -> None:
    write_records(tmp_path, RECORD_BYTES_MIN, 200, 200)
    change(tmp_path, 4, b"?")
    change(tmp_path, RECORD_BYTES_MIN + 88, b"?")
    assert [(each.position, each.size, each.reason) for each in scan(tmp_path)[1]] == [
        (0, RECORD_BYTES_MIN, BAD_HEAD),
        (RECORD_BYTES_MIN, 200, BAD_BODY),
    ]


def test_a_single_byte_before_a_record_is_skipped(tmp_path: Path) -> None:
    messages = write_log(tmp_path)
    first, second = messages[12], messages[13]
    moved = with_size(encode_record(second), first.log_position + 1, first.record_bytes + second.record_bytes - 1)
    change(tmp_path, first.log_position, b"\xff" + moved)
    found, damaged = scan(tmp_path)
    assert [(each.position, each.size, each.reason) for each in damaged] == [(first.log_position, 1, BAD_HEAD)]
    assert first.log_position + 1 in found


def test_a_damaged_body_behind_a_damaged_header_is_reported_by_itself(tmp_path: Path) -> None:
    messages = write_log(tmp_path)
    first, second = messages[12:14]
    change(tmp_path, first.log_position + 4, b"?")
    change(tmp_path, second.log_position + 88, b"?")
    assert [(each.position, each.size, each.reason) for each in scan(tmp_path)[1]] == [
        (first.log_position, first.record_bytes, BAD_HEAD),
        (second.log_position, second.record_bytes, BAD_BODY),
    ]


def test_bytes_like_a_magic_are_no_record(tmp_path: Path) -> None:
    """Not even if the rest of the header is zero: so is the checksum of an empty body."""
    messages = write_log(tmp_path)
    start = messages[12].log_position
    change(tmp_path, start, bytes(messages[13].log_position - start))
    for at in (4, 14, 30):
        change(tmp_path, start + at, MAGIC_V1.to_bytes(4, "big"))
    with opened(tmp_path) as log:
        assert find_next_record(log.segments[0], start) == messages[13].log_position


def test_a_magic_too_close_to_the_end_of_a_file_is_no_record(tmp_path: Path) -> None:
    write_records(tmp_path, 3900)
    for at in (4, 3904):  # of the record, and of the end of the file
        change(tmp_path, at, b"?")
    for at in (4012, 4013, 4060, 4093):
        change(tmp_path, at, MAGIC_V1.to_bytes(4, "big")[: 4096 - at])
    with opened(tmp_path) as log:
        assert find_next_record(log.segments[0], 0) is None


@pytest.mark.parametrize("topic", ["t" * 127, "t" * 128])
def test_a_damaged_body_of_a_message_with_a_long_topic_is_reported_with_it(tmp_path: Path, topic: str) -> None:
    """Longer topics have two bytes for their length, and another magic."""
    store = small_store(tmp_path, NoSyncDisk())
    stored = [store.append(draft(topic), NOW_MS) for _ in range(2)]
    store.close()
    change(tmp_path, stored[0].log_position + 88, b"?")
    (damaged,) = scan(tmp_path)[1]
    assert damaged.reason == BAD_BODY
    assert damaged.lost is not None
    assert (damaged.lost.topic, damaged.lost.size) == (topic, stored[0].record_bytes)


def test_a_single_byte_in_the_last_file_is_damage(tmp_path: Path) -> None:
    """The file before it is then not the last one, and the zeros at its end are damage, too."""
    messages = write_log(tmp_path)
    end = messages[-1].log_position + messages[-1].record_bytes
    stop = end + -end % 4096
    for content, damage in (
        (bytes(4096), []),
        (b"?".ljust(4096, b"\0"), [(end, stop, ZEROS), (stop, stop + 1, BAD_HEAD)]),
    ):
        (tmp_path / "commitlog" / f"{stop:020d}").write_bytes(content)
        found, damaged = scan(tmp_path)
        assert [(each.position, each.end, each.reason) for each in damaged] == damage
        assert found == [message.log_position for message in messages]


def test_an_end_mark_counts_only_if_it_reaches_the_end_of_the_file(tmp_path: Path) -> None:
    messages = write_log(tmp_path)
    victim = messages[last_of_first_file(messages)]
    end = victim.log_position + victim.record_bytes
    change(tmp_path, victim.log_position + 4, b"?")
    with opened(tmp_path) as log:
        assert find_next_record(log.segments[0], victim.log_position) == end
    change(tmp_path, end, (4096 - end + 1).to_bytes(4, "big"))
    with opened(tmp_path) as log:
        assert find_next_record(log.segments[0], victim.log_position) is None


@pytest.mark.parametrize("left", range(9))
def test_a_record_may_end_anywhere_before_the_end_of_a_file(tmp_path: Path, left: int) -> None:
    """There may be too few bytes left for an end mark, or just enough."""
    store = small_store(tmp_path, NoSyncDisk())
    stored = store.append(draft("T", 0, b"body"), NOW_MS)
    store.close()
    content = bytearray(4096)
    record = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[: stored.record_bytes]
    at, size = 0, 4096 - left
    content[:size] = with_size(record, at, size)
    if left == 8:
        content[size:] = bytes((0, 0, 0, 8)) + MAGIC_SEGMENT_END.to_bytes(4, "big")
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(content)
    with opened(tmp_path) as log:
        found = read_record(log.segments[0], 0)
        assert found is not None
        assert found.size == size
    change(tmp_path, 4, b"?")  # its magic
    with opened(tmp_path) as log:
        assert find_next_record(log.segments[0], 0) == (size if left == 8 else None)


def test_a_record_ends_in_its_file(tmp_path: Path) -> None:
    """Its lengths agree, but the last byte would be in the next file."""
    (start,) = write_records(tmp_path, 4096)
    change(tmp_path, start, (4097).to_bytes(4, "big"))
    change(tmp_path, 4094, (1).to_bytes(2, "big"))  # the length of the properties
    with opened(tmp_path) as log:
        assert read_record(log.segments[0], start) is None


def test_a_negative_body_length_is_no_record(tmp_path: Path) -> None:
    """Also if all lengths agree: its first byte then stands for the length of the topic."""
    (start,) = write_records(tmp_path, 400)
    change(tmp_path, start, (342).to_bytes(4, "big"))
    change(tmp_path, start + 84, (-4).to_bytes(4, "big", signed=True))
    assert 84 + 1 + 0xFF + 2 == 342
    with opened(tmp_path) as log:
        assert read_record(log.segments[0], start) is None


def write_records(folder: Path, *sizes: int) -> list[int]:
    """Write one file of adjacent records with neither topic nor properties; return their positions."""
    store = small_store(folder, NoSyncDisk())
    store.append(draft(body=b""), NOW_MS)
    template = (store.record_at(0) or b"")[:88] + bytes(3)
    store.close()
    content, positions = b"", []
    for size in sizes:
        positions.append(len(content))
        content += with_size(template, len(content), size)
    content += segment_end(4096 - len(content)) if len(content) < 4096 else b""
    (folder / "commitlog" / f"{0:020d}").write_bytes(content.ljust(4096, b"\0"))
    return positions


def with_size(record: bytes, position: int, size: int) -> bytes:
    """Return a record with a body of zeros, of this size and at this position."""
    head, rest = bytearray(record[:88]), record[88 + int.from_bytes(record[84:88], "big") :]
    body = bytes(size - 88 - len(rest))
    head[0:4] = size.to_bytes(4, "big")
    head[8:12] = (crc32(body) & 0x7FFFFFFF).to_bytes(4, "big")
    head[28:36] = position.to_bytes(8, "big")
    head[84:88] = len(body).to_bytes(4, "big")
    return bytes(head) + body + rest


def test_the_smallest_record_has_neither_body_nor_topic_nor_properties(tmp_path: Path) -> None:
    messages = write_log(tmp_path)
    victim = messages[12]
    smallest = bytearray(with_size(encode_record(messages[1])[:88] + bytes(3), victim.log_position, RECORD_BYTES_MIN))
    smallest[84:88] = bytes(4)
    change(tmp_path, victim.log_position, bytes(smallest))
    with opened(tmp_path) as log:
        found = read_record(log.segments[0], victim.log_position)
    assert found is not None
    assert (found.size, found.topic, found.raw_properties) == (RECORD_BYTES_MIN, "", b"")


def test_a_negative_size_is_no_record(tmp_path: Path) -> None:
    """Also if it is just that of a record whose fields are outside the file."""
    victim = write_log(tmp_path)[12]
    change(tmp_path, victim.log_position, (-1 - victim.log_position).to_bytes(4, "big", signed=True))
    change(tmp_path, victim.log_position + 84, (1 << 20).to_bytes(4, "big"))
    with opened(tmp_path) as log:
        assert read_record(log.segments[0], victim.log_position) is None


def test_zeros_and_noise_damage_only_the_records_they_touch(tmp_path: Path) -> None:
    chance = random.Random(17)
    messages = write_log(tmp_path / "whole")
    end = messages[-1].log_position + messages[-1].record_bytes
    for turn in range(60):
        folder = tmp_path / str(turn)
        (folder / "commitlog").mkdir(parents=True)
        for file in (tmp_path / "whole" / "commitlog").iterdir():
            (folder / "commitlog" / file.name).write_bytes(file.read_bytes())
        position, size = chance.randrange(end), chance.randrange(1, 900)
        size = min(size, 4096 - position % 4096, end - position)
        change(folder, position, bytes(size) if turn % 2 else chance.randbytes(size))
        found, damaged = scan(folder)
        touched = {
            message.log_position
            for message in messages
            if message.log_position < position + size and position < message.log_position + message.record_bytes
        }
        assert {message.log_position for message in messages} - set(found) <= touched, turn
        assert set(found) <= {message.log_position for message in messages}
        assert (
            sum(each.size for each in damaged)
            <= sum(message.record_bytes for message in messages if message.log_position in touched) + 4096
        )


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_file_is_skipped(tmp_path: Path, number: int) -> None:
    messages = write_log(tmp_path)
    (tmp_path / "commitlog" / f"{number * 4096:020d}").unlink()
    found, damaged = scan(tmp_path)
    assert found == [each.log_position for each in messages if each.log_position // 4096 != number]
    assert [(each.position, each.size, each.reason) for each in damaged] == (
        [(4096, 4096, MISSING_FILE)] if number == 1 else []
    )


@pytest.mark.parametrize(("distance", "found"), [(290, 1290), (291, 2500)])
def test_past_the_bound_a_record_counts_as_intact_if_another_one_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distance: int, found: int
) -> None:
    """The search meets three headers with a wrong checksum, then an intact record.

    It computes the checksum of the first body, of 300 bytes. At distance 290, these are all that it may compute.
    """
    monkeypatch.setattr(log_scan, "SEARCH_CRC_BYTES", 10)
    monkeypatch.setattr(log_scan, "SEARCH_CRC_RATIO", 1)
    write_records(tmp_path, 1000, 91, 2909)
    template = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[1000:1091]
    change(tmp_path, 1000, bytes(3000))
    second = 1000 + distance
    for position, size in ((1100, 391), (second, 91), (second + 91, 91), (2500, 391)):
        change(tmp_path, position, with_size(template, position, size))
        if position != 2500:
            change(tmp_path, position + 8, (1).to_bytes(4, "big"))
    with opened(tmp_path) as log:
        assert find_next_record(log.segments[0], 1000) == found


def test_a_body_made_of_nested_headers_does_not_slow_down_the_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each nested header is consistent and has the same long body, with a wrong checksum."""
    segment_bytes = 1 << 22
    store = small_store(tmp_path, NoSyncDisk(), log_segment_bytes=segment_bytes)
    for body in (b"first", bytes(3 << 20), b"last"):
        store.append(draft(body=body), NOW_MS)
    _, victim, last = read_all(store)
    store.close()
    step = 88
    content = bytearray(3 << 20)
    template = encode_record(victim)
    for at in range(0, len(content) - step, step):
        position = victim.log_position + 88 + at
        size = last.log_position - position
        head = bytearray(template[:88])
        head[0:4] = size.to_bytes(4, "big")
        head[28:36] = position.to_bytes(8, "big")
        head[84:88] = (size - (victim.record_bytes - (3 << 20))).to_bytes(4, "big")
        content[at : at + 88] = head
    file = tmp_path / "commitlog" / f"{0:020d}"
    raw = bytearray(file.read_bytes())
    raw[victim.log_position + 88 : victim.log_position + 88 + len(content)] = content
    raw[victim.log_position : victim.log_position + 88] = bytes(88)
    file.write_bytes(raw)
    log = CommitLog(tmp_path / "commitlog", segment_bytes, Disk(), OpenSegments())
    log.load()
    checked_bytes = 0

    def count(body: bytes) -> int:
        nonlocal checked_bytes
        checked_bytes += len(body)
        return crc32(body)

    monkeypatch.setattr(log_scan, "crc32", count)
    found = list(scan_log(log, 0))
    assert checked_bytes <= SEARCH_CRC_BYTES + (SEARCH_CRC_RATIO + 1) * segment_bytes
    assert isinstance(found[1], DamagedRange)
    assert not isinstance(found[-1], DamagedRange)
    assert found[-1][0] == last.log_position
