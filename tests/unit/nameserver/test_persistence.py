"""Journal and snapshot of a name server: restarts, damage, and files that cannot be written."""

import asyncio
import logging
import os
import shutil
from pathlib import Path

import pytest

from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.errors import FolderInUseError
from skyroute.nameserver.journal.reader import read_records
from skyroute.nameserver.journal.schema import Kind
from skyroute.nameserver.persistence import Persistence, PersistenceSettings, WarmRestart
from skyroute.nameserver.state_folder import lock_folder
from skyroute.routing.table import RouteTable
from skyroute.settings.errors import BlackListedError
from tests.support.clock import ManualClock
from tests.unit.routing.brokers import registration, tell


def open_persistence(folder: Path, table: RouteTable, clock: ManualClock | None = None) -> Persistence:
    persistence = Persistence.open(PersistenceSettings(folder), clock or now_clock(), table, "127.0.0.1:9876")
    assert persistence is not None
    return persistence


def now_clock() -> ManualClock:
    return ManualClock(wall=1_000.0)


async def live(folder: Path, clock: ManualClock | None = None) -> None:
    """A server's life with one broker, stopped in order."""
    table = RouteTable()
    persistence = open_persistence(folder, table, clock)
    persistence.record(tell(table, registration()).events)
    snapshot = persistence.stop_recording(table)
    persistence.record(table.drop_connection(1))
    await persistence.close(snapshot)
    os.utime(folder / "routes.snapshot", (1_000.0, 1_000.0))


async def restored_topics(folder: Path, clock: ManualClock | None = None) -> set[str]:
    table = RouteTable()
    persistence = open_persistence(folder, table, clock)
    topics = set(table.topics)
    persistence.stop_recording(table)
    await persistence.close()
    return topics


def kinds(folder: Path) -> list[str]:
    return [record.kind for record in read_records(folder / "journal")]


async def test_a_stop_keeps_brokers_whose_connections_end_with_it(tmp_path: Path) -> None:
    await live(tmp_path)
    assert kinds(tmp_path) == [
        Kind.SERVER_STARTED,
        Kind.GROUP_CHANGED,
        Kind.BROKER_JOINED,
        Kind.TOPICS_CHANGED,
        Kind.SERVER_STOPPED,
    ]
    assert await restored_topics(tmp_path) == {"T1", "T2"}


async def test_what_is_restored_is_recorded_after_the_start(tmp_path: Path) -> None:
    await live(tmp_path)
    await restored_topics(tmp_path)
    records = list(read_records(tmp_path / "journal"))[5:]
    assert [(record.kind, record.cause) for record in records] == [
        (Kind.SERVER_STARTED, None),
        (Kind.GROUP_CHANGED, "restored"),
        (Kind.BROKER_JOINED, "restored"),
        (Kind.TOPICS_CHANGED, "restored"),
        (Kind.SERVER_STOPPED, None),
    ]
    assert records[0].restored_brokers == 1
    assert [record.seq for record in records] == [6, 7, 8, 9, 10]
    assert len({record.server for record in read_records(tmp_path / "journal")}) == 1


async def assert_cold_start(folder: Path, caplog: pytest.LogCaptureFixture, reason: str) -> None:
    caplog.set_level(logging.WARNING)
    assert await restored_topics(folder) == set()
    lines = [record.getMessage() for record in caplog.records if "snapshot not used" in record.getMessage()]
    assert len(lines) == 1
    assert reason in lines[0]


async def test_a_damaged_snapshot_is_a_cold_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await live(tmp_path)
    snapshot = tmp_path / "routes.snapshot"
    snapshot.write_bytes(snapshot.read_bytes()[:-10])
    os.utime(snapshot, (1_000.0, 1_000.0))
    await assert_cold_start(tmp_path, caplog, "its checksum is wrong")


async def test_a_snapshot_of_another_server_is_a_cold_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await live(tmp_path / "one")
    await live(tmp_path / "two")
    shutil.copy2(tmp_path / "one" / "routes.snapshot", tmp_path / "two" / "routes.snapshot")
    await assert_cold_start(tmp_path / "two", caplog, "belongs to another name server")


async def test_an_old_snapshot_is_a_cold_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await live(tmp_path)
    os.utime(tmp_path / "routes.snapshot", (1_000.0 - 3601, 1_000.0 - 3601))
    await assert_cold_start(tmp_path, caplog, "it is 3601 s old")


async def test_a_clock_that_stepped_back_makes_no_snapshot_old(tmp_path: Path) -> None:
    await live(tmp_path)
    assert await restored_topics(tmp_path, ManualClock(wall=10.0)) == {"T1", "T2"}


async def test_a_second_server_on_the_folder_is_refused(tmp_path: Path) -> None:
    table = RouteTable()
    persistence = open_persistence(tmp_path, table)
    with pytest.raises(FolderInUseError, match=rf"in use by another name server \(process {os.getpid()}\)"):
        open_persistence(tmp_path, RouteTable())
    await persistence.close()
    await open_persistence(tmp_path, RouteTable()).close()


async def test_a_folder_that_cannot_be_used_disables_persistence_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    settings = PersistenceSettings(tmp_path / "file" / "memory")
    assert Persistence.open(settings, now_clock(), RouteTable(), "") is None
    assert caplog.text.count("no journal and no warm restart") == 1


async def test_a_journal_folder_that_cannot_be_used_disables_the_journal_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "journal").write_bytes(b"in the way")
    persistence = open_persistence(tmp_path, RouteTable())
    assert persistence.journal is None
    assert caplog.text.count("no journal reason=") == 1
    await persistence.close()


async def test_a_snapshot_that_cannot_be_written_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = RouteTable()
    persistence = open_persistence(tmp_path, table)
    (tmp_path / "routes.snapshot").mkdir()
    await persistence._save(table)
    await persistence._save(table)
    assert caplog.text.count("snapshot cannot be written") == 1
    (tmp_path / "routes.snapshot").rmdir()
    await persistence._save(table)
    assert (tmp_path / "routes.snapshot").is_file()
    await persistence.close()


async def test_an_unchanged_table_is_not_written_again_but_stays_fresh(tmp_path: Path) -> None:
    table = RouteTable()
    persistence = open_persistence(tmp_path, table)
    persistence.record(tell(table, registration()).events)
    await persistence._save(table)
    snapshot = tmp_path / "routes.snapshot"
    os.utime(snapshot, (5.0, 5.0))
    before = snapshot.stat()
    await persistence._save(table)
    after = snapshot.stat()
    assert after.st_ino == before.st_ino
    assert after.st_mtime > before.st_mtime
    persistence.record(tell(table, registration(version=2)).events)
    await persistence._save(table)
    assert snapshot.stat().st_ino != before.st_ino
    await persistence.close()


async def test_repeated_crashes_do_not_extend_the_lease_of_a_dead_broker(tmp_path: Path) -> None:
    await live(tmp_path)
    for _ in range(2):
        table, clock = RouteTable(), now_clock()
        persistence = open_persistence(tmp_path, table, clock)
        assert table.unconfirmed_count == 1
        await persistence._save(table)
        clock.advance(30.0)
        await persistence._save(table)  # nothing has happened but that time went by
        await persistence.close()
        os.utime(tmp_path / "routes.snapshot", (1_000.0, 1_000.0))
    table = RouteTable()
    persistence = open_persistence(tmp_path, table)
    assert len(table.evict_expired(now_clock().monotonic())) > 0
    await persistence.close()


async def test_a_snapshot_that_was_under_way_does_not_replace_the_last_one(tmp_path: Path) -> None:
    table = RouteTable()
    persistence = open_persistence(tmp_path, table)
    under_way = table.snapshot(0.0)
    persistence.record(tell(table, registration()).events)
    await persistence.close(persistence.stop_recording(table))
    persistence._write(under_way, 0, 0)
    os.utime(tmp_path / "routes.snapshot", (1_000.0, 1_000.0))
    assert await restored_topics(tmp_path) == {"T1", "T2"}


async def test_an_id_is_created_once_and_replaced_if_damaged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def server_id() -> str:
        folder = lock_folder(tmp_path)
        folder.release()
        return folder.server_id

    first = server_id()
    assert server_id() == first
    (tmp_path / "identity.json").write_bytes(b"{")
    second = server_id()
    assert second != first
    assert server_id() == second
    assert caplog.text.count("name server id lost") == 1


async def test_without_warm_restart_there_is_no_snapshot(tmp_path: Path) -> None:
    settings = PersistenceSettings(tmp_path, warm_restart=None)
    persistence = Persistence.open(settings, now_clock(), RouteTable(), "")
    assert persistence is not None
    table = RouteTable()
    await persistence.run(table)
    await persistence.close(persistence.stop_recording(table))
    assert not (tmp_path / "routes.snapshot").exists()


async def test_without_a_journal_routes_are_kept_all_the_same(tmp_path: Path) -> None:
    settings = PersistenceSettings(tmp_path, journal=None, warm_restart=WarmRestart(age_s_max=1e12))
    for expected in (set(), {"T1", "T2"}):
        table = RouteTable()
        persistence = Persistence.open(settings, now_clock(), table, "")
        assert persistence is not None
        assert set(table.topics) == expected
        if not expected:
            persistence.record(tell(table, registration()).events)
        await persistence.close(persistence.stop_recording(table))
    assert not (tmp_path / "journal").exists()


def test_settings_decide_folder_and_contents(tmp_path: Path) -> None:
    kv = str(tmp_path / "kvConfig.json")
    beside = NameServerConfig(kv_config_path=kv, listen_port=9877).persistence
    assert beside is not None
    assert beside.path == tmp_path / "memory-9877"
    assert beside == PersistenceSettings(beside.path), "the defaults are those of the parts"
    assert NameServerConfig(kv_config_path=kv, listen_port=0).persistence is None
    named = NameServerConfig(memory_path="/elsewhere", listen_port=0, journal_enabled=False).persistence
    assert named is not None
    assert (named.path, named.journal) == (Path("/elsewhere"), None)
    assert NameServerConfig(journal_enabled=False, warm_restart_enabled=False).persistence is None


def test_a_quiet_table_is_kept_fresh_however_seldom_snapshots_are_wanted() -> None:
    memory = NameServerConfig(snapshot_interval_s=600, snapshot_age_max_s=60).persistence
    assert memory is not None
    assert memory.warm_restart == WarmRestart(interval_s=30.0, age_s_max=60.0)


def test_the_folder_cannot_be_moved_from_afar(tmp_path: Path) -> None:
    config = NameServerConfig(settings_file=str(tmp_path / "namesrv.properties"))
    with pytest.raises(BlackListedError):
        asyncio.run(config.apply_update("memoryPath=/etc"))
