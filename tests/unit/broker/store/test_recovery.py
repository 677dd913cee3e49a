"""What a recovery reports: where it starts, what it reads, what it rebuilds, and which damage it finds."""

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from skyroute.broker.store.commit_log import CommitLog, ScannedRecord
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.store.files.segment import OpenSegments
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.recovery import cut_tails, damage
from skyroute.broker.store.recovery.cut_tails import save_tail
from skyroute.broker.store.recovery.damage import CutTail, DamagedRange, DamageFile, DamageReport
from skyroute.broker.store.recovery.log_scan import BAD_BODY, BAD_HEAD, MISSING_FILE, TORN, ZEROS
from skyroute.broker.store.recovery.recover import Recovered, _find_start
from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError
from skyroute.message.batch import BatchItem, encode_batch
from skyroute.message.record import encode_record
from tests.support.disks import NOW_MS, NoSyncDisk, RestartedMachineDisk, bodies, draft, read_all, small_store
from tests.support.single_damage import read_store

LOG = Path("commitlog") / f"{0:020d}"


def fill(folder: Path, count: int = 10, *, body: bytes = b"body", first: int = 0) -> MessageStore:
    """Append messages with keys to two queues; they are dispatched."""
    store = small_store(folder, NoSyncDisk())
    for number in range(first, first + count):
        store.append(draft("T", number % 2, body, {"KEYS": f"k{number}"}), NOW_MS + number)
    store.dispatch()
    return store


def reopen(folder: Path, disk: Disk | None = None) -> tuple[MessageStore, Recovered]:
    store = small_store(folder, disk or NoSyncDisk(), now_ms=NOW_MS + 99)
    assert store.recovered is not None
    return store, store.recovered


def change(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


# -------------------------------------------------------------------------------------------------------------- starts


def test_a_new_folder_has_nothing_to_recover(tmp_path: Path) -> None:
    store, recovered = reopen(tmp_path)
    assert recovered == Recovered(True, 0, 0)
    assert recovered.bytes_cut == 0
    store.close()


def test_a_closed_store_is_not_read(tmp_path: Path) -> None:
    store = fill(tmp_path)
    end = store.max_position
    store.close()
    store, recovered = reopen(tmp_path)
    assert recovered == Recovered(True, end, 0)
    assert store.flushed_position == end
    store.close()


def test_a_killed_process_continues_behind_the_last_dispatched_record(tmp_path: Path) -> None:
    store = fill(tmp_path)
    start = store.max_position
    store.append(draft("T", 0, b"late", {"KEYS": "late"}), NOW_MS)
    store.append(draft("T", 1, b"later", {"KEYS": "late"}), NOW_MS)
    store.kill()
    store, recovered = reopen(tmp_path)
    assert recovered == Recovered(False, start, 2)
    assert len(store.find_by_key("T", "late", 9, 0, NOW_MS * 2).positions) == 2
    assert [bodies(store, "T", queue_id)[-1] for queue_id in (0, 1)] == [b"late", b"later"]
    store.close()


def test_a_stopped_machine_continues_behind_the_last_flushed_record(tmp_path: Path) -> None:
    store = fill(tmp_path)
    store.flush()
    start = store.max_position
    fill_more = [store.append(draft("T", 0, b"%d" % number), NOW_MS) for number in range(3)]
    store.dispatch()
    store.kill()
    store, recovered = reopen(tmp_path, RestartedMachineDisk())
    assert recovered == Recovered(False, start, 3)
    assert store.max_position == fill_more[-1].log_position + fill_more[-1].record_bytes
    assert bodies(store)[-3:] == [b"0", b"1", b"2"]
    store.close()


def test_a_crash_of_another_broker_is_read_from_the_checkpoint_on(tmp_path: Path) -> None:
    store = fill(tmp_path, 60, body=b"x" * 100)
    store.close()
    (tmp_path / "abort").write_text("4711")  # Apache's broker writes only its process id
    store, recovered = reopen(tmp_path)
    assert not recovered.was_clean
    assert recovered.start % 4096 == 0
    assert recovered.records == sum(1 for each in positions(store) if each >= recovered.start)
    assert len(bodies(store, "T", 0)) == len(bodies(store, "T", 1)) == 30
    store.close()


def positions(store: MessageStore) -> list[int]:
    units = [
        store.unit("T", queue_id, offset) for queue_id in (0, 1) for offset in range(store.max_offset("T", queue_id))
    ]
    return sorted(unit[0] for unit in units if unit is not None)


def test_an_unfinished_batch_is_cut_off(tmp_path: Path) -> None:
    store = fill(tmp_path)
    position = store.max_position
    store.append(draft("T", 0, b"first of a batch"), NOW_MS)
    store._checkpoint.begin_batch(position)
    store.kill()
    store, recovered = reopen(tmp_path)
    assert store.max_position == position
    (cut,) = recovered.cuts
    assert (cut.position, cut.file) == (position, tmp_path / LOG)
    assert cut.kept_in == tmp_path / "commitlog.cut" / f"{LOG.name}.cut-{NOW_MS + 99}"
    assert b"first of a batch" in cut.kept_in.read_bytes()
    assert len(bodies(store)) == 5
    assert store._checkpoint.unfinished_batch is None
    store.close()


def test_an_unfinished_batch_and_a_damaged_record_before_it_are_kept_in_one_file(tmp_path: Path) -> None:
    store = fill(tmp_path)
    end = store.max_position
    last = store.append(draft("T", 0, b"not dispatched"), NOW_MS)
    store._checkpoint.begin_batch(last.log_end)
    batch = store.append(draft("T", 0, b"first of a batch", {"KEYS": "k"}), NOW_MS)
    store.kill()
    change(tmp_path / LOG, last.log_position + 4, b"?")
    tail = (tmp_path / LOG).read_bytes()[end : batch.log_end]
    store, recovered = reopen(tmp_path)
    (cut,) = recovered.cuts
    assert (cut.position, cut.size, cut.kept_in.read_bytes()) == (end, len(tail), tail)
    assert (store.max_position, recovered.damaged, len(bodies(store))) == (end, (), 5)
    assert not (tmp_path / LOG).read_bytes()[end:].strip(b"\0")
    store.close()


@pytest.mark.parametrize("disk", [NoSyncDisk, RestartedMachineDisk])
def test_an_unfinished_batch_before_the_trusted_end_or_of_an_earlier_boot_is_not_believed(
    tmp_path: Path, disk: type[Disk]
) -> None:
    store = fill(tmp_path)
    store._checkpoint.begin_batch(100 if disk is NoSyncDisk else store.max_position)
    store.flush()
    store.append(draft("T", 0, b"late"), NOW_MS)
    store.kill()
    store, recovered = reopen(tmp_path, disk())
    assert recovered.cuts == ()
    assert len(bodies(store)) == 6
    store.close()


@pytest.mark.parametrize("dies", [True, False])
def test_a_queue_ledger_of_another_folder_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, dies: bool
) -> None:
    other = fill(tmp_path / "other", 40)
    other.close()
    store = small_store(tmp_path / "store", NoSyncDisk(), now_ms=NOW_MS + 1)
    for number in range(10):
        store.append(draft("T", number % 2, b"body"), NOW_MS + number)
    store.dispatch()
    store.kill() if dies else store.close()
    shutil.copy(tmp_path / "other" / "queues", tmp_path / "store" / "queues")
    for _ in range(2):
        with caplog.at_level(logging.WARNING):
            store, _recovered = reopen(tmp_path / "store")
        assert [store.max_offset("T", queue_id) for queue_id in (0, 1)] == [5, 5]
        store.close()
    assert [each.getMessage().partition(" file=")[0] for each in caplog.records] == [
        "queue ledger of another store ignored"
    ]


# ----------------------------------------------------------------------------------------------------------- rebuilding


@pytest.mark.parametrize("closes", [True, False])
def test_a_removed_queue_is_rebuilt_from_the_start_of_the_log(tmp_path: Path, closes: bool) -> None:
    store = fill(tmp_path)
    store.close() if closes else store.kill()
    shutil.rmtree(tmp_path / "consumequeue" / "T" / "1")
    store, recovered = reopen(tmp_path)
    assert (recovered.rebuilt_queues, recovered.rebuilt_index, recovered.records) == (1, False, 0)
    assert len(bodies(store, "T", 1)) == 5
    store.close()


@pytest.mark.parametrize("is_batch_topic", [True, False])
def test_a_removed_first_file_of_a_queue_is_rebuilt_if_the_checkpoint_is_damaged_too(
    tmp_path: Path, is_batch_topic: bool
) -> None:
    def open_store() -> MessageStore:
        return small_store(
            tmp_path,
            NoSyncDisk(),
            is_batch_topic=lambda _: is_batch_topic,
            queue_segment_units=4,
            batch_segment_units=4,
        )

    store, positions = open_store(), []
    for number in range(6):
        at_ms, body = NOW_MS + number * 5_000, encode_batch([BatchItem(b"x" * 1_000), BatchItem(b"y")])
        if is_batch_topic:
            positions.append(store.append_inner_batch(draft("T", 0, body), 2, at_ms).log_position)
        else:
            positions.append(store.append(draft("T", 0, body), at_ms).log_position)
        if number == 4:
            store.flush()
    store.dispatch()
    store.kill()
    queues = tmp_path / ("batchconsumequeue" if is_batch_topic else "consumequeue")
    (queues / "T" / "0" / f"{0:020d}").unlink()
    os.truncate(tmp_path / "checkpoint", 186)  # the times are left, so recovery starts with a file of the log
    store = open_store()
    assert [each.position for each in read_store(store)] == positions
    store.kill()


@pytest.mark.parametrize(
    ("queue_id", "kept", "damaged", "rebuilt_behind"),
    [(1, 3, (), 2), (1, 3, (2,), 1), (1, 3, (1, 2), 0), (0, 1, (), 0), (1, 1, (0,), None)],
)
def test_a_queue_is_rebuilt_from_the_newest_unit_whose_record_is_in_the_log(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    queue_id: int,
    kept: int,
    damaged: tuple[int, ...],
    rebuilt_behind: int | None,
) -> None:
    store = fill(tmp_path)
    units = [unit for offset in range(5) if (unit := store.unit("T", queue_id, offset)) is not None]
    store.close()
    os.truncate(tmp_path / "consumequeue" / "T" / str(queue_id) / f"{0:020d}", 20 * kept)
    for offset in damaged:
        change(tmp_path / LOG, units[offset][0] + 4, b"?")  # its magic
    store, recovered = reopen(tmp_path)
    start = 0 if rebuilt_behind is None else units[rebuilt_behind][0] + units[rebuilt_behind][1]
    assert f"rebuilding from the log queues=1 index=False from={start}" in caplog.messages
    assert recovered.rebuilt_queues == 1
    assert len(bodies(store, "T", queue_id)) == 5 - len(damaged)
    assert store.max_offset("T", queue_id) == 5
    store.close()


def test_queues_whose_newest_message_has_expired_or_that_have_none_are_not_rebuilt(tmp_path: Path) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    store.append(draft("T", 1, b"at position 0"), NOW_MS)
    for _ in range(60):
        store.append(draft("T", 0, b"x" * 100), NOW_MS)
    store.close()
    (tmp_path / LOG).unlink()
    (tmp_path / "consumequeue" / "T" / "7").mkdir()
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 0
    assert [store.max_offset("T", queue_id) for queue_id in (0, 1)] == [60, 1]
    store.close()


def test_a_queue_whose_newest_record_is_damaged_at_the_start_of_the_log_is_rebuilt(tmp_path: Path) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    store.append(draft("T", 1, b"at position 0"), NOW_MS)
    store.append(draft("T", 0, b"another"), NOW_MS)
    store.close()
    change(tmp_path / LOG, 4, b"?")
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 1
    assert [store.max_offset("T", queue_id) for queue_id in (0, 1)] == [1, 1]
    store.close()


def test_a_queue_of_a_missing_log_is_not_rebuilt(tmp_path: Path) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    store.append(draft("T", 0, b"at position 0"), NOW_MS)
    end = store.max_position
    store.close()
    (tmp_path / LOG).unlink()
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 0
    assert (store.max_offset("T", 0), store.max_position) == (1, end)
    store.close()


def test_a_queue_whose_newest_record_was_in_the_missing_last_file_is_not_rebuilt(tmp_path: Path) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    for _ in range(30):
        store.append(draft("T", 0, b"x" * 100), NOW_MS)
    end = store.max_position
    store.close()
    assert 4096 < end < 8192
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 0
    assert store.max_offset("T", 0) == 30
    store.close()


STORED_AT = 56
"""Where a record has its time; no checksum covers it."""


@pytest.mark.parametrize(
    ("firsts", "starts"),
    [
        ((10, 50, 100), {0: 0, 49: 0, 50: 4096, 99: 4096, 100: 8192}),
        ((5, 1, 0), {0: 0, 1: 4096}),  # 0 is no time
        ((10, 50, None), {100: 4096}),
    ],
)
def test_without_a_note_recovery_starts_with_the_last_file_whose_first_record_is_old_enough(
    tmp_path: Path, firsts: tuple[int | None, ...], starts: dict[int, int]
) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    for _ in range(9):
        store.append(draft("T", 0, b"x" * 1200), NOW_MS)
    store.close()
    for number, first in enumerate(firsts):
        file = tmp_path / "commitlog" / f"{number * 4096:020d}"
        if first is None:
            change(file, 4, b"?")
        else:
            change(file, STORED_AT, first.to_bytes(8, "big"))
    log = CommitLog(tmp_path / "commitlog", 4096, Disk(), OpenSegments(10))
    log.load()
    assert {trusted_ms: _find_start(log, trusted_ms) for trusted_ms in starts} == starts
    log.close()


def test_a_removed_index_is_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path).close()
    shutil.rmtree(tmp_path / "index")
    store, recovered = reopen(tmp_path)
    assert (recovered.rebuilt_queues, recovered.rebuilt_index) == (0, True)
    assert "rebuilding from the log queues=0 index=True from=0" in caplog.text
    for number in range(10):
        assert len(store.find_by_key("T", f"k{number}", 9, 0, NOW_MS * 2).positions) == 1
    store.close()


def test_without_an_index_none_is_rebuilt(tmp_path: Path) -> None:
    store = small_store(tmp_path, NoSyncDisk(), index_enabled=False)
    store.append(draft("T", 0, b"a", {"KEYS": "k"}), NOW_MS)
    store.close()
    store = small_store(tmp_path, NoSyncDisk(), index_enabled=False)
    assert store.recovered is not None
    assert (store.recovered.rebuilt_index, store.recovered.rebuilt_queues) == (False, 0)
    assert not (tmp_path / "index").exists()
    store.close()


def test_a_log_without_keys_needs_no_index_entries(tmp_path: Path) -> None:
    store = small_store(tmp_path, NoSyncDisk())
    for _ in range(5):
        store.append(draft("T", 0, b"no key"), NOW_MS)
    store.close()
    for path in (tmp_path / "index").iterdir():
        path.unlink()
    store, recovered = reopen(tmp_path)
    assert not recovered.rebuilt_index
    assert len(list((tmp_path / "index").iterdir())) == 1  # so that the next start does not take it for missing
    store.close()


def test_offsets_of_messages_that_the_log_lost_are_not_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = fill(tmp_path)
    end = store.max_position
    cut_at = store.unit("T", 1, 2)
    assert cut_at is not None
    store.close()
    change(tmp_path / LOG, cut_at[0], bytes(end - cut_at[0]))
    (tmp_path / "abort").write_text(f"1\n{NoSyncDisk().boot_id()}")
    store, recovered = reopen(tmp_path)
    assert [store.max_offset("T", queue_id) for queue_id in (0, 1)] == [5, 5]
    # The newest unit is checked; the others point to zeros, which readers skip.
    assert [line for line in caplog.messages if "messages lost" in line] == [
        f"messages lost topic=T queue={queue_id} offsets=4..4" for queue_id in (0, 1)
    ]
    added = store.append(draft("T", 0, b"new"), NOW_MS)
    assert (added.queue_offset, added.log_position) == (5, end)
    assert sorted((each.queue_id, each.offset) for each in read_store(store)) == [
        *((0, 0), (0, 1), (0, 2), (0, 5)),
        *((1, 0), (1, 1)),
    ]
    assert recovered.damaged == ()
    store.close()
    store, recovered = reopen(tmp_path)
    assert recovered.rebuilt_queues == 0, "a unit without a message needs no record"
    store.close()


# --------------------------------------------------------------------------------------------------------------- damage


def test_a_damaged_body_is_reported_with_its_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = fill(tmp_path)
    unit = store.unit("T", 1, 2)
    assert unit is not None
    store.close()
    change(tmp_path / LOG, unit[0] + 88, b"?")
    shutil.rmtree(tmp_path / "consumequeue")
    store, recovered = reopen(tmp_path)
    (damaged,) = recovered.damaged
    assert (damaged.position, damaged.size, damaged.reason) == (unit[0], unit[1], BAD_BODY)
    assert (damaged.end, damaged.file_offset, damaged.file) == (unit[0] + unit[1], unit[0], tmp_path / LOG)
    assert isinstance(damaged.lost, ScannedRecord)
    assert (damaged.lost.topic, damaged.lost.queue_id, damaged.lost.queue_offset) == ("T", 1, 2)
    assert f"offset={unit[0]} bytes={unit[1]} reason='{BAD_BODY}' topic='T' queue=1 offset=2" in caplog.text
    assert store.damage.count == 1
    assert store.damage.bytes == unit[1]
    assert store.record_at(unit[0]) is None
    assert len(bodies(store, "T", 0)) == 5
    store.close()


@pytest.mark.parametrize("keeps_zeros", [True, False])
def test_a_torn_tail_is_copied_and_cut_off(tmp_path: Path, keeps_zeros: bool, caplog: pytest.LogCaptureFixture) -> None:
    store = fill(tmp_path)
    end = store.max_position
    store.kill()
    tail = b"half a record" + (bytes(50) + b"more" if keeps_zeros else b"")
    change(tmp_path / LOG, end, tail)
    store, recovered = reopen(tmp_path)
    (cut,) = recovered.cuts
    assert cut == CutTail(end, len(tail), tmp_path / LOG, tmp_path / "commitlog.cut" / f"{LOG.name}.cut-{NOW_MS + 99}")
    assert cut.kept_in.read_bytes() == tail
    assert recovered.bytes_cut == len(tail)
    assert recovered.damaged == ()
    assert store.max_position == end
    assert not (tmp_path / LOG).read_bytes()[end:].strip(b"\0")
    assert f"torn tail of the log cut off file={tmp_path / LOG} offset={end} bytes={len(tail)}" in caplog.text
    assert store.damage.cuts == (cut,)
    store.close()


def test_the_line_of_a_damaged_record_has_at_most_255_characters_of_its_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = fill(tmp_path)
    end, message = store.max_position, read_all(store)[0]
    store.kill()
    changed = msgspec.structs.replace(message, topic="t" * 300, queue_id=7, queue_offset=3, log_position=end)
    change(tmp_path / LOG, end, encode_record(changed).replace(b"body", b"BODY"))
    store, recovered = reopen(tmp_path)
    (damaged,) = recovered.damaged
    assert (damaged.position, damaged.reason) == (end, BAD_BODY)
    assert f"reason={BAD_BODY!r} topic={'t' * 255!r} queue=7 offset=3" in caplog.text
    store.close()


def test_noise_between_records_is_reported_and_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = fill(tmp_path)
    store.close()
    size = store._log.end // 10
    change(tmp_path / LOG, 3 * size, b"\xff" * 2 * size)
    shutil.rmtree(tmp_path / "consumequeue")
    store, recovered = reopen(tmp_path)
    assert [(each.position, each.size, each.reason) for each in recovered.damaged] == [(3 * size, 2 * size, BAD_HEAD)]
    line = (
        f"damaged range of the log skipped file={tmp_path / LOG} offset={3 * size} bytes={2 * size} reason={BAD_HEAD!r}"
    )
    assert line in caplog.messages
    assert len(bodies(store, "T", 0)) + len(bodies(store, "T", 1)) == 8
    store.close()


def test_zeros_between_records_are_reported_as_zeros(tmp_path: Path) -> None:
    store = fill(tmp_path)
    store.close()
    size = store._log.end // 10
    change(tmp_path / LOG, 3 * size, bytes(2 * size))
    shutil.rmtree(tmp_path / "consumequeue")
    store, recovered = reopen(tmp_path)
    assert [(each.position, each.size, each.reason) for each in recovered.damaged] == [(3 * size, 2 * size, ZEROS)]
    store.close()


def test_a_missing_file_of_the_log_is_reported(tmp_path: Path) -> None:
    fill(tmp_path, 60, body=b"x" * 100).close()
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    store, recovered = reopen(tmp_path)
    assert [(each.position, each.size, each.reason) for each in recovered.damaged] == [(4096, 4096, MISSING_FILE)]
    assert recovered.damaged[0].file.name == f"{4096:020d}"
    store.close()


def test_only_the_first_damaged_ranges_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyroute.broker.store.recovery.recover.LINES_MAX", 2)
    store = fill(tmp_path, 20)
    places = [unit[0] for offset in range(5) if (unit := store.unit("T", 0, offset)) is not None]
    store.close()
    for place in places:
        change(tmp_path / LOG, place + 88, b"?")
    shutil.rmtree(tmp_path / "consumequeue")
    caplog.set_level(logging.WARNING)
    store, recovered = reopen(tmp_path)
    assert len(recovered.damaged) == 5
    assert caplog.text.count("damaged range of the log skipped") == 2
    assert "more damaged ranges of the log skipped count=3" in caplog.text
    store.close()
    monkeypatch.setattr("skyroute.broker.store.recovery.recover.LINES_MAX", 5)
    shutil.rmtree(tmp_path / "consumequeue")
    caplog.clear()
    reopen(tmp_path)[0].close()
    assert caplog.text.count("damaged range of the log skipped") == 5
    assert "more damaged ranges" not in caplog.text


# ------------------------------------------------------------------------------------------------------- damage reports


def ranged(position: int, size: int = 10, reason: str = TORN) -> DamagedRange:
    return DamagedRange(position, size, Path("commitlog") / f"{0:020d}", reason)


def cut_tail(position: int) -> CutTail:
    return CutTail(position, 5, Path("commitlog") / f"{0:020d}", Path("commitlog.cut") / "x")


def test_a_range_is_cut_at_the_end_of_the_log() -> None:
    assert ranged(100).cut_at(110) == ranged(100)
    assert ranged(100).cut_at(109) == ranged(100, 9)
    assert replace(ranged(100), file=Path("commitlog") / f"{40:020d}").file_offset == 60


def test_reports_are_merged_by_position_within_the_log() -> None:
    old = DamageReport((ranged(50), ranged(100), ranged(200), ranged(395)), 4, 40, (cut_tail(1),))
    merged = old.merge([ranged(100, 20, ZEROS), ranged(70)], [cut_tail(2)], range(60, 400))
    assert [(each.position, each.size) for each in merged.ranges] == [(70, 10), (100, 20), (200, 10), (395, 5)]
    assert (merged.count, merged.bytes) == (4, 45)
    assert [cut.position for cut in merged.cuts] == [1, 2]
    assert not merged.is_empty
    assert DamageReport().is_empty
    assert not DamageReport(cuts=(cut_tail(1),)).is_empty


def test_ranges_beyond_the_bound_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "RANGES_MAX", 2)
    monkeypatch.setattr(damage, "CUTS_MAX", 2)
    first = DamageReport().merge([ranged(at) for at in (0, 20, 40)], [cut_tail(at) for at in (1, 2, 3)], range(100))
    assert ([each.position for each in first.ranges], first.count, first.bytes) == ([0, 20], 3, 30)
    assert [cut.position for cut in first.cuts] == [2, 3]
    second = first.merge([ranged(60)], [], range(10, 100))
    assert ([each.position for each in second.ranges], second.count, second.bytes) == ([20, 60], 3, 30)


def test_a_report_survives_a_restart(tmp_path: Path) -> None:
    files = DamageFile(tmp_path, NoSyncDisk())
    assert files.load() == DamageReport()
    files.save(DamageReport())
    assert not (tmp_path / "damage.json").exists()
    log = tmp_path / "commitlog" / f"{0:020d}"
    cut = CutTail(90, 5, log, tmp_path / "commitlog.cut" / "x.cut")
    report = DamageReport((DamagedRange(10, 20, log, ZEROS),), 3, 60, (cut,))
    files.save(report)
    assert DamageFile(tmp_path, NoSyncDisk()).load() == report
    files.save(DamageReport())
    assert files.load() == DamageReport()


def test_a_report_is_written_to_the_disk_of_its_store(tmp_path: Path) -> None:
    class Full(NoSyncDisk):
        def create(self, path: Path, *, like: Path | None = None) -> int:
            raise DiskFullError(f"no room for {path}")

    with pytest.raises(DiskFullError):
        DamageFile(tmp_path, Full()).save(DamageReport(cuts=(cut_tail(1),)))


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"ranges":[[1]]}', b'{"ranges":3}', b'{"count":"x","bytes":0,"ranges":[],"cuts":[]}']
)
def test_a_damaged_report_is_empty_and_logged(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "damage.json").write_bytes(content)
    assert DamageFile(tmp_path, NoSyncDisk()).load() == DamageReport()
    assert f"damage report not readable file={tmp_path / 'damage.json'}" in caplog.text


def test_a_long_report_is_read_up_to_the_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damage, "RANGES_MAX", 2)
    monkeypatch.setattr(damage, "CUTS_MAX", 1)
    rows = [[at, 1, "0", "zeros"] for at in range(3)]
    content = {"count": 3, "bytes": 3, "ranges": rows, "cuts": [[at, 1, "a", "b"] for at in range(3)]}
    JsonFile(tmp_path / "damage.json", NoSyncDisk()).save(content)
    report = DamageFile(tmp_path, NoSyncDisk()).load()
    assert [each.position for each in report.ranges] == [0, 1]
    assert [cut.position for cut in report.cuts] == [0]
    assert report.ranges[0].file == tmp_path / "commitlog" / f"{0:020d}"
    assert os.fspath(report.cuts[0].kept_in) == os.fspath(tmp_path / "commitlog.cut" / "b")


# ------------------------------------------------------------------------------------------------- bounds of cut tails


@pytest.mark.parametrize(("files_max", "bytes_max"), [(3, 1 << 30), (100, 3 * 20)])
def test_the_oldest_cut_tails_are_removed_with_a_log_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, files_max: int, bytes_max: int
) -> None:
    monkeypatch.setattr(cut_tails, "CUT_FILES_MAX", files_max)
    monkeypatch.setattr(cut_tails, "CUT_BYTES_MAX", bytes_max)
    log = CommitLog(tmp_path / "commitlog", 4096, Disk(), OpenSegments(10))
    log.load()
    log.append(log.place(20), b"x" * 20)
    cuts = [save_tail(log, 0, now_ms, Disk())[0] for now_ms in (9, 10, 11, 100, 1000)]
    log.close()
    names = sorted(path.name for path in (tmp_path / "commitlog.cut").iterdir())
    assert names == [f"{0:020d}.cut-{now_ms}" for now_ms in (100, 1000, 11)]
    assert cuts[-1].kept_in.read_bytes() == b"x" * 20
    assert caplog.text.count("old tail of the log removed") == 2


@pytest.mark.parametrize("dispatched", [7, 10])
def test_a_damaged_offset_behind_a_gap_does_not_cost_the_record_before_it(tmp_path: Path, dispatched: int) -> None:
    store, positions = small_store(tmp_path, NoSyncDisk()), []
    for number in range(10):
        positions.append(store.append(draft(properties={"KEYS": f"k{number}"}), NOW_MS + number).log_position)
        if number + 1 == dispatched:
            store.dispatch()
    store.kill()
    change(tmp_path / LOG, positions[3], bytes(positions[6] - positions[3]))
    change(tmp_path / LOG, positions[7] + 20, (2).to_bytes(8, "big"))
    shutil.rmtree(tmp_path / "consumequeue")
    store, _ = reopen(tmp_path)
    assert [message.offset for message in read_store(store)] == [0, 1, 2, 6, 8, 9]
    for number in (6, 7, 8, 9):
        assert len(store.find_by_key("T", f"k{number}", 9, 0, NOW_MS * 2).positions) == 1
    store.kill()


def test_many_cut_tails_are_removed_at_once_and_other_files_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = CommitLog(tmp_path / "commitlog", 4096, Disk(), OpenSegments(10))
    log.load()
    log.append(log.place(20), b"x" * 20)
    folder = tmp_path / "commitlog.cut"
    for now_ms in (1, 5, 6, 100):
        save_tail(log, 0, now_ms, Disk())
    for name in ("notes", "of-\N{SUPERSCRIPT TWO}", "a-copy.cut-7"):
        (folder / name).write_bytes(b"")
    (folder / "a-folder").mkdir()

    def left(files_max: int, now_ms: int) -> set[str]:
        monkeypatch.setattr(cut_tails, "CUT_FILES_MAX", files_max)
        save_tail(log, 0, now_ms, Disk())
        return {path.name.removeprefix(f"{0:020d}") for path in folder.iterdir() if path.is_file()}

    assert left(6, 200) == {".cut-1", ".cut-5", ".cut-6", "a-copy.cut-7", ".cut-100", ".cut-200"}
    assert left(3, 300) == {".cut-100", ".cut-200", ".cut-300"}
    log.close()


def test_a_cut_over_several_files_keeps_each_and_skips_empty_ones(tmp_path: Path) -> None:
    log = CommitLog(tmp_path / "commitlog", 4096, Disk(), OpenSegments(10))
    log.load()
    for size in (4000, 4000, 4000):
        log.append(log.place(size), b"x" * size)
    first, second, third = log.segments
    change(second.path, 0, bytes(4096))
    cuts = save_tail(log, 1000, 7, Disk())
    assert [(cut.position, cut.file) for cut in cuts] == [(1000, first.path), (8192, third.path)]
    assert cuts[0].kept_in.read_bytes() == first.path.read_bytes()[1000:].rstrip(b"\0")
    assert save_tail(log, 4096, 8, Disk())[0].position == 8192
    log.close()
