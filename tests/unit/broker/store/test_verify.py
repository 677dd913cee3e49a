"""A check of a store finds any single damage that can be found, and changes nothing."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from skyroute.broker.scheduling.timer_check import TimerCheck, TimerProgress, damage_of
from skyroute.broker.store.errors import StoreLockedError
from skyroute.broker.store.verification.findings import Report
from skyroute.broker.store.verification.verify import StoreCheck
from skyroute.broker.table_readers import TABLES
from skyroute.files.errors import StorageError
from skyroute.message.message import StoredMessage
from skyroute.message.record import encode_record
from tests.support.damage import QUEUES, checksum, fill_store, open_store
from tests.support.disks import NOW_MS, SMALL, draft, read_all

CASES = int(os.environ.get("SKYROUTE_VERIFY_CASES", "400"))
"""Number of random damages; more on demand."""


def verify(folder: Path) -> Report:
    """Check a folder, and that nothing in it is changed."""
    before = checksum(folder)
    report = StoreCheck(folder, TABLES, damage_of, SMALL).run()
    assert checksum(folder) == before
    return report


def files_of(report: Report) -> list[tuple[str, str]]:
    return [(finding.area, finding.file) for finding in report.findings]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    fill_store(folder)
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "store"))


def messages_of(folder: Path) -> list[StoredMessage]:
    """Return all records except batches, in log order. Opens and so changes the store."""
    store = open_store(folder)
    found = [
        each for topic, queues in QUEUES.items() for queue in range(queues) for each in read_all(store, topic, queue)
    ]
    store.close()
    return sorted(found, key=lambda message: message.log_position)


# ------------------------------------------------------------------------------------------------------- sound stores


def test_a_closed_store_has_no_findings(folder: Path) -> None:
    report = verify(folder)
    assert (report.findings, report.notes) == ([], [])
    assert report.checked["records"] == report.checked["units"] == 75
    assert report.checked["index entries"] == 186
    assert (report.checked["queues"], report.checked["tables"]) == (5, 8)


def test_a_store_whose_process_died_has_no_findings(tmp_path: Path) -> None:
    fill_store(tmp_path, close=False)
    report = verify(tmp_path)
    assert report.findings == []
    assert any("1 records at the end of the log have no unit yet" in note for note in report.notes)


def test_an_empty_store_has_no_findings(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    assert verify(tmp_path).findings == []


def test_a_recreated_topic_is_no_damage(folder: Path) -> None:
    store = open_store(folder)
    store.delete_topic("T")
    for number in range(5):
        store.append(draft("T", 0, b"again", {"KEYS": "again"}), NOW_MS + 100_000 + number)
    store.close()
    assert verify(folder).findings == []
    store = open_store(folder)
    store.delete_topic("Other")
    store.close()
    topics = json.loads((folder / "config" / "topics.json").read_bytes())
    del topics["topicConfigTable"]["Other"]
    (folder / "config" / "topics.json").write_text(json.dumps(topics))
    assert verify(folder).findings == []


def test_expired_records_are_no_damage(folder: Path) -> None:
    store = open_store(folder)
    store.delete_expired(NOW_MS + 10**9, is_due=True, disk_used=0.1)
    assert store.min_position > 0
    store.close()
    assert verify(folder).findings == []


def test_a_queue_that_starts_above_offset_0_is_no_damage(folder: Path) -> None:
    store = open_store(folder)
    store.delete_expired(NOW_MS + 10**9, is_due=True, disk_used=0.1)
    store.close()
    shutil.rmtree(folder / "consumequeue" / "T" / "0")
    shutil.rmtree(folder / "index")
    open_store(folder).close()
    assert verify(folder).findings == []


# ------------------------------------------------------------------------------------------------------------- damage


def flip(path: Path, at: int, bit: int = 0x40) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)


def test_a_damaged_body_is_found_with_its_message(folder: Path) -> None:
    message = messages_of(folder)[20]
    name = f"{message.log_position // 4096 * 4096:020d}"
    flip(folder / "commitlog" / name, message.log_position % 4096 + 88)
    (finding,) = verify(folder).findings
    assert (finding.area, finding.file) == ("log", f"commitlog/{name}")
    assert finding.offset == message.log_position % 4096
    assert "match its checksum" in finding.what
    assert f"(topic {message.topic!r}, queue {message.queue_id}, offset {message.queue_offset})" in finding.what
    assert "lost" in finding.cost
    assert "repair" in finding.advice


@pytest.mark.parametrize("field", [0, 4, 8, 12, 20, 28, 84])
def test_a_damaged_header_is_found(folder: Path, field: int) -> None:
    message = messages_of(folder)[20]
    path = folder / "commitlog" / f"{message.log_position // 4096 * 4096:020d}"
    flip(path, message.log_position % 4096 + field + 3, 0x01)
    assert verify(folder).count


def test_a_checksum_of_the_whole_record_is_checked(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sealed" / "commitlog").mkdir(parents=True)
    log = tmp_path / "sealed" / "commitlog" / "00000000000000000000"
    sealed = encode_record(msgspec.structs.replace(messages_of(folder)[0], log_position=0), seal=True)
    log.write_bytes(sealed.ljust(4096, b"\0"))
    assert not [finding for finding in verify(tmp_path / "sealed").findings if finding.area == "log"]
    flip(log, 16)  # a flag that no other check covers
    (found,) = [finding for finding in verify(tmp_path / "sealed").findings if finding.area == "log"]
    assert found.what == "the checksum of the whole record is wrong (topic 'T', queue 0, offset 0)"


def test_a_sign_bit_in_one_unit_is_one_finding(folder: Path) -> None:
    path = folder / "consumequeue" / "T" / "1" / "00000000000000000000"
    flip(path, 5 * 20, 0x80)
    (finding,) = verify(folder).findings
    assert (finding.file, finding.offset) == ("consumequeue/T/1/00000000000000000000", 100)
    assert finding.what.startswith("unit 5: points to -")


def test_data_behind_the_last_unit_is_found(folder: Path) -> None:
    flip(folder / "consumequeue" / "Other" / "0" / "00000000000000000000", 190)
    assert files_of(verify(folder)) == [("queue", "consumequeue/Other/0/00000000000000000000")]


def test_a_removed_queue_is_found(folder: Path) -> None:
    shutil.rmtree(folder / "consumequeue" / "T" / "2")
    (finding,) = verify(folder).findings
    assert finding.file == "consumequeue/T/2"
    assert "the log has 20 records of it" in finding.what


@pytest.mark.parametrize("name", ["topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"])
@pytest.mark.parametrize("content", [b"", bytes(50), b'{"a"', b"[]", b"{}"])
def test_a_damaged_table_is_found(folder: Path, name: str, content: bytes) -> None:
    path = folder / "config" / name
    path.write_bytes(content)
    (finding,) = verify(folder).findings
    assert (finding.area, finding.file, finding.cost) == (
        *("table", f"config/{name}", "the newest change, which is not in the backup"),
    )
    path.with_name(f"{name}.bak").write_bytes(content)
    assert "does not start" in verify(folder).findings[0].cost


def test_a_damaged_timer_file_is_found(folder: Path) -> None:
    store = open_store(folder)
    store.append(draft("rmq_sys_wheel_timer", 0, b"timed"), NOW_MS + 100_000)
    store.close()
    path = folder / "config" / "timercheck"
    assert ("timer", "config/timercheck") in files_of(verify(folder)), "it is missing"
    TimerCheck(path, 1_000).save(TimerProgress(NOW_MS, 1, 1, 1), NOW_MS)
    assert verify(folder).count == 0 or files_of(verify(folder)) == []
    flip(path, 30)
    assert files_of(verify(folder)) == [("timer", "config/timercheck")]
    path.write_bytes(bytes(4096))
    assert files_of(verify(folder)) == [("timer", "config/timercheck")]


def damages(path: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    content = path.read_bytes()
    yield "removed", path.unlink
    yield "empty", lambda: path.write_bytes(b"")
    yield "zeroed", lambda: path.write_bytes(bytes(len(content)))
    yield "cut", lambda: path.write_bytes(content[: len(content) // 2])


HARMLESS = {("removed", ".bak"), ("cut", "queues"), *((kind, "lock") for kind in ("removed", "empty", "zeroed", "cut"))}
"""The next change writes a backup again; the end of the queue ledger is unused; a lock file has no content."""
LIKE_EXPIRY = {("removed", "commitlog/00000000000000000000"), ("empty", "commitlog/00000000000000000000")}
"""A log without its first file looks like one whose first file has expired."""


def test_any_file_that_is_removed_emptied_zeroed_or_cut_is_found(folder: Path) -> None:
    for path in [path for path in sorted(folder.rglob("*")) if path.is_file()]:
        name, content = str(path.relative_to(folder)), path.read_bytes()
        for kind, damage in damages(path):
            damage()
            report = StoreCheck(folder, TABLES, damage_of, SMALL).run()
            is_harmless = (kind, path.suffix) in HARMLESS or (kind, name) in HARMLESS | LIKE_EXPIRY
            assert is_harmless or report.count, f"{kind} {name}"
            path.write_bytes(content)
    assert verify(folder).findings == []


def may_go_unseen(name: str, at: int, content: bytes, messages: list[StoredMessage]) -> bool:
    """Return whether no check covers a byte, or no reader uses it."""
    area, _, rest = name.partition("/")
    match area:
        case "commitlog":
            return may_go_unseen_in_log(int(rest) + at, messages)
        case "index":
            return at < 16 or 32 <= at < 36 or 104 <= at < 124  # times to the second; number of slots; entry 0
        case "batchconsumequeue":
            return at % 46 >= 38  # for compacted topics
        case "config":
            return content[at : at + 1].isalnum() or content[at] == ord("@")  # another name or number
        case "queues":
            return at >= len(content.rstrip(b"\0"))
    return area in ("checkpoint", "lock")


def may_go_unseen_in_log(position: int, messages: list[StoredMessage]) -> bool:
    record = max((each for each in messages if each.log_position <= position), key=lambda each: each.log_position)
    within = position - record.log_position
    if within >= record.record_bytes:
        return True  # behind the last record, or behind the mark that ends a segment
    # The checksum of an empty body; flag, system flag, times, hosts, attempts; properties besides tag and keys.
    in_properties = within >= record.record_bytes - len(record.raw_properties)
    return (8 <= within < 12 and not record.body) or 16 <= within < 20 or 36 <= within < 84 or in_properties


def test_a_flipped_bit_is_found_wherever_a_check_covers_it(folder: Path, tmp_path: Path) -> None:
    messages = messages_of(Path(shutil.copytree(folder, tmp_path / "read")))
    assert len(messages) == 75
    chance = random.Random(17)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    before = checksum(folder)
    for _ in range(CASES):
        path = chance.choice(files)
        name, content, times = str(path.relative_to(folder)), path.read_bytes(), path.stat()
        at, bit = chance.randrange(len(content)), 1 << chance.randrange(8)
        flip(path, at, bit)
        damaged = path.read_bytes()
        report = StoreCheck(folder, TABLES, damage_of, SMALL).run()
        assert path.read_bytes() == damaged
        assert report.count or may_go_unseen(name, at, content, messages), f"{name} at {at}, bit {bit}"
        path.write_bytes(content)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert checksum(folder) == before


# ---------------------------------------------------------------------------------------------------------- not at all


@pytest.mark.parametrize("is_half", [True, False], ids=["half a record", "other bytes"])
@pytest.mark.parametrize("close", [True, False], ids=["closed", "crashed"])
def test_only_the_tail_of_a_crashed_log_counts_as_torn(tmp_path: Path, close: bool, is_half: bool) -> None:
    fill_store(tmp_path)
    store = open_store(tmp_path)
    end = store.max_position
    store.append(draft("T", 0, b"y" * 200), NOW_MS)
    store.dispatch()
    store.close() if close else store.kill()
    segment = max((tmp_path / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(end - int(segment.name) + (150 if is_half else 0))
        file.write(bytes(4000) if is_half else b"z" * 100)
        file.truncate(4096)
    finding = next(finding for finding in verify(tmp_path).findings if finding.area == "log")
    assert ("the next start copies these bytes to commitlog.cut" in finding.advice) is not close


def test_a_store_in_use_is_refused(folder: Path) -> None:
    store = open_store(folder)
    with pytest.raises(StoreLockedError, match="stop it first, or check a copy"):
        verify(folder)
    store.close()
    assert verify(folder).findings == []


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="is not a store"):
        verify(tmp_path)


def test_index_sizes_other_than_the_defaults_must_be_given(folder: Path) -> None:
    with pytest.raises(StorageError, match="maxHashSlotNum"):
        StoreCheck(folder, TABLES, damage_of).run()
