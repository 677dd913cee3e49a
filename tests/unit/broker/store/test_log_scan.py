"""A scan of the log skips damage and finds every intact record behind it."""

import random
from pathlib import Path

import msgspec
import pytest

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.files.segment import OpenSegments
from skyroute.broker.store.recovery import log_scan
from skyroute.broker.store.recovery.damage import DamagedRange
from skyroute.broker.store.recovery.log_scan import BAD_BODY, MISSING_FILE, SEARCH_CRC_BYTES, SEARCH_CRC_RATIO, scan_log
from skyroute.files.disk import Disk
from skyroute.message.crc import crc32
from skyroute.message.host import encode_host
from skyroute.message.message import StoredMessage
from skyroute.message.record import encode_record
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


def scan(folder: Path) -> tuple[list[int], list[DamagedRange]]:
    """Return the positions of intact records, and the damage."""
    log = CommitLog(folder / "commitlog", SMALL.log_segment_bytes, Disk(), OpenSegments())
    log.load()
    found = list(scan_log(log, log.start))
    log.close()
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


def test_a_damaged_body_is_reported_with_its_message(tmp_path: Path) -> None:
    victim = write_log(tmp_path)[11]
    change(tmp_path, victim.log_position + 90, b"?")
    (damaged,) = scan(tmp_path)[1]
    assert damaged.reason == BAD_BODY
    assert damaged.lost is not None
    assert (damaged.lost.topic, damaged.lost.queue_id, damaged.lost.queue_offset) == ("T", 2, victim.queue_offset)


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
