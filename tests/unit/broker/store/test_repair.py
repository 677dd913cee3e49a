"""A repaired copy has every intact record at its position; the original does not change."""

import os
import random
import shutil
from pathlib import Path

import pytest

from skyroute.broker.scheduling.timer_check import damage_of
from skyroute.broker.store.errors import StoreLockedError
from skyroute.broker.store.verification.filler import FILLER_BYTES_MIN, fill
from skyroute.broker.store.verification.findings import Report
from skyroute.broker.store.verification.repair import Repair, Repaired
from skyroute.broker.store.verification.verify import StoreCheck
from skyroute.broker.table_readers import TABLES
from skyroute.files.errors import StorageError
from skyroute.message.message import StoredMessage
from skyroute.message.record import decode_record
from tests.support.damage import BATCHES, QUEUES, checksum, fill_store, open_store
from tests.support.disks import NOW_MS, SMALL, NoSyncDisk, draft

CASES = int(os.environ.get("SKYROUTE_VERIFY_CASES", "400")) // 8
"""Number of random damages; more on demand."""

Place = tuple[str, int, int]
"""Topic, queue and offset."""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    fill_store(folder)
    return folder


@pytest.fixture
def folder(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "store"))


def repair(folder: Path, target: Path) -> tuple[Repaired, Report]:
    """Repair a store, check that it was not changed, and check the copy."""
    before = checksum(folder)
    work = Repair(folder, target, TABLES, damage_of, SMALL, lambda topic: topic == BATCHES, NoSyncDisk())
    repaired = work.run(NOW_MS + 1_000_000)
    assert checksum(folder) == before
    report = StoreCheck(target, TABLES, damage_of, SMALL).run()
    assert report == work.report
    return repaired, report


def content_of(folder: Path) -> dict[Place, StoredMessage]:
    """Return all messages by topic, queue and offset, as consumers read them. Opens and so changes the store."""
    store = open_store(folder)
    found: dict[Place, StoredMessage] = {}
    for topic, queues in QUEUES.items():
        for queue_id in range(queues):
            for offset in range(store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)):
                read = store.read_queue(topic, queue_id, offset, 1, 1 << 20)
                for chunk in read.chunks:
                    message = decode_record(bytes(chunk), check_crc=True)
                    found[topic, queue_id, message.queue_offset] = message
    store.close()
    return found


def test_an_intact_store_is_copied_unchanged(folder: Path, tmp_path: Path) -> None:
    repaired, report = repair(folder, tmp_path / "copy")
    assert (repaired.records, repaired.lost_ranges, repaired.losses) == (75, 0, [])
    assert (report.findings, report.notes) == ([], [])
    log = sorted((folder / "commitlog").iterdir())
    assert [path.read_bytes() for path in log] == [
        (tmp_path / "copy" / "commitlog" / path.name).read_bytes() for path in log
    ]
    assert content_of(tmp_path / "copy") == content_of(folder)


def test_a_store_whose_process_died_is_copied_with_its_last_record(tmp_path: Path) -> None:
    fill_store(tmp_path / "store", close=False)
    repaired, report = repair(tmp_path / "store", tmp_path / "copy")
    assert (repaired.records, report.findings) == (76, [])
    assert content_of(tmp_path / "copy")["T", 0, 20].body == b"not derived"


def test_an_unfinished_batch_is_left_out(folder: Path, tmp_path: Path) -> None:
    store = open_store(folder)
    position = store.max_position
    store.append(draft("T", 0, b"first of a batch"), NOW_MS)
    store._checkpoint.begin_batch(position)
    store.kill()
    assert any("was not written whole" in note for note in StoreCheck(folder, TABLES, damage_of, SMALL).run().notes)
    repaired, report = repair(folder, tmp_path / "copy")
    assert repaired.records == 75
    assert "not stored whole" in repaired.losses[0]
    assert (report.findings, report.notes) == ([], [])
    assert all(b"first of a batch" not in message.body for message in content_of(tmp_path / "copy").values())


def test_a_batch_of_an_earlier_boot_is_kept(folder: Path, tmp_path: Path) -> None:
    store = open_store(folder)
    store._checkpoint.begin_batch(store.max_position)
    store.append(draft("T", 0, b"stored"), NOW_MS)
    store.kill()
    (folder / "abort").write_text("1\nanother-boot")
    assert repair(folder, tmp_path / "copy")[0].records == 76


def test_a_damaged_record_leaves_a_gap_and_the_others_keep_their_positions(folder: Path, tmp_path: Path) -> None:
    before = content_of(Path(shutil.copytree(folder, tmp_path / "read")))
    lost = before["T", 1, 7]
    path = folder / "commitlog" / f"{lost.log_position // 4096 * 4096:020d}"
    content = bytearray(path.read_bytes())
    content[lost.log_position % 4096 + 90] ^= 1
    path.write_bytes(content)
    repaired, report = repair(folder, tmp_path / "copy")
    assert (repaired.lost_ranges, repaired.lost_bytes) == (1, lost.record_bytes)
    assert report.findings == []
    assert report.notes == [f"{lost.record_bytes} bytes in 1 places were lost before an earlier repair"]
    del before["T", 1, 7]
    assert content_of(tmp_path / "copy") == before
    store = open_store(tmp_path / "copy")
    assert store.append(draft("T", 1), NOW_MS + 2_000_000).queue_offset == 20
    assert store.find_by_key("T", "k4", 10, 0, NOW_MS * 2).positions
    assert not store.find_by_key("T", "k22", 10, 0, NOW_MS * 2).positions, "the key of the lost one"
    store.close()


@pytest.mark.parametrize("has_list", [False, True])
@pytest.mark.parametrize(("topic", "queue_id", "end"), [("T", 2, 20), ("Other", 0, 9), (BATCHES, 0, 18)])
def test_the_offset_of_a_lost_last_message_is_not_reused(
    folder: Path, tmp_path: Path, topic: str, queue_id: int, end: int, has_list: bool
) -> None:
    before = content_of(Path(shutil.copytree(folder, tmp_path / "read")))
    lost = before[max(place for place in before if place[:2] == (topic, queue_id))]
    path = folder / "commitlog" / f"{lost.log_position // 4096 * 4096:020d}"
    content = bytearray(path.read_bytes())
    content[lost.log_position % 4096 + 4] ^= 1
    path.write_bytes(content)
    if not has_list:  # as in a folder of Apache's
        (folder / "queues").unlink()
    _, report = repair(folder, tmp_path / "copy")
    assert report.findings == []
    store = open_store(tmp_path / "copy")
    assert store.append(draft(topic, queue_id), NOW_MS + 2_000_000).queue_offset == end
    store.close()


def test_a_missing_log_file_loses_only_its_messages(folder: Path, tmp_path: Path) -> None:
    before = content_of(Path(shutil.copytree(folder, tmp_path / "read")))
    (folder / "commitlog" / "00000000000000004096").unlink()
    repaired, report = repair(folder, tmp_path / "copy")
    assert (repaired.lost_ranges, repaired.lost_bytes) == (1, 4096)
    assert report.findings == []
    assert content_of(tmp_path / "copy") == {
        place: message for place, message in before.items() if not 4096 <= message.log_position < 8192
    }


@pytest.mark.parametrize("name", ["consumequeue", "batchconsumequeue", "index", "checkpoint"])
def test_queues_and_index_are_rebuilt_from_the_log(folder: Path, tmp_path: Path, name: str) -> None:
    before = content_of(Path(shutil.copytree(folder, tmp_path / "read")))
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    repaired, report = repair(folder, tmp_path / "copy")
    assert (repaired.lost_ranges, report.findings) == (0, [])
    assert content_of(tmp_path / "copy") == before


def test_the_backup_replaces_a_damaged_table(folder: Path, tmp_path: Path) -> None:
    (folder / "config" / "topics.json").write_bytes(b"")
    (folder / "config" / "consumerOffset.json").write_bytes(b"{")
    (folder / "config" / "consumerOffset.json.bak").write_bytes(b"{")
    (folder / "config" / "broker.properties").write_bytes(b"brokerName=a\n")
    repaired, report = repair(folder, tmp_path / "copy")
    assert repaired.losses == [
        "config/consumerOffset.json and its backup are damaged; the copy has neither",
        "config/topics.json is damaged; the copy has its backup",
    ]
    assert report.findings == []
    assert sorted(path.name for path in (tmp_path / "copy" / "config").iterdir()) == [
        *("broker.properties", "delayOffset.json", "delayOffset.json.bak"),
        *("subscriptionGroup.json", "subscriptionGroup.json.bak", "topics.json"),
    ]


def test_offsets_of_queues_with_expired_records_continue(folder: Path, tmp_path: Path) -> None:
    store = open_store(folder)
    while store.max_position < 40_000:
        store.append(draft("T", 2, b"x" * 500), NOW_MS + 100_000)
    store.delete_expired(NOW_MS + 10**9, is_due=True, disk_used=0.1)
    assert store.min_offset("T", 0) == store.max_offset("T", 0) == 20
    store.close()
    _, report = repair(folder, tmp_path / "copy")
    assert report.findings == []
    store = open_store(tmp_path / "copy")
    assert store.append(draft("T", 0), NOW_MS + 2_000_000).queue_offset == 20
    store.close()


def test_deleted_topics_stay_deleted(folder: Path, tmp_path: Path) -> None:
    store = open_store(folder)
    store.delete_topic("Other")
    store.close()
    topics = folder / "config" / "topics.json"
    topics.write_bytes(topics.read_bytes().replace(b'"Other"', b'"Another"'))
    _, report = repair(folder, tmp_path / "copy")
    assert report.findings == []
    assert not (tmp_path / "copy" / "consumequeue" / "Other").exists()


def test_any_damage_loses_at_most_the_records_it_touches(folder: Path, tmp_path: Path) -> None:
    before = content_of(Path(shutil.copytree(folder, tmp_path / "read")))
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.parent.name != "config"]
    chance = random.Random(18)
    for case in range(CASES):
        path = chance.choice(files)
        content = path.read_bytes()
        damaged = bytearray(content)
        at, size = chance.randrange(len(content)), chance.choice([1, 1, 40, 700])
        damaged[at : at + size] = chance.randbytes(len(damaged[at : at + size]))
        path.write_bytes(damaged)
        target = tmp_path / f"copy-{case}"
        _, report = repair(folder, target)
        assert report.findings == [], (path, at, size)
        found = content_of(target)
        for place, message in before.items():
            position = message.log_position
            is_touched = path.parent.name == "commitlog" and (
                position < int(path.name) + at + size and int(path.name) + at < position + message.record_bytes
            )
            assert is_touched or found[place] == message, (path, at, size, place)
        path.write_bytes(content)
        shutil.rmtree(target)


def test_repair_refuses_unsafe_folders(folder: Path, tmp_path: Path) -> None:
    def run(source: Path, target: Path) -> None:
        Repair(source, target, TABLES, damage_of, SMALL).run(NOW_MS)

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(StorageError, match="is not empty"):
        run(folder, tmp_path / "full")
    with pytest.raises(StorageError, match="contain each other"):
        run(folder, folder / "copy")
    with pytest.raises(StorageError, match="is not a store"):
        run(tmp_path / "full", tmp_path / "copy")
    store = open_store(folder)
    with pytest.raises(StoreLockedError, match="stop it first"):
        run(folder, tmp_path / "copy")
    store.close()
    assert not (tmp_path / "copy").exists()
    (tmp_path / "copy").mkdir()
    run(folder, tmp_path / "copy")


def test_fillers_are_valid_records() -> None:

    for size in (FILLER_BYTES_MIN, 107, 300, 3 << 20, (1 << 20) + 1):
        pieces = list(fill(4096, size, NOW_MS))
        assert sum(map(len, pieces)) == size
        position = 4096
        for piece in pieces:
            message = decode_record(piece, check_crc=True)
            assert (message.log_position, message.stored_at_ms) == (position, NOW_MS)
            position += len(piece)
    assert list(fill(0, FILLER_BYTES_MIN - 1, NOW_MS)) == []
