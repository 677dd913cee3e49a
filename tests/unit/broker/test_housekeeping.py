"""Periodic work: saving tables, deleting expired messages."""

import asyncio
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from skyroute.broker.config import BrokerConfig
from skyroute.broker.housekeeping import Retention, every, save_all
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.table_file import TableFile
from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError, StorageError
from tests.support.clock import ManualClock
from tests.support.disks import draft, small_store


class Work:
    """Work that fails on demand, and signals after a number of runs."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        self.times = times
        self.error = error
        self.done = 0
        self.enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def plain(self) -> None:
        self.done += 1
        if self.done == self.times:
            self.enough.set_result(None)
        if self.error is not None:
            raise self.error

    async def awaited(self) -> None:
        await asyncio.sleep(0)
        self.plain()


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_periodic_work_continues_after_a_store_error(
    awaited: bool, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    work = Work(3, DiskFullError("no room") if fails else None)
    running = asyncio.ensure_future(every(0.001, work.awaited if awaited else work.plain))
    async with asyncio.timeout(5):
        await work.enough
    running.cancel()
    name = "Work.awaited" if awaited else "Work.plain"
    assert (f"periodic work failed work={name} reason=no room" in caplog.text) == fails


async def test_periodic_work_raises_other_errors() -> None:
    work = Work(1, ZeroDivisionError("ours"))
    with pytest.raises(ZeroDivisionError):
        await every(0.001, work.plain)


async def test_all_changed_tables_are_saved(tmp_path: Path) -> None:
    table_files = [TableFile(JsonFile(tmp_path / name), lambda: [b"{}"]) for name in ("a", "b", "c")]
    for table_file in table_files[:2]:
        table_file.touch()
    await save_all(table_files)
    assert [table_file.load(dict) for table_file in table_files] == [{}, {}, None]


class MeasuredDisk(Disk):
    """A disk whose used share the test sets."""

    used = 0.1

    def used_ratio(self, folder: Path) -> float:
        return self.used


@pytest.fixture
def disk() -> MeasuredDisk:
    return MeasuredDisk()


@pytest.fixture
def store(tmp_path: Path, disk: MeasuredDisk) -> Iterator[MessageStore]:
    store = small_store(tmp_path, disk, reserved_ms=3_600_000)
    yield store
    store.kill()


def filled(store: MessageStore, clock: ManualClock) -> int:
    """Fill a few segments; return their number."""
    for _ in range(5):
        store.append(draft(body=bytes(3000)), int(clock.wall() * 1000))
    return len(store._log.segments)


def clock_at(hour: int) -> ManualClock:
    day = datetime(2025, 9, 19, hour, 30)  # noqa: DTZ001 - the operator's own hour
    return ManualClock(wall=day.timestamp())


def test_expired_messages_are_deleted_at_the_configured_hour(store: MessageStore) -> None:
    clock = clock_at(3)
    retention = Retention(store, BrokerConfig(delete_hour_list="05;17"), clock)
    before = filled(store, clock)
    retention.clean()
    clock.advance(3600)
    retention.clean()
    assert len(store._log.segments) == before  # expired, but at another hour
    clock.advance(3600)
    retention.clean()
    assert len(store._log.segments) == 1


def test_clean_now_deletes_expired_messages_at_any_hour(store: MessageStore) -> None:
    clock = clock_at(3)
    retention = Retention(store, BrokerConfig(delete_hour_list="05"), clock)
    before = filled(store, clock)
    clock.advance(60)
    retention.clean_now()
    assert len(store._log.segments) == before  # not expired
    clock.advance(3600)
    retention.clean_now()
    assert len(store._log.segments) == 1


def test_a_clock_that_is_set_back_deletes_nothing(store: MessageStore) -> None:
    clock = clock_at(5)
    before = filled(store, clock)
    Retention(store, BrokerConfig(delete_hour_list="05"), clock_at(4)).clean_now()
    assert len(store._log.segments) == before


def test_a_full_disk_is_logged_once_and_so_is_its_end(
    store: MessageStore, disk: MeasuredDisk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    clock = clock_at(3)
    retention = Retention(store, BrokerConfig(), clock)
    filled(store, clock)
    disk.used = 0.97
    for _ in range(3):
        retention.clean()
    assert caplog.text.count("disk full, messages are refused used_percent=97") == 1
    assert len(store._log.segments) == 1  # nothing more can be deleted
    with pytest.raises(StorageError, match="is full"):
        store.append(draft(), 0)
    disk.used = 0.2
    for _ in range(3):
        retention.clean()
    assert caplog.text.count("disk has room again used_percent=20") == 1
    store.append(draft(), 0)
