"""What a replay of the log makes of offsets that it does not expect, and of deleted topics.

No checksum covers the queue offset in a record: a damaged one must not cost other messages.
"""

import shutil
from pathlib import Path

import pytest

from skyroute.broker.store.dispatch import Dispatcher
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.queues.unit_rows import UNIT
from skyroute.broker.store.recovery import replay
from skyroute.message.flags import TransactionState
from tests.support.disks import NOW_MS, NoSyncDisk, RestartedMachineDisk, draft, read_all, small_store

LOG = Path("commitlog") / f"{0:020d}"
QUEUE_OFFSET = 20
"""Where a record has its offset."""


def left_with(folder: Path, *offsets: int) -> MessageStore:
    """Store five messages; then, undispatched, one for each offset, which it has instead of its own. Open it again."""
    store = small_store(folder, NoSyncDisk())
    for number in range(5):
        store.append(draft(body=b"%d" % number), NOW_MS)
    store.dispatch()
    later = [
        store.append(draft(body=b"%d" % (5 + number), properties={"KEYS": f"k{number}"}), NOW_MS)
        for number in range(len(offsets))
    ]
    store.kill()
    with (folder / LOG).open("r+b") as file:
        for stored, offset in zip(later, offsets, strict=True):
            file.seek(stored.log_position + QUEUE_OFFSET)
            file.write(offset.to_bytes(8, "big"))
    return small_store(folder, NoSyncDisk())


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        ((5, 6, 7), [5, 6, 7]),
        ((5, 60, 7), [5, 7]),
        ((5, 60, 6), [5, 6]),
        ((5, 2, 7), [5, 7]),
        ((5, 0, 7), [5, 7]),
        ((5, 8, 7, 8), [5, 7, 8]),
        ((5, 6, 70), [5, 6]),
        ((5, 6, 2), [5, 6]),
        ((5, 6, 0), [5, 6]),
        ((8, 9, 10), [8, 9, 10]),
        ((8, 20, 21), [8, 20, 21]),
        ((8, 2, 9), [8, 9]),
        ((8, 1, 9), [8, 9]),
    ],
)
def test_an_offset_counts_if_the_next_record_of_the_queue_confirms_it(
    tmp_path: Path, found: tuple[int, ...], kept: list[int]
) -> None:
    store = left_with(tmp_path, *found)
    # A record at the end of the log has no next one: an offset behind the queue's end is believed.
    last = [70] if found[-1] == 70 else []
    assert [each.queue_offset for each in read_all(store)] == [*range(5), *kept, *last]
    bodies = {each.queue_offset: each.body for each in read_all(store)}
    assert bodies == {n: b"%d" % n for n in range(5)} | {n: b"%d" % (5 + found.index(n)) for n in kept + last} | (
        {8: b"8"} if found == (5, 8, 7, 8) else {}
    )
    assert store.max_offset("T", 0) == max([*kept, *last]) + 1
    for number in range(len(found)):
        assert len(store.find_by_key("T", f"k{number}", 9, 0, NOW_MS * 2).positions) == 1
    store.close()


@pytest.mark.parametrize("before", [(), (8,)])
def test_offsets_that_start_again_are_of_a_topic_that_was_created_again(
    tmp_path: Path, before: tuple[int, ...]
) -> None:
    store = left_with(tmp_path, *before, 0, 1, 2)
    bodies = [b"%d" % (5 + len(before) + number) for number in range(3)]
    assert [(each.queue_offset, each.body) for each in read_all(store)] == list(enumerate(bodies))
    assert store.max_offset("T", 0) == 3
    store.close()


def test_messages_of_a_deleted_topic_do_not_come_back_and_all_others_do(tmp_path: Path) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    store.append(draft("other", body=b"0", properties={"KEYS": "first"}), NOW_MS)
    store.append(draft("T", body=b"old"), NOW_MS)
    store.delete_topic("T")
    store.dispatch()
    store.flush()
    half = int(TransactionState.PREPARED)
    store.append(draft("other", body=b"half", properties={"KEYS": "half"}, sys_flag=half), NOW_MS)
    store.append(draft("other", body=b"1", properties={"KEYS": "second"}), NOW_MS)
    store.append(draft("T", body=b"new"), NOW_MS)
    store.append(draft("other", body=b"2"), NOW_MS)
    store.kill()
    store = small_store(tmp_path, NoSyncDisk())
    assert store.recovered is not None
    assert store.recovered.records == 4
    assert [each.body for each in read_all(store, "T")] == [b"new"]
    assert [each.body for each in read_all(store, "other")] == [b"0", b"1", b"2"]
    for key in ("first", "half", "second"):
        assert len(store.find_by_key("other", key, 9, 0, NOW_MS * 2).positions) == 1
    store.close()


def test_messages_of_a_deleted_topic_that_were_not_flushed_do_not_come_back_after_a_machine_crash(
    tmp_path: Path,
) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    store.append(draft("other", body=b"at position 0"), NOW_MS)
    store.append(draft("T", body=b"old"), NOW_MS)
    store.delete_topic("T")
    store.append(draft("other", body=b"last"), NOW_MS)
    store.kill()
    store = small_store(tmp_path, RestartedMachineDisk())
    assert store.recovered is not None
    assert (store.recovered.start, store.recovered.records) == (0, 3)
    assert [each.body for each in read_all(store, "other")] == [b"at position 0", b"last"]
    assert store.topics() == {"other"}
    store.close()


@pytest.mark.parametrize("removed", [("consumequeue",), ("index",), ("consumequeue", "index")])
def test_what_is_rebuilt_has_no_message_of_a_deleted_topic_and_each_key_once(
    tmp_path: Path, removed: tuple[str, ...]
) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    for number in range(3):
        store.append(draft("T", body=b"old", properties={"KEYS": f"old{number}"}), NOW_MS)
        store.append(draft("other", body=b"%d" % number, properties={"KEYS": f"k{number}"}), NOW_MS)
    store.dispatch()
    store.delete_topic("T")
    store.append(draft("T", body=b"new", properties={"KEYS": "new"}), NOW_MS)
    store.close()
    for each in removed:
        shutil.rmtree(tmp_path / each)
    store = small_store(tmp_path, NoSyncDisk())
    assert [each.body for each in read_all(store, "T")] == [b"new"]
    assert [each.body for each in read_all(store, "other")] == [b"0", b"1", b"2"]
    keys = [("other", f"k{number}") for number in range(3)] + [("T", "new")]
    assert [len(store.find_by_key(topic, key, 9, 0, NOW_MS * 2).positions) for topic, key in keys] == [1] * 4
    store.close()


@pytest.mark.parametrize("deletes", [True, False])
def test_a_record_with_a_damaged_topic_is_in_no_queue(tmp_path: Path, *, deletes: bool) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    store.append(draft("gone"), NOW_MS)
    store.append(draft("T", body=b"0"), NOW_MS)
    if deletes:
        store.delete_topic("gone")
    store.dispatch()
    store.flush()
    damaged = store.append(draft("D", body=b"1"), NOW_MS)
    store.append(draft("T", body=b"2"), NOW_MS)
    store.kill()
    with (tmp_path / LOG).open("r+b") as file:
        file.seek(damaged.log_position + damaged.record_bytes - 3)
        file.write(b"/")
    store = small_store(tmp_path, NoSyncDisk())
    assert [each.body for each in read_all(store)] == [b"0", b"2"]
    assert "/" not in store.topics()
    assert store.recovered is not None
    assert store.recovered.records == 2
    store.close()


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("end", ["closed", "died", "stopped behind a flush"])
def test_a_damaged_body_keeps_its_place_in_its_queue(tmp_path: Path, end: str, number: int) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    stored = [store.append(draft(body=b"body"), NOW_MS) for _ in range(3)]
    if end == "stopped behind a flush":
        store.flush()
    store.close() if end == "closed" else store.kill()
    change_body(tmp_path, stored[number].log_position)
    if end != "died":
        shutil.rmtree(tmp_path / "consumequeue")
    store = small_store(tmp_path, RestartedMachineDisk() if end.startswith("stopped") else NoSyncDisk())
    assert store.max_position == stored[2].log_position + stored[2].record_bytes
    units = [store.unit("T", 0, offset) for offset in range(3)]
    assert [unit and unit[:2] for unit in units] == [(each.log_position, each.record_bytes) for each in stored]
    assert [each.queue_offset for each in read_all(store)] == [offset for offset in range(3) if offset != number]
    store.close()


def change_body(folder: Path, position: int) -> None:
    with (folder / LOG).open("r+b") as file:
        file.seek(position + 88)
        file.write(b"?")


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_last_record_that_the_crash_can_have_torn_is_cut_off(tmp_path: Path, *, is_torn: bool) -> None:
    """A crash of the process tears the end of a record, a crash of the machine any part."""
    store = small_store(tmp_path, NoSyncDisk())
    store.append(draft(), NOW_MS)
    store.flush()
    last = store.append(draft(body=b"body"), NOW_MS)
    store.kill()
    if is_torn:
        with (tmp_path / LOG).open("r+b") as file:
            file.seek(last.log_position + 88)
            file.write(bytes(last.record_bytes - 88))
    else:
        change_body(tmp_path, last.log_position)
    store = small_store(tmp_path, NoSyncDisk() if is_torn else RestartedMachineDisk())
    assert store.max_position == last.log_position
    assert store.max_offset("T", 0) == 1
    assert store.recovered is not None
    assert [cut.position for cut in store.recovered.cuts] == [last.log_position]
    store.close()


def test_a_long_rebuild_is_written_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    for _ in range(10):
        store.append(draft(), NOW_MS)
    store.close()
    shutil.rmtree(tmp_path / "consumequeue")
    monkeypatch.setattr(replay, "WRITTEN_AT_ONCE", 4)
    written: list[int] = []
    write_up_to = Dispatcher.write_up_to

    def count(self: Dispatcher, position: int | None, *, in_steps: bool = False) -> None:
        written.extend(len(queue._tail) // UNIT.size for queue in self._unwritten_queues)
        write_up_to(self, position, in_steps=in_steps)

    monkeypatch.setattr(Dispatcher, "write_up_to", count)
    store = small_store(tmp_path, NoSyncDisk())
    assert len(read_all(store)) == 10
    assert written == [4, 4, 2]
    store.close()
