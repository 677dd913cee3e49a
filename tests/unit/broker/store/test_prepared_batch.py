"""Long batches: encoded in parts, stored with one write, and all or nothing after a crash."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from skyroute.broker.store.dispatch import BACKLOG_MAX, KEYS_A_STEP
from skyroute.broker.store.draft import AppendedBatch, Draft
from skyroute.broker.store.errors import RecordTooLargeError
from skyroute.broker.store.files.checkpoint import Checkpoint
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.prepared_batch import BATCH_KEYS_MAX
from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError
from skyroute.message.batch import RawItem
from skyroute.message.errors import RecordError
from skyroute.message.flags import TransactionState
from skyroute.message.host import encode_host
from skyroute.message.reserved_topics import SCHEDULE_TOPIC
from tests.support.disks import (
    NOW_MS,
    FailingDisk,
    KilledError,
    KillingDisk,
    NoSyncDisk,
    RestartedMachineDisk,
    bodies,
    draft,
    read_all,
    small_store,
)

PARTS = 3
SEGMENT = 1 << 16


def items_of(messages: int) -> list[RawItem]:
    """Messages of different sizes, with a tag, a key and a unique id; some properties end with zero."""
    return [
        (b"%d" % number * (number % 3), b"TAGS\x01t%d\x02KEYS\x01k%d\x02UNIQ_KEY\x01u%d" % (number % 5, number, number)
         + (b"\0" if number % 7 == 0 else b"\x02"), number)
        for number in range(messages)
    ]  # fmt: skip


def append_long(store: MessageStore, items: list[RawItem], about: Draft | None = None) -> AppendedBatch:
    batch = store.prepare_batch(about or draft())
    size = -(-len(items) // PARTS)
    for start in range(0, len(items), size):
        batch.add(items[start : start + size])
    return store.append_prepared(batch, NOW_MS)


@contextmanager
def opened(folder: Path, disk: Disk | None = None, *, index_entries: int = 200) -> Iterator[MessageStore]:
    store = small_store(
        folder, disk or NoSyncDisk(), log_segment_bytes=SEGMENT, index_entries=index_entries, index_process=False
    )
    try:
        yield store
    finally:
        store.kill()


def check_keys(store: MessageStore) -> None:
    """Every key is found, once for each of its messages."""
    for message in read_all(store):
        for key in filter(None, (*message.keys, message.unique_id)):
            assert store.find_by_key("T", key, 64, 0, NOW_MS * 2).positions.count(message.log_position) == 1, key


@pytest.mark.parametrize("topic", ["T", "T" * 200])
@pytest.mark.parametrize("host", ["10.0.0.1", "fe80::1"])
@pytest.mark.parametrize("is_batch_topic", [False, True])
def test_the_files_are_those_of_a_short_batch(tmp_path: Path, topic: str, host: str, is_batch_topic: bool) -> None:
    born = encode_host(host, 7)
    about = Draft(topic, 2, b"", b"", NOW_MS - 5, born, encode_host("::1", 8), 1, 0, reconsume_times=3)
    items = items_of(30)
    items = [(body, raw if raw[-1] else raw + b"\x02", flag) for body, raw, flag in items]
    files: list[dict[str, bytes]] = []
    for name in ("short", "long"):
        store = small_store(
            tmp_path / name, log_segment_bytes=SEGMENT, is_batch_topic=lambda _: is_batch_topic, now_ms=NOW_MS
        )
        store.append(draft(topic, 2), NOW_MS)
        appended = store.append_batch(about, items, NOW_MS) if name == "short" else append_long(store, items, about)
        assert (appended.queue_offset, len(appended.log_positions)) == (1, 30)
        assert store.append(draft(topic, 2), NOW_MS).log_position == appended.log_end
        assert store.max_offset(topic, 2) == 32
        store.close()
        folders = ("commitlog", "consumequeue", "batchconsumequeue", "index")
        paths = sorted(path for folder in folders for path in (tmp_path / name / folder).rglob("*") if path.is_file())
        files.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in paths})
    assert files[0] == files[1]


def test_other_messages_may_be_stored_while_a_batch_is_encoded(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        items = items_of(30)
        batch = store.prepare_batch(draft())
        for number in range(3):
            batch.add(items[number * 10 : number * 10 + 10])
            store.append(draft(body=b"same queue"), NOW_MS)
            store.append(draft("U", body=b"other topic"), NOW_MS)
        assert store.max_offset("T", 0) == 3
        assert store.append_prepared(batch, NOW_MS + 1).queue_offset == 3
        store.append(draft(body=b"later"), NOW_MS + 2)
        stored = read_all(store)
        assert [message.body for message in stored] == [b"same queue"] * 3 + [body for body, _, _ in items] + [b"later"]
        assert [message.queue_offset for message in stored] == list(range(34))
        assert {message.stored_at_ms for message in stored[3:-1]} == {NOW_MS + 1}
        check_keys(store)


def test_a_batch_is_never_divided_between_files(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(draft(body=bytes(SEGMENT - 2000)), NOW_MS)
        assert append_long(store, items_of(30)).log_positions[0] == SEGMENT
        end = store.max_position
        with pytest.raises(RecordTooLargeError):
            append_long(store, items_of(900))
        assert (store.max_position, store.max_offset("T", 0)) == (end, 31)
        for about in (draft(sys_flag=int(TransactionState.PREPARED)), draft(SCHEDULE_TOPIC)):
            with pytest.raises(RecordError, match="a batch cannot be part of a transaction or wait for its time"):
                store.prepare_batch(about)


def test_a_batch_is_shown_once_it_is_on_the_disk(tmp_path: Path) -> None:
    store = small_store(tmp_path, NoSyncDisk(), log_segment_bytes=SEGMENT, sync_flush=True)
    append_long(store, items_of(30))
    assert not store.dispatch_step()
    assert store.max_offset("T", 0) == 0
    store.flush(thorough=False)
    assert store.max_offset("T", 0) == 30
    store.close()


def test_a_batch_of_a_topic_that_is_deleted_leaves_nothing_behind(tmp_path: Path) -> None:
    store = small_store(tmp_path, NoSyncDisk(), log_segment_bytes=SEGMENT, sync_flush=True)
    append_long(store, items_of(30))
    store.delete_topic("T")
    store.flush()
    assert store.topics() == set()
    assert append_long(store, items_of(5)).queue_offset == 0
    store.flush()
    assert len(read_all(store)) == 5
    store.close()


@pytest.mark.parametrize("disk", [NoSyncDisk, RestartedMachineDisk])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_keys_that_were_not_written_before_a_crash_are_there_after_it(
    tmp_path: Path, disk: type[Disk], steps: int
) -> None:
    messages = KEYS_A_STEP + 10  # with two keys each
    settings: dict[str, Any] = {
        "log_segment_bytes": 1 << 21,
        "queue_segment_units": 1000,
        "index_slots": 5000,
        "index_entries": 9000,
    }
    store = small_store(tmp_path, NoSyncDisk(), index_process=False, **settings)
    store.append(draft(), NOW_MS)
    store.flush()
    append_long(store, items_of(messages))
    assert [store.dispatch_step() for _ in range(steps)] == [True, True, False][:steps]
    store.flush()
    store.kill()
    store = small_store(tmp_path, disk(), index_process=False, **settings)
    stored = read_all(store)
    assert [message.queue_offset for message in stored] == list(range(messages + 1))
    for number in (1, 2, KEYS_A_STEP // 2, messages - 1):
        for key in (f"k{number}", f"u{number}"):
            assert store.find_by_key("T", key, 64, 0, NOW_MS * 2).positions == [stored[number + 1].log_position]
    store.close()


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize(
    ("restarted", "half"), [(NoSyncDisk, False), (NoSyncDisk, True), (RestartedMachineDisk, False)]
)
def test_a_process_that_is_killed_leaves_all_of_a_batch_or_nothing(
    tmp_path: Path, restarted: type[Disk], half: bool, is_long: bool
) -> None:
    seen: set[int] = set()
    for fail_at in count(1):
        folder = tmp_path / f"{fail_at}"
        disk = KillingDisk(1 << 30, half=half)
        with opened(folder, disk) as store:
            store.append(draft(body=b"first"), NOW_MS)
            store.flush()
            disk.calls, disk.fail_at = 0, fail_at
            try:
                if is_long:
                    append_long(store, items_of(60))
                else:
                    store.append_batch(draft(), items_of(60), NOW_MS)
                while store.dispatch_step():
                    pass
                store.flush()
                is_over = True
            except KilledError:
                is_over = False
        with opened(folder, restarted()) as store:
            found = bodies(store)
            assert found[:1] == [b"first"]
            assert found[1:] in ([], [body for body, _, _ in items_of(60)]), f"call {fail_at}, {disk.failed}"
            seen.add(len(found))
            check_keys(store)
            assert store.append(draft(), NOW_MS).queue_offset == len(found)
        if is_over:
            break
    assert seen == {1, 61}


@pytest.mark.parametrize("half", [False, True])
def test_a_disk_that_refuses_leaves_all_of_a_batch_or_nothing(tmp_path: Path, half: bool) -> None:
    for fail_at in count(1):
        folder = tmp_path / f"{fail_at}"
        disk = FailingDisk(full=True, half=half)
        with opened(folder, disk) as store:
            store.append(draft(body=b"first"), NOW_MS)
            disk.calls, disk.fail_at = 0, fail_at
            wanted = [b"first"]
            try:
                append_long(store, items_of(60))
                wanted += [body for body, _, _ in items_of(60)]
            except DiskFullError:
                assert disk.failed
            while store.dispatch_step():
                pass
            assert bodies(store) == wanted
            disk.fail_at = -1
            store.append(draft(body=b"last"), NOW_MS)
            check_keys(store)
        with opened(folder) as store:
            assert bodies(store) == [*wanted, b"last"], f"call {fail_at}, {disk.failed}"
        if not disk.failed:
            break


def test_a_first_batch_at_the_start_of_the_log_survives_a_process_that_dies(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.append_batch(draft(), [(b"first", b"", 0)], NOW_MS)
    store.kill()
    again = small_store(tmp_path)
    assert bodies(again) == [b"first"]
    again.close()


@pytest.mark.parametrize("abort", ["4711\nan-earlier-boot", "4711", None])
def test_the_note_of_a_batch_is_void_once_another_process_has_had_the_store(tmp_path: Path, abort: str | None) -> None:
    wanted = [b"first", *(body for body, _, _ in items_of(9)), b"last"]
    for fail_at in count(5):  # behind the lock and the checkpoint, which a killed process closes
        folder = tmp_path / f"{fail_at}"
        store = small_store(folder, NoSyncDisk(), log_segment_bytes=SEGMENT, index_entries=200, index_process=False)
        store.append(draft(body=b"first"), NOW_MS)
        batch = store.append_batch(draft(), items_of(9), NOW_MS)
        store.append(draft(body=b"last"), NOW_MS)
        store.close()
        # Apache's broker has continued the log, or the disk has the checkpoint of a moment before the machine stopped.
        checkpoint = Checkpoint(folder / "checkpoint", NoSyncDisk())
        checkpoint.begin_batch(batch.log_positions[0])
        checkpoint.close()
        if abort is not None:
            (folder / "abort").write_text(abort)
        shutil.rmtree(folder / "consumequeue")
        disk = KillingDisk(fail_at)
        with suppress(KilledError), opened(folder, disk):
            pass
        with opened(folder) as store:
            assert bodies(store) == wanted, f"call {fail_at}, {disk.failed}"
        if not disk.failed:
            break


class ShortOfMemory(NoSyncDisk):
    """Writes a part of the first long data, then has no memory."""

    is_short = False

    def write(self, descriptor: int, data: bytes | bytearray, at: int) -> None:
        if self.is_short and len(data) > 1000:
            self.is_short = False
            super().write(descriptor, data[:700], at)
            raise MemoryError
        super().write(descriptor, data, at)


def test_messages_behind_a_batch_that_failed_for_any_reason_survive_a_process_that_dies(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.append(draft(body=b"first"), NOW_MS)
        store.flush()
    disk = ShortOfMemory()
    with opened(tmp_path, disk) as store:
        disk.is_short = True
        with pytest.raises(MemoryError):
            append_long(store, items_of(60))
        store.append(draft(body=b"last"), NOW_MS)
    with opened(tmp_path) as store:
        assert bodies(store) == [b"first", b"last"]


@pytest.mark.parametrize("keys", [20, 16_000])
def test_keys_of_single_messages_do_not_pile_up(tmp_path: Path, keys: int) -> None:
    store = small_store(
        tmp_path, NoSyncDisk(), log_segment_bytes=1 << 23, index_slots=5000, index_entries=1 << 20, index_process=False
    )
    about = draft(properties={"KEYS": " ".join("ab"[number % 2] for number in range(keys))})
    for _ in range(40 if keys > 1000 else 20 * BACKLOG_MAX):
        if keys > 1000:
            store.append_batch(draft(), [(about.body, about.raw_properties, 0)], NOW_MS)
        store.append(about, NOW_MS)
        assert len(store._dispatcher) <= (5 if keys > 1000 else BACKLOG_MAX)
    assert not store.dispatch_step(), "keys are left for a later step"
    store.close()


def test_a_long_batch_has_a_bounded_number_of_keys(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        batch = store.prepare_batch(draft())
        many: RawItem = b"", b"KEYS\x01" + b"k " * 16_000, 0
        with pytest.raises(RecordError, match="too many keys"):  # noqa: PT012 - one of the calls raises
            for _ in range(BATCH_KEYS_MAX // 16_000 + 1):
                batch.add([many])
        assert store.append(draft(), NOW_MS).queue_offset == 0


def test_a_closed_store_writes_no_keys(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"log_segment_bytes": 1 << 21, "queue_segment_units": 5000, "index_entries": 9000}
    store = small_store(tmp_path, NoSyncDisk(), index_process=False, **settings)
    append_long(store, items_of(KEYS_A_STEP))
    assert store.dispatch_step()
    store.kill()
    files = {path: path.read_bytes() for path in (tmp_path / "index").iterdir()}
    assert not store.dispatch_step()
    with suppress(StopIteration):
        next(store.search_by_key("T", "k1", 1, 0, NOW_MS, lambda: False))
    assert {path: path.read_bytes() for path in (tmp_path / "index").iterdir()} == files
