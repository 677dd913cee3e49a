"""A store that is filled with the bytes of another store's log."""

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from skyroute.broker.store.draft import Draft
from skyroute.broker.store.errors import ForeignLogError
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.replicated_log import DISPATCHED_MAPPED_MAX
from skyroute.broker.store.settings import StoreSettings
from skyroute.message.host import encode_host
from tests.support.disks import KilledError, KillingDisk

FILE_BYTES = 4096
SETTINGS = StoreSettings(
    log_segment_bytes=FILE_BYTES, queue_segment_units=64, index_slots=64, index_entries=1000, index_process=False
)
HOST = encode_host("127.0.0.1", 1)
NOW_MS = 1_800_000_000_000


OPENED: list[MessageStore] = []


def open_store(folder: Path, *, follows: bool = True, settings: StoreSettings = SETTINGS) -> MessageStore:
    store = MessageStore.open(folder, settings, now_ms=NOW_MS, follows=follows)
    OPENED.append(store)
    return store


def put(store: MessageStore, number: int, *, topic: str = "Orders", queue_id: int | None = None) -> None:
    queue_id = number % 2 if queue_id is None else queue_id
    body = b"%06d" % number * 20
    raw_properties = f"KEYS\x01key-{number}\x02".encode()
    store.append(Draft(topic, queue_id, body, raw_properties, NOW_MS, HOST, HOST), NOW_MS + number)


def log_bytes(store: MessageStore, start: int | None = None, end: int | None = None) -> bytes:
    pieces, position = [], store.min_position if start is None else start
    end = store.max_position if end is None else end
    while position < end:
        found = store.log_range(position, end - position)
        assert found is not None
        descriptor, offset, size = found
        pieces.append(os.pread(descriptor, size, offset))
        position += size
    return b"".join(pieces)


def dispatch(store: MessageStore) -> set[tuple[str, int]]:
    arrived: set[tuple[str, int]] = set()
    more = True
    while more:
        found, more = store.dispatch_raw()
        arrived |= set(found)
    return arrived


def bodies(store: MessageStore, topic: str = "Orders") -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for queue_id in store.queue_ids(topic):
        offset, records = store.min_offset(topic, queue_id), b""
        while offset < store.max_offset(topic, queue_id):
            read = store.read_queue(topic, queue_id, offset, 10_000, 1 << 30)
            records += b"".join(bytes(chunk) for chunk in read.chunks)
            offset = read.next_offset
        found[queue_id] = records
    return found


@pytest.fixture(autouse=True)
def _close_stores() -> Iterator[None]:
    """Close the stores that a test leaves open: `select`, which other tests use, refuses descriptors above 1,024."""
    yield
    while OPENED:
        OPENED.pop().kill()


@pytest.fixture
def master(tmp_path: Path) -> MessageStore:
    store = open_store(tmp_path / "master", follows=False)
    for number in range(60):
        put(store, number)
    assert store.max_position > 3 * FILE_BYTES
    return store


def test_a_copy_made_of_pieces_cut_anywhere_has_the_same_log_queues_and_keys(
    master: MessageStore, tmp_path: Path
) -> None:
    slave = open_store(tmp_path / "slave")
    content, position, cuts = log_bytes(master), 0, random.Random(7)
    while position < len(content):
        piece = content[position : position + cuts.randrange(1, 700)]
        slave.append_raw(position, piece)
        position += len(piece)
        dispatch(slave)
    assert log_bytes(slave) == content
    assert bodies(slave) == bodies(master)
    assert slave.find_by_key("Orders", "key-17", 10, 0, 1 << 60).positions == (
        master.find_by_key("Orders", "key-17", 10, 0, 1 << 60).positions
    )
    slave.close()
    again = open_store(tmp_path / "slave", follows=False)
    put(again, 60)
    put(master, 60)
    assert log_bytes(again) == log_bytes(master)


def test_a_copy_may_begin_with_a_later_file(master: MessageStore, tmp_path: Path) -> None:
    slave = open_store(tmp_path / "slave")
    slave.append_raw(2 * FILE_BYTES, log_bytes(master, 2 * FILE_BYTES))
    assert dispatch(slave) == {("Orders", 0), ("Orders", 1)}
    assert slave.min_position == 2 * FILE_BYTES
    for queue_id in (0, 1):
        assert slave.max_offset("Orders", queue_id) == master.max_offset("Orders", queue_id)
        assert slave.min_offset("Orders", queue_id) > 0
    assert sorted(path.name for path in (tmp_path / "slave" / "commitlog").iterdir())[0] == f"{2 * FILE_BYTES:020d}"


@pytest.mark.parametrize("missing", [1, 3, 9, 30, 100, 150])
def test_a_partial_record_survives_a_clean_restart_and_is_completed(
    master: MessageStore, tmp_path: Path, missing: int
) -> None:
    content = log_bytes(master)
    slave = open_store(tmp_path / "slave")
    slave.append_raw(0, content[:-missing])
    dispatch(slave)
    assert slave.whole_end < slave.max_position
    slave.close()

    slave = open_store(tmp_path / "slave")
    assert slave.max_position == len(content) - missing
    assert log_bytes(slave) == content[:-missing]
    slave.append_raw(len(content) - missing, content[-missing:])
    dispatch(slave)
    assert slave.whole_end == slave.max_position
    assert bodies(slave) == bodies(master)


@pytest.mark.parametrize("queue_id", [0, 1])
def test_a_partial_record_survives_two_restarts_and_lost_queues(
    master: MessageStore, tmp_path: Path, queue_id: int
) -> None:
    """The partial record is of queue 1."""
    content = log_bytes(master)
    slave = open_store(tmp_path / "slave")
    slave.append_raw(0, content[:-2])
    dispatch(slave)
    slave.close()
    for path in (tmp_path / "slave" / "consumequeue" / "Orders" / str(queue_id)).iterdir():
        path.unlink()
    slave = open_store(tmp_path / "slave")
    assert [slave.max_offset("Orders", queue_id) for queue_id in (0, 1)] == [30, 29]
    assert slave.damage.is_empty
    slave.close()
    slave = open_store(tmp_path / "slave")
    slave.append_raw(len(content) - 2, content[-2:])
    dispatch(slave)
    assert bodies(slave) == bodies(master)
    assert slave.damage.is_empty


def test_after_a_crash_the_log_ends_with_its_last_whole_record(master: MessageStore, tmp_path: Path) -> None:
    content = log_bytes(master)
    slave = open_store(tmp_path / "slave")
    slave.append_raw(0, content[:-2])
    dispatch(slave)
    whole_end = slave.whole_end
    slave.kill()
    slave = open_store(tmp_path / "slave")
    assert slave.max_position == slave.whole_end == whole_end
    slave.append_raw(whole_end, content[whole_end:])
    dispatch(slave)
    assert bodies(slave) == bodies(master)


def test_a_store_that_no_longer_follows_cuts_off_a_partial_record(master: MessageStore, tmp_path: Path) -> None:
    content = log_bytes(master)
    slave = open_store(tmp_path / "slave")
    slave.append_raw(0, content[:-2])
    dispatch(slave)
    whole_end = slave.whole_end
    slave.close()
    store = open_store(tmp_path / "slave", follows=False)
    assert store.max_position == whole_end
    (cut,) = store.damage.cuts
    assert cut.kept_in.read_bytes() == content[whole_end:-2]
    put(store, 59)
    assert log_bytes(store) == content


def test_bytes_that_do_not_continue_the_log_are_refused(master: MessageStore, tmp_path: Path) -> None:
    slave = open_store(tmp_path / "slave")
    with pytest.raises(ForeignLogError, match="inside a file of 4096 bytes"):
        slave.append_raw(100, b"x")
    slave.append_raw(0, log_bytes(master, 0, 500))
    with pytest.raises(ForeignLogError, match="bytes at 400 do not continue a log that ends at 500"):
        slave.append_raw(400, b"x")
    assert log_bytes(slave) == log_bytes(master, 0, 500)


def test_a_log_with_files_of_another_size_is_refused(master: MessageStore, tmp_path: Path) -> None:
    other = StoreSettings(log_segment_bytes=3000, queue_segment_units=64, index_slots=64, index_entries=1000)
    slave = open_store(tmp_path / "slave", settings=other)
    slave.append_raw(0, log_bytes(master))
    with pytest.raises(ForeignLogError, match="set mappedFileSizeCommitLog to the master's value"):
        dispatch(slave)


def test_a_damaged_record_of_the_master_is_skipped(master: MessageStore, tmp_path: Path) -> None:
    content = bytearray(log_bytes(master))
    second = int.from_bytes(content[:4], "big")
    content[second + 100] ^= 0xFF
    third = second + int.from_bytes(content[second : second + 4], "big")
    content[third + 4] ^= 0xFF
    slave = open_store(tmp_path / "slave")
    slave.append_raw(0, bytes(content))
    dispatch(slave)
    assert log_bytes(slave) == content
    assert slave.max_offset("Orders", 0) == master.max_offset("Orders", 0)
    assert slave.max_offset("Orders", 1) == master.max_offset("Orders", 1)


@pytest.mark.parametrize("restarts", [True, False])
def test_records_behind_damage_stay_when_a_slave_becomes_master(
    master: MessageStore, tmp_path: Path, *, restarts: bool
) -> None:
    content = bytearray(log_bytes(master))
    last_file = len(content) - len(content) % FILE_BYTES
    size = int.from_bytes(content[last_file : last_file + 4], "big")
    content[last_file : last_file + 100] = bytes(100)  # its bytes and its lengths
    slave = open_store(tmp_path / "slave")
    slave.append_raw(0, bytes(content[: last_file + size]))
    dispatch(slave)
    slave.append_raw(last_file + size, bytes(content[last_file + size :]))
    dispatch(slave)
    assert slave.whole_end == last_file, "more bytes may complete it"
    if restarts:
        slave.close()
        slave = open_store(tmp_path / "slave", follows=False)
    else:
        slave.finish_raw(NOW_MS)
    assert log_bytes(slave) == content
    assert slave.max_offset("Orders", 0) == master.max_offset("Orders", 0)
    assert slave.max_offset("Orders", 1) == master.max_offset("Orders", 1)
    put(slave, 60)
    slave.close()


@pytest.mark.parametrize("cut", [0, 1, 250, FILE_BYTES, FILE_BYTES + 700, 3 * FILE_BYTES + 40])
def test_a_truncated_store_continues_as_if_the_rest_had_never_been(
    master: MessageStore, tmp_path: Path, cut: int
) -> None:
    content = log_bytes(master)
    slave = open_store(tmp_path / "slave")
    slave.append_raw(0, content)
    dispatch(slave)
    slave.flush()
    cuts = slave.truncate_to(cut, NOW_MS)
    for each in cuts:
        kept = each.kept_in.read_bytes()
        assert kept == content[each.position : each.position + len(kept)]
    assert cuts[0].position == cut
    assert cuts[-1].position + cuts[-1].size == len(content)
    assert slave.max_position == cut
    assert slave.whole_end <= cut
    assert log_bytes(slave) == content[:cut]
    slave.append_raw(cut, content[cut:])
    dispatch(slave)
    assert bodies(slave) == bodies(master)
    slave.close()
    slave = open_store(tmp_path / "slave")
    assert bodies(slave) == bodies(master)
    assert log_bytes(slave) == content


@pytest.mark.parametrize("crashes", [True, False])
def test_a_truncated_store_keeps_only_the_rest_after_a_restart(
    master: MessageStore, tmp_path: Path, crashes: bool
) -> None:
    content = log_bytes(master)
    slave = open_store(tmp_path / "slave")
    slave.append_raw(0, content)
    dispatch(slave)
    slave.flush()
    boundary = FILE_BYTES + int.from_bytes(content[FILE_BYTES : FILE_BYTES + 4], "big")
    slave.truncate_to(boundary, NOW_MS)
    ends = {queue: slave.max_offset("Orders", queue) for queue in (0, 1)}
    if crashes:
        slave.kill()
    else:
        slave.close()
    slave = open_store(tmp_path / "slave", follows=False)
    assert slave.max_position == boundary
    assert {queue: slave.max_offset("Orders", queue) for queue in (0, 1)} == ends
    assert slave.find_by_key("Orders", "key-59", 10, 0, 1 << 60).positions == []
    put(slave, sum(ends.values()))
    put(slave, sum(ends.values()) + 1)
    assert log_bytes(slave) == content[: slave.max_position]


def test_a_slave_killed_while_it_cuts_its_log_has_the_messages_of_its_new_master(
    master: MessageStore, tmp_path: Path
) -> None:
    """Whichever change of a file is the last one, the queues get the new master's messages at their offsets."""
    new_master = open_store(tmp_path / "new-master", follows=False)
    for number in range(31):
        put(new_master, number)
    boundary = new_master.max_position
    for number in range(60, 110):
        put(new_master, number, queue_id=0 if number % 3 else 1)
    content = log_bytes(new_master)
    assert log_bytes(master)[:boundary] == content[:boundary]
    settings = replace(SETTINGS, queue_segment_units=8)
    dies_at, died = 0, True
    while died:
        dies_at += 1
        disk = KillingDisk(1 << 30)
        slave = MessageStore.open(tmp_path / f"{dies_at}", settings, now_ms=NOW_MS, disk=disk, follows=True)
        slave.append_raw(0, log_bytes(master))
        dispatch(slave)
        disk.fail_at = disk.calls + dies_at
        try:
            slave.truncate_to(boundary, NOW_MS)
            died = False
        except KilledError:
            pass
        slave.kill()
        slave = open_store(tmp_path / f"{dies_at}", settings=settings)
        slave.truncate_to(boundary, NOW_MS)
        slave.append_raw(slave.max_position, content[slave.max_position :])
        dispatch(slave)
        assert bodies(slave) == bodies(new_master), dies_at
        ends = [(each.max_offset("Orders", 0), each.max_offset("Orders", 1)) for each in (slave, new_master)]
        assert ends[0] == ends[1], dies_at
        slave.kill()
    assert dies_at > 20


def resident_bytes(folder: Path) -> int:
    """Return the bytes of mapped files of a folder that are in this process's memory."""
    found, is_here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:
            is_here = str(folder) in line
        elif is_here and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells the pages of a mapping")
def test_a_slave_releases_the_pages_of_dispatched_records(tmp_path: Path) -> None:
    settings = StoreSettings(log_segment_bytes=3 * DISPATCHED_MAPPED_MAX, index_process=False)
    master = open_store(tmp_path / "master", follows=False, settings=settings)
    slave = open_store(tmp_path / "slave", settings=settings)
    body, most = bytes(1 << 20), 0
    while slave.max_position < 5 * DISPATCHED_MAPPED_MAX:
        before = master.max_position
        master.append(Draft("Orders", 0, body, b"", NOW_MS, HOST, HOST), NOW_MS)
        slave.append_raw(before, log_bytes(master, before))
        dispatch(slave)
        most = max(most, resident_bytes(tmp_path / "slave" / "commitlog"))
    assert 0 < most < DISPATCHED_MAPPED_MAX + 3 * len(body)
    assert bodies(slave) == bodies(master)
