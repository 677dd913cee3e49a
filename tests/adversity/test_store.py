"""A store after crashes, cut files, flipped bits and disk errors."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from skyroute.broker.store.errors import StoreClosedError, StoreDamagedError
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.queues.queue_read import ReadStatus
from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError, FileWriteError, StorageError
from skyroute.message.batch import BatchItem, encode_batch
from skyroute.message.positions import QueueOffset
from skyroute.message.properties import encode_properties
from skyroute.message.record import decode_record, encode_record
from tests.simulation.disk import SimDisk
from tests.support.disks import (
    NOW_MS,
    SMALL,
    FailingDisk,
    FullDisk,
    NoSyncDisk,
    RestartedMachineDisk,
    bodies,
    draft,
    read_all,
    small_store,
)

QUEUES = 3
WHOLE = "Whole"
"""A batch topic."""
ROOT = Path(__file__).parents[2]


def fill(store: MessageStore, count: int, first: int = 0) -> dict[int, list[bytes]]:
    """Store numbered messages in a few queues; return the bodies by queue."""
    stored: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}
    for number in range(first, first + count):
        body = b"%d " % number + b"x" * (number * 37 % 200)
        properties = {"UNIQ_KEY": f"id-of-message-{number}", "KEYS": f"k{number}", "TAGS": f"t{number % 3}"}
        store.append(draft("T", number % QUEUES, body, properties), NOW_MS + number * 10)
        stored[number % QUEUES].append(body)
    return stored


def check_messages(store: MessageStore, stored: dict[int, list[bytes]]) -> None:
    """Check that every message is there once, in order, and found by key and time."""
    for queue_id, wanted in stored.items():
        messages = read_all(store, "T", queue_id)
        assert [message.body for message in messages] == wanted
        assert [message.queue_offset for message in messages] == list(range(len(wanted)))
        for message in messages:
            record = store.record_at(message.log_position)
            assert record is not None
            assert decode_record(record) == message
            for key in (*message.keys, message.unique_id or ""):
                assert message.log_position in store.find_by_key("T", key, 64, 0, NOW_MS * 2).positions, key
            assert store.offset_at("T", queue_id, message.stored_at_ms) == message.queue_offset
            unit = store.unit("T", queue_id, message.queue_offset)
            assert unit is not None
            assert unit[:2] == (message.log_position, message.record_bytes)


def check_continues(store: MessageStore, stored: dict[int, list[bytes]]) -> None:
    """Check that the store accepts more messages, and has all after it was closed and opened."""
    count = sum(map(len, stored.values()))
    more = fill(store, QUEUES * 2, first=count + (-count % QUEUES))
    whole = {queue_id: stored[queue_id] + more[queue_id] for queue_id in stored}
    check_messages(store, whole)
    store.close()
    with reopened(store.folder) as again:
        check_messages(again, whole)


@contextmanager
def reopened(folder: Path, disk: Disk | None = None) -> Iterator[MessageStore]:
    store = small_store(folder, disk or NoSyncDisk(), is_batch_topic=lambda topic: topic == WHOLE)
    try:
        yield store
    finally:
        store.kill()


def cut_to(stored: dict[int, list[bytes]], count: int) -> dict[int, list[bytes]]:
    """Return the bodies by queue of the first messages."""
    return {queue_id: wanted[: len(range(queue_id, count, QUEUES))] for queue_id, wanted in stored.items()}


# ------------------------------------------------------------------------------------------------------------- dying


@pytest.mark.parametrize("seed", range(12))
def test_a_power_failure_after_a_kill_loses_no_flushed_message(tmp_path: Path, seed: int) -> None:
    """The restarted process syncs the files of the killed one, and their names."""
    disk = SimDisk(tmp_path, random.Random(seed), lambda _: None)
    folder = tmp_path / "store"
    store = small_store(folder, disk)
    stored = fill(store, 9 * QUEUES)
    store.flush()
    more = fill(store, 30 * QUEUES, first=9 * QUEUES)
    store.dispatch()
    store.kill()
    store = small_store(folder, disk)
    store.kill()
    disk.crash()
    assert disk.lost_names == 0
    with reopened(folder, disk) as store:
        check_messages(store, {queue_id: stored[queue_id] + more[queue_id] for queue_id in stored})


@pytest.mark.parametrize("failing", ["commitlog", "consumequeue", "index", "queues"])
@pytest.mark.parametrize("seed", range(6))
def test_a_power_failure_after_a_failed_flush_and_a_restart_loses_nothing(
    tmp_path: Path, seed: int, failing: str
) -> None:
    """After a failed sync, the system keeps the data in its cache, and reports success for syncs that write nothing."""
    disk = SimDisk(tmp_path, random.Random(seed), lambda _: None)
    folder = tmp_path / "store"
    store = small_store(folder, disk)
    stored = fill(store, 9 * QUEUES)
    store.flush()
    more = fill(store, 60 * QUEUES, first=9 * QUEUES)
    if failing != "commitlog":
        store.flush(thorough=False)
    disk.faults.fails_next_sync, disk.faults.fails_sync_of = True, failing
    with pytest.raises(FileWriteError):
        store.flush()
    store.kill()
    store = small_store(folder, disk)
    store.flush()
    store.kill()
    disk.crash()
    with reopened(folder, disk) as store:
        check_messages(store, {queue_id: stored[queue_id] + more[queue_id] for queue_id in stored})


@pytest.mark.parametrize("disk", [NoSyncDisk, RestartedMachineDisk])
@pytest.mark.parametrize("derived_at", [(), (20,), (20, 59), range(60)])
def test_a_process_that_dies_loses_nothing(tmp_path: Path, disk: type[Disk], derived_at: tuple[int, ...]) -> None:
    store = small_store(tmp_path)
    stored: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}
    for number in range(60):
        for queue_id, got in fill(store, 1, first=number).items():
            stored[queue_id] += got
        if number in derived_at:
            store.dispatch()
    store.kill()
    with reopened(tmp_path, disk()) as store:
        check_messages(store, stored)
        assert store.recovered is not None
        assert not store.recovered.was_clean
    with reopened(tmp_path) as store:
        check_messages(store, stored)
        check_continues(store, stored)


@pytest.mark.parametrize("dies_at", range(1, 400, 7))
def test_no_stored_message_is_lost_whichever_disk_call_is_the_last(tmp_path: Path, dies_at: int) -> None:
    """Each disk call is complete or not made: a killed process leaves no partial calls."""

    class DyingDisk(FailingDisk):
        def _count(self, what: str) -> None:
            if self.failed:
                raise StoreClosedError("dead by now")
            super()._count(what)

    disk = DyingDisk(dies_at)
    stored: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}
    store = None
    try:
        store = small_store(tmp_path, disk)
        for number in range(60):
            for queue_id, got in fill(store, 1, first=number).items():
                stored[queue_id] += got
            if number % 5 == 0:
                store.dispatch()
    except StorageError:
        assert disk.failed
    finally:
        if store is not None:
            store.kill()
    with reopened(tmp_path) as store:
        check_messages(store, stored)
        check_continues(store, stored)


WRITER = """
import sys
from pathlib import Path
from tests.support.disks import NOW_MS, draft, small_store

store = small_store(Path(sys.argv[1]))
number = sum(store.max_offset("T", queue_id) for queue_id in range(3))
while True:
    properties = {"UNIQ_KEY": f"id-of-message-{number}", "KEYS": f"k{number}"}
    store.append(draft("T", number % 3, b"%d " % number + b"x" * (number * 37 % 200), properties), NOW_MS + number * 10)
    print(number, flush=True)
    number += 1
    if number % 50 == 0:
        store.flush(thorough=number % 100 == 0)
"""


def test_a_killed_process_keeps_all_acknowledged_messages(tmp_path: Path, chance: random.Random) -> None:
    said = -1
    for _ in range(4):
        enough = said + chance.randrange(100, 900)
        command = [sys.executable, "-c", WRITER, str(tmp_path / "store")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
            assert writer.stdout is not None
            for line in writer.stdout:
                said = int(line)
                if said == enough:
                    writer.kill()  # what it said before that may still be in the pipe
        with reopened(tmp_path / "store") as store:
            count = sum(store.max_offset("T", queue_id) for queue_id in range(QUEUES))
            assert count - 1 in (said, said + 1)
            stored = [b"%d " % number + b"x" * (number * 37 % 200) for number in range(count)]
            check_messages(store, {queue_id: stored[queue_id::QUEUES] for queue_id in range(QUEUES)})
        said = count - 1


def test_a_machine_crash_keeps_all_flushed_messages(tmp_path: Path, chance: random.Random) -> None:
    """After the last flush, any subset of the written pages is on disk."""
    page = 64
    store = small_store(tmp_path / "store", is_batch_topic=lambda topic: topic == WHOLE)
    stored = fill(store, 63)
    batches = [encode_batch([BatchItem(b"%d" % number), BatchItem(b"more")]) for number in range(40)]
    for number in range(20):
        store.append_inner_batch(draft(WHOLE, body=batches[number]), 2, NOW_MS)
    store.flush()
    flushed = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    for number in range(20, 40):
        for queue_id, more in fill(store, 3, first=3 + number * 3).items():
            stored[queue_id] += more
        store.append_inner_batch(draft(WHOLE, body=batches[number]), 2, NOW_MS)
        store.dispatch()
    store.kill()
    written = {path: path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()}
    for turn in range(60):
        folder = tmp_path / f"stopped-{turn}"
        for path, content in written.items():
            before = flushed.get(path, b"")
            copy = folder / path.relative_to(tmp_path / "store")
            if path not in flushed and chance.random() < 0.3:
                continue  # not even its name came there
            copy.parent.mkdir(parents=True, exist_ok=True)
            pages = range(0, len(content), page)
            copy.write_bytes(
                b"".join(
                    (content if chance.random() < 0.6 else before.ljust(len(content), b"\0"))[at : at + page]
                    for at in pages
                )
            )
        with reopened(folder, RestartedMachineDisk()) as store:
            for queue_id in range(QUEUES):
                messages = {message.queue_offset: message.body for message in read_all(store, "T", queue_id)}
                assert set(messages) >= set(range(21))
                assert all(body == stored[queue_id][offset] for offset, body in messages.items())
            whole = {message.queue_offset: message.stored_body for message in read_all(store, WHOLE)}
            assert set(whole) >= set(range(0, 40, 2))
            assert all(body == batches[offset // 2] for offset, body in whole.items())
            check_keys(store)
            fill(store, 30, first=9000)
            ends = [store.max_offset("T", queue_id) for queue_id in range(QUEUES)]
            counts = [len(read_all(store, "T", queue_id)) for queue_id in range(QUEUES)]
        with reopened(folder, RestartedMachineDisk()) as store:
            assert [len(read_all(store, "T", queue_id)) for queue_id in range(QUEUES)] == counts
            assert [store.max_offset("T", queue_id) for queue_id in range(QUEUES)] == ends
            check_keys(store)
        shutil.rmtree(folder)


class NamelessBoot(NoSyncDisk):
    """A system without a boot id."""

    def boot_id(self) -> str:
        return ""


@pytest.mark.parametrize("disk", [RestartedMachineDisk, NamelessBoot])
@pytest.mark.parametrize("flushed", [True, False])
def test_recovery_after_a_machine_crash_reads_only_unflushed_records(
    tmp_path: Path, disk: type[Disk], flushed: bool
) -> None:
    store = small_store(tmp_path, NamelessBoot() if disk is NamelessBoot else None)
    stored = fill(store, 60)
    if flushed:
        store.flush()
    for queue_id, more in fill(store, 6, first=60).items():
        stored[queue_id] += more
    store.dispatch()
    store.kill()
    with reopened(tmp_path, disk()) as store:
        assert store.recovered is not None
        assert store.recovered.records == (6 if flushed else 66)
        check_messages(store, stored)


# ----------------------------------------------------------------------------------------------------------- cutting


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_cut_at_any_length_keeps_its_complete_records(tmp_path: Path, clean: bool) -> None:
    whole = tmp_path / "whole"
    store = small_store(whole)
    stored = fill(store, 30)
    ends = sorted(
        message.log_position + message.record_bytes
        for queue_id in range(QUEUES)
        for message in read_all(store, "T", queue_id)
    )
    end = store.max_position
    store.dispatch()
    if clean:
        store.close()
    else:
        store.kill()
    segment = max((whole / "commitlog").iterdir())
    start = int(segment.name)
    assert len([each for each in ends if each > start]) >= 3
    for length in range(end - 300 - start, end - start + 1, 1):
        folder = tmp_path / "cut"
        shutil.copytree(whole, folder)
        with (folder / "commitlog" / segment.name).open("r+b") as file:
            file.truncate(length)
        kept = len([each for each in ends if each <= start + length])
        with reopened(folder) as store:
            check_messages(store, cut_to(stored, kept))
            # Positions and offsets that were given out are not given out again.
            assert store.max_position == end
            assert [store.max_offset("T", queue_id) for queue_id in range(QUEUES)] == [10, 10, 10]
            store.append(draft("T", 0, b"more"), NOW_MS)
            store.close()
        with reopened(folder) as store:
            assert bodies(store, "T", 0) == [*cut_to(stored, kept)[0], b"more"]
            assert bodies(store, "T", 1) == cut_to(stored, kept)[1]
        shutil.rmtree(folder)


@pytest.mark.parametrize("properties", [b"", b"a\x01b\0", b"a\x01b"])
def test_a_last_record_that_ends_with_zero_does_not_count_as_torn(tmp_path: Path, properties: bytes) -> None:
    store = small_store(tmp_path)
    store.append(msgspec.structs.replace(draft(), raw_properties=properties), NOW_MS)
    store.append_batch(draft(), [BatchItem(b"body", b"K\x01v"), BatchItem(b"body", properties)], NOW_MS)
    store.kill()
    with reopened(tmp_path, RestartedMachineDisk()) as store:
        assert bodies(store) == [b"body"] * 3


def test_a_tail_that_was_cut_off_does_not_come_back(tmp_path: Path) -> None:
    """Bytes of a torn record behind a shorter new record must not count as records."""
    store = small_store(tmp_path)
    stored = fill(store, 9)
    last_two = sorted(
        (message for queue_id in range(QUEUES) for message in read_all(store, "T", queue_id)),
        key=lambda message: message.log_position,
    )[-2:]
    store.kill()
    segment = tmp_path / "commitlog" / f"{0:020d}"
    content = bytearray(segment.read_bytes())
    for message in last_two:
        content[message.log_position + 95] ^= 1  # in their bodies
    segment.write_bytes(content)
    with reopened(tmp_path, RestartedMachineDisk()) as store:
        check_messages(store, cut_to(stored, 7))
        (cut,) = store.damage.cuts
        assert (cut.position, cut.size) == (last_two[0].log_position, sum(each.record_bytes for each in last_two))
        assert cut.kept_in.read_bytes() == bytes(content[cut.position : cut.position + cut.size])
        body = b"y" * (last_two[0].record_bytes - 96)
        appended = store.append(draft("T", 1, body, {"K": "v"}), NOW_MS)
        assert appended.log_end == last_two[1].log_position, "it ends exactly where the last one used to start"
    with reopened(tmp_path, RestartedMachineDisk()) as store:
        assert bodies(store, "T", 1) == [*stored[1][:2], body]
        assert bodies(store, "T", 2) == stored[2][:2]


def test_a_flipped_bit_in_the_tail_loses_at_most_later_records(tmp_path: Path, chance: random.Random) -> None:
    whole = tmp_path / "whole"
    store = small_store(whole)
    stored = fill(store, 24)
    ordered = sorted(
        (message for queue_id in range(QUEUES) for message in read_all(store, "T", queue_id)),
        key=lambda message: message.log_position,
    )
    store.kill()
    for turn in range(60):
        folder = tmp_path / f"flipped-{turn}"
        shutil.copytree(whole, folder)
        victim = chance.randrange(len(ordered))
        position = ordered[victim].log_position + chance.randrange(ordered[victim].record_bytes)
        segment = folder / "commitlog" / f"{position // 4096 * 4096:020d}"
        content = bytearray(segment.read_bytes())
        content[position % 4096] ^= 1 << chance.randrange(8)
        segment.write_bytes(content)
        with reopened(folder, RestartedMachineDisk()) as store:
            # Only bodies have a checksum: a flip elsewhere may pass, and then the message is there, changed.
            count = sum(store.max_offset("T", queue_id) for queue_id in range(QUEUES))
            assert count >= victim
            for message in ordered[:victim]:
                record = store.record_at(message.log_position)
                assert record is not None
                assert decode_record(record) == message
            store.append(draft(), NOW_MS)
    assert stored


def test_damage_in_flushed_records_loses_no_later_record(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    stored = fill(store, 24)
    spoilt = read_all(store, "T", 1)[3]
    later = {queue_id: [b"later"] for queue_id in range(QUEUES)}
    for queue_id in range(QUEUES):
        store.append(draft("T", queue_id, b"later", {"KEYS": "k"}), NOW_MS + 60_000)
    store.flush()
    store.kill()
    segment = tmp_path / "commitlog" / f"{spoilt.log_position // 4096 * 4096:020d}"
    content = bytearray(segment.read_bytes())
    content[spoilt.log_position % 4096 + 90] ^= 1
    segment.write_bytes(content)
    with reopened(tmp_path, RestartedMachineDisk()) as store:
        for queue_id in (0, 2):
            assert bodies(store, "T", queue_id) == stored[queue_id] + later[queue_id]
        assert store.max_offset("T", 1) == len(stored[1]) + 1


@pytest.mark.parametrize("offset", [5, 42, 100_000])
def test_a_restored_log_may_start_in_the_middle_of_a_queue(tmp_path: Path, offset: int) -> None:
    store = small_store(tmp_path)
    for _ in range(3):
        store.append(draft(), NOW_MS)
    first, *others = read_all(store)
    store.close()
    log = tmp_path / "commitlog" / f"{0:020d}"
    records = [message.replace(queue_offset=QueueOffset(offset + message.queue_offset)) for message in (first, *others)]
    content = b"".join(map(encode_record, records))
    log.write_bytes(content + log.read_bytes()[len(content) :])
    shutil.rmtree(tmp_path / "consumequeue")
    with reopened(tmp_path, RestartedMachineDisk()) as store:
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (offset, offset + 3)
        assert [message.queue_offset for message in read_all(store)] == [offset, offset + 1, offset + 2]


@pytest.mark.parametrize("left", ["closed", "dead", "machine stopped"])
def test_a_store_opens_and_continues_after_random_damage(tmp_path: Path, chance: random.Random, left: str) -> None:
    whole = tmp_path / "whole"
    store = small_store(whole, NoSyncDisk())
    fill(store, 60)
    if left == "closed":
        store.close()
    else:
        store.flush()
        store.kill()
    for turn in range(60):
        folder = tmp_path / f"scribbled-{turn}"
        shutil.copytree(whole, folder)
        files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size > 10]
        for path in chance.sample(files, 2):
            content = bytearray(path.read_bytes())
            at = chance.randrange(len(content))
            content[at : at + chance.choice([1, 8, 100])] = chance.randbytes(chance.choice([1, 8, 100]))
            path.write_bytes(content[: path.stat().st_size].ljust(path.stat().st_size, b"\0"))
        with reopened(folder, RestartedMachineDisk() if left == "machine stopped" else None) as store:
            for queue_id in range(QUEUES):
                offset = store.min_offset("T", queue_id)
                while offset < store.max_offset("T", queue_id):
                    read = store.read_queue("T", queue_id, offset, 32, 1 << 20)
                    assert read.next_offset > offset
                    offset = read.next_offset
                store.offset_at("T", queue_id, NOW_MS + 100)
            for number in range(0, 60, 5):
                for position in store.find_by_key("T", f"k{number}", 64, 0, 1 << 62).positions:
                    store.record_at(position)
            appended = store.append(draft("New", 0, b"new", {"KEYS": "new"}), NOW_MS)
            assert bodies(store, "New") == [b"new"]
            assert appended.log_position in store.find_by_key("New", "new", 64, 0, 1 << 62).positions
        shutil.rmtree(folder)


# ------------------------------------------------------------------------------------------- files that follow the log


def remove_index(folder: Path) -> None:
    shutil.rmtree(folder / "index")


def remove_queues(folder: Path) -> None:
    shutil.rmtree(folder / "consumequeue")


def remove_checkpoint(folder: Path) -> None:
    (folder / "checkpoint").unlink()


def empty_checkpoint(folder: Path) -> None:
    (folder / "checkpoint").write_bytes(b"")


def tear_index(folder: Path) -> None:
    last = max((folder / "index").iterdir())
    last.write_bytes(last.read_bytes()[:77])


def scribble_on_index(folder: Path) -> None:
    last = max((folder / "index").iterdir())
    content = bytearray(last.read_bytes())
    content[32:40] = b"\x7f" * 8
    last.write_bytes(content)


def forget_slots(folder: Path) -> None:
    """Let slots point to entries that are not on disk."""
    last = max((folder / "index").iterdir())
    content = bytearray(last.read_bytes())
    content[40 : 40 + 16 * 4] = (31).to_bytes(4, "big") * 16
    last.write_bytes(content)


def tear_queue(folder: Path) -> None:
    last = max((folder / "consumequeue" / "T" / "1").iterdir())
    last.write_bytes(last.read_bytes()[:27])


def zero_queue(folder: Path) -> None:
    last = max((folder / "consumequeue" / "T" / "1").iterdir())
    last.write_bytes(bytes(200))


def add_empty_segment(folder: Path) -> None:
    (folder / "commitlog" / f"{1 << 20:020d}").write_bytes(b"")


REMOVED = (remove_index, remove_queues, remove_checkpoint, empty_checkpoint, tear_index, scribble_on_index)
TORN = (forget_slots, tear_queue, zero_queue, add_empty_segment)


@pytest.mark.parametrize(
    ("spoil", "disk"),
    [(spoil, RestartedMachineDisk) for spoil in (*REMOVED, *TORN)] + [(spoil, NoSyncDisk) for spoil in REMOVED],
)
def test_missing_queues_and_index_are_rebuilt_from_the_log(
    tmp_path: Path, spoil: Callable[[Path], None], disk: type[Disk]
) -> None:
    store = small_store(tmp_path)
    stored = fill(store, 21)
    store.flush()
    for queue_id, more in fill(store, 29, first=21).items():
        stored[queue_id] += more
    store.dispatch()
    store.kill()
    spoil(tmp_path)
    with reopened(tmp_path, disk()) as store:
        check_messages(store, stored)
        check_continues(store, stored)


@pytest.mark.parametrize("spoil", [remove_index, remove_queues, remove_checkpoint, tear_index])
def test_files_removed_from_a_closed_store_are_rebuilt(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    store = small_store(tmp_path)
    stored = fill(store, 50)
    store.close()
    spoil(tmp_path)
    with reopened(tmp_path) as store:
        check_messages(store, stored)
        check_continues(store, stored)


def test_without_a_log_queues_continue_behind_the_lost_messages(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    fill(store, 20)
    store.close()
    shutil.rmtree(tmp_path / "commitlog")
    with reopened(tmp_path) as store:
        assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (7, 7)
        assert store.append(draft("T", 0, b"more"), NOW_MS).queue_offset == 7
        store.close()
    with reopened(tmp_path) as store:
        assert bodies(store) == [b"more"]


def test_a_missing_segment_of_the_log_is_skipped_by_readers(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    fill(store, 60)
    store.close()
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    with reopened(tmp_path) as store:
        offset = next(n for n in range(20) if (unit := store.unit("T", 0, n)) and unit[0] >= 4096)
        read = store.read_queue("T", 0, offset, 1, 1 << 20)
        assert (read.status, read.next_offset) == (ReadStatus.REMOVED, offset + 1)
        read = store.read_queue("T", 0, offset, 32, 1 << 20)
        assert read.status in (ReadStatus.REMOVED, ReadStatus.FOUND)
        assert decode_record(store.read_queue("T", 0, 19, 1, 1 << 20).chunks[0]).body.startswith(b"57 ")


@pytest.mark.parametrize("start", [0, 200, 400])
@pytest.mark.parametrize("disk", [NoSyncDisk, RestartedMachineDisk])
@pytest.mark.parametrize("closes", [True, False])
def test_a_missing_segment_of_a_queue_is_rebuilt(tmp_path: Path, start: int, disk: type[Disk], closes: bool) -> None:
    store = small_store(tmp_path)
    stored = fill(store, 90)
    store.flush()
    (store.close if closes else store.kill)()
    (tmp_path / "consumequeue" / "T" / "0" / f"{start:020d}").unlink()
    with reopened(tmp_path, disk()) as store:
        check_messages(store, stored)
        check_continues(store, stored)


# ------------------------------------------------------------------------------------------------ one damage, no crash


def flip(path: Path, at: int, bits: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= bits
    path.write_bytes(content)


@pytest.mark.parametrize("removed", ["index", "consumequeue"])
@pytest.mark.parametrize("closes", [True, False])
def test_a_damaged_record_and_missing_files_lose_one_message(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, removed: str, closes: bool
) -> None:
    store = small_store(tmp_path)
    stored = fill(store, 60)
    spoilt = read_all(store, "T", 0)[0]
    store.dispatch()
    (store.close if closes else store.kill)()
    flip(tmp_path / "commitlog" / f"{0:020d}", 89)
    shutil.rmtree(tmp_path / removed)
    with reopened(tmp_path) as store:
        assert [bodies(store, "T", queue_id) for queue_id in range(QUEUES)] == [stored[0][1:], stored[1], stored[2]]
        (damaged,) = store.damage.ranges
        assert (damaged.position, damaged.size, damaged.file_offset) == (0, spoilt.record_bytes, 0)
        assert store.record_at(0) is None
        assert not store.damage.cuts
        assert store.append(draft("T", 0, b"more"), NOW_MS).queue_offset == 20
    assert "damaged range of the log skipped" in caplog.text
    assert "topic='T' queue=0 offset=0" in caplog.text
    with reopened(tmp_path) as store:
        assert store.damage.count == 1, "known also when the log is not read"
        assert bodies(store, "T", 0) == [*stored[0][1:], b"more"]


@pytest.mark.parametrize("disk", [NoSyncDisk, RestartedMachineDisk])
@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("topic", ["T", WHOLE])
def test_a_removed_queue_folder_is_rebuilt(tmp_path: Path, topic: str, closes: bool, disk: type[Disk]) -> None:
    store = small_store(tmp_path, NoSyncDisk(), is_batch_topic=lambda topic: topic == WHOLE)
    stored = fill(store, 60)
    batches = [encode_batch([BatchItem(b"%d" % number), BatchItem(b"more")]) for number in range(25)]
    for batch in batches:
        store.append_inner_batch(draft(WHOLE, body=batch), 2, NOW_MS)
    store.flush()
    (store.close if closes else store.kill)()
    shutil.rmtree(tmp_path / ("consumequeue" if topic == "T" else "batchconsumequeue") / topic / "0")
    with reopened(tmp_path, disk()) as store:
        check_messages(store, stored)
        assert [message.stored_body for message in read_all(store, WHOLE)] == batches
        assert store.max_offset(WHOLE, 0) == 50


@pytest.mark.parametrize("size", [0, 1, 20, 33, 199])
@pytest.mark.parametrize("start", [0, 200, 400])
def test_a_cut_queue_file_is_rebuilt(tmp_path: Path, start: int, size: int) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    stored = fill(store, 90)
    store.close()
    with (tmp_path / "consumequeue" / "T" / "0" / f"{start:020d}").open("r+b") as file:
        file.truncate(size)
    with reopened(tmp_path) as store:
        check_messages(store, stored)


def test_a_damaged_unit_does_not_hide_later_units(tmp_path: Path) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    stored = fill(store, 90)
    store.close()
    flip(tmp_path / "consumequeue" / "T" / "0" / f"{400:020d}", 5 * 20, 0x80)
    with reopened(tmp_path) as store:
        check_messages(store, stored)


def test_a_young_segment_of_the_log_does_not_expire_because_the_next_one_is_damaged(tmp_path: Path) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    fill(store, 60)
    store.close()
    second = tmp_path / "commitlog" / f"{4096:020d}"
    second.write_bytes(bytes(500) + second.read_bytes()[500:])
    with reopened(tmp_path) as store:
        assert store.delete_expired(NOW_MS + 1000, is_due=True, disk_used=0.1).log_segments == 0


@pytest.mark.parametrize("number", range(4))
def test_a_removed_index_file_is_rebuilt(tmp_path: Path, number: int) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    stored = fill(store, 60)
    store.close()
    files = sorted((tmp_path / "index").iterdir())
    assert len(files) == 4
    files[number].unlink()
    with reopened(tmp_path) as store:
        check_messages(store, stored)


def test_files_of_other_sizes_are_refused_and_not_changed(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    fill(store, 60)
    store.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for settings in (
        replace(SMALL, log_segment_bytes=8192),
        replace(SMALL, queue_segment_units=7),
        replace(SMALL, index_slots=5),
    ):
        with pytest.raises(StoreDamagedError, match="configure"):
            MessageStore.open(tmp_path, settings, now_ms=NOW_MS)
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before
    with reopened(tmp_path) as store:
        assert store.max_offset("T", 0) == 20


# ------------------------------------------------------------------------------------------------- disks that refuse


def calls_of_a_run(folder: Path) -> int:
    disk = FailingDisk()
    live_through(folder, disk)
    return disk.calls


def live_through(folder: Path, disk: FailingDisk) -> tuple[dict[int, list[bytes]], list[bytes]]:
    """Use a store, and continue after each failure. Returns the acknowledged bodies by queue, and those of batches."""
    stored: dict[int, list[bytes]] = {queue_id: [] for queue_id in range(QUEUES)}
    batches: list[bytes] = []
    try:
        store = small_store(folder, disk, is_batch_topic=lambda topic: topic == WHOLE)
    except StorageError:
        assert disk.failed
        store = small_store(folder, disk, is_batch_topic=lambda topic: topic == WHOLE)
    number = 0
    for turn in range(12):
        whole = encode_batch([BatchItem(b"%d" % turn)] * 3)
        try:
            store.append_inner_batch(draft(WHOLE, body=whole), 3, NOW_MS + number * 10)
            batches.append(whole)
        except StorageError:
            assert disk.failed
        for _ in range(QUEUES):
            try:
                if turn % 4 == 3:
                    items = [
                        BatchItem(b"%d/%d" % (number, each), encode_properties({"KEYS": f"b{number}"}))
                        for each in range(3)
                    ]
                    store.append_batch(draft("T", number % QUEUES), items, NOW_MS + number * 10)
                    stored[number % QUEUES] += [item.body for item in items]
                else:
                    for queue_id, got in fill(store, 1, first=number).items():
                        stored[queue_id] += got
            except StoreClosedError:
                assert "sync" in disk.failed or turn > 0
            except StorageError:
                assert disk.failed
            number += 1
        try:
            store.flush(thorough=turn % 2 == 0)
        except StorageError:
            assert disk.failed
        for queue_id, wanted in stored.items():
            messages = read_all(store, "T", queue_id)
            assert [message.body for message in messages] == wanted, "readers see all that was stored, at any time"
    check_keys(store)
    try:
        store.close()
    except StorageError:
        assert disk.failed
    return stored, batches


def test_no_message_is_lost_whichever_disk_call_fails(tmp_path: Path) -> None:
    calls = calls_of_a_run(tmp_path / "whole")
    assert calls > 100
    for fail_at in range(1, calls + 1):
        for half in (False, True):
            folder = tmp_path / f"{fail_at}-{half}"
            disk = FailingDisk(fail_at, full=fail_at % 2 == 0, half=half)
            stored, batches = live_through(folder, disk)
            assert disk.failed, f"call {fail_at}"
            with reopened(folder) as store:
                whole = read_all(store, WHOLE)
                assert [message.stored_body for message in whole] == batches, f"call {fail_at}, {disk.failed}"
                assert [message.queue_offset for message in whole] == list(range(0, len(batches) * 3, 3))
                for queue_id, wanted in stored.items():
                    messages = read_all(store, "T", queue_id)
                    assert [message.body for message in messages] == wanted, f"call {fail_at}, {disk.failed}"
                    assert [message.queue_offset for message in messages] == list(range(len(wanted)))
                check_keys(store)
            shutil.rmtree(folder)


def test_a_full_disk_refuses_messages_and_serves_reads(tmp_path: Path) -> None:
    disk = FullDisk()
    store = small_store(tmp_path, disk)
    stored = fill(store, 30)
    disk.is_full = True
    for _ in range(3):
        with pytest.raises(DiskFullError):
            store.append(draft("T", 0), NOW_MS)
        check_queues(store, stored)
    disk.is_full = False
    more = fill(store, 30, first=30)
    check_messages(store, {queue_id: stored[queue_id] + more[queue_id] for queue_id in stored})


def check_keys(store: MessageStore) -> None:
    for queue_id in range(QUEUES):
        for message in read_all(store, "T", queue_id):
            for key in filter(None, (*message.keys, message.unique_id)):
                assert message.log_position in store.find_by_key("T", key, 64, 0, NOW_MS * 2).positions, key


def check_queues(store: MessageStore, stored: dict[int, list[bytes]]) -> None:
    for queue_id, wanted in stored.items():
        assert bodies(store, "T", queue_id) == wanted


def test_a_failed_flush_refuses_further_messages(tmp_path: Path) -> None:
    disk = FailingDisk()
    store = small_store(tmp_path, disk)
    stored = fill(store, 9)
    disk.fail_at = disk.calls + 1
    with pytest.raises(StorageError, match="this sync fails"):
        store.flush(thorough=False)
    assert store.flushed_position == 0
    with pytest.raises(StoreClosedError, match="could not be flushed"):
        store.append(draft(), NOW_MS)
    check_queues(store, stored)
    store.close()
    assert (tmp_path / "abort").exists(), "the next one has to look what is there"
    with reopened(tmp_path) as store:
        check_messages(store, stored)
