"""Table files: changes, shared writes, and failed writes."""

import asyncio
from pathlib import Path

import pytest

from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.table_file import TableFile
from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError
from tests.support.disks import BlockingDisk, FailingSyncDisk
from tests.support.waiting import eventually


class Table:
    """A table with one number."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.path = folder / "table.json"
        self.value = 0
        self.renders: list[int] = []
        self.table_file = TableFile(JsonFile(self.path, disk), self._render)

    def _render(self) -> list[bytes]:
        self.renders.append(self.value)
        return [b'{"value":', b"%d}" % self.value]

    def change(self) -> None:
        self.value += 1
        self.table_file.touch()

    @property
    def stored(self) -> object:
        return Table(self.path.parent).table_file.load(dict)


async def test_only_changes_are_written(tmp_path: Path) -> None:
    table = Table(tmp_path)
    await table.table_file.save()
    table.table_file.save_now()
    assert (table.stored, table.renders) == (None, [])
    table.change()
    await table.table_file.save()
    await table.table_file.save()
    assert (table.stored, table.renders) == ({"value": 1}, [1])
    assert repr(table.table_file) == f"<TableFile {table.path} unsaved=0>"


async def test_saves_during_a_write_share_the_next_write(tmp_path: Path) -> None:
    disk = BlockingDisk()
    table = Table(tmp_path, disk)
    disk.block()
    saves = []
    for _ in range(4):
        table.change()
        saves.append(asyncio.ensure_future(table.table_file.save()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    disk.unblock()
    await asyncio.gather(*saves)
    assert (table.stored, table.renders) == ({"value": 4}, [1, 4])


async def test_a_cancelled_save_does_not_cancel_the_write_of_others(tmp_path: Path) -> None:
    disk = BlockingDisk()
    table = Table(tmp_path, disk)
    disk.block()
    table.change()
    first, second = (asyncio.ensure_future(table.table_file.save()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    disk.unblock()
    await second
    assert first.cancelled()
    assert table.stored == {"value": 1}


async def test_finish_writes_waits_for_the_current_write(tmp_path: Path) -> None:
    disk = BlockingDisk()
    table = Table(tmp_path, disk)
    await table.table_file.finish_writes()
    disk.block()
    table.change()
    asker = asyncio.ensure_future(table.table_file.save())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asker.cancel()
    table.change()
    finished = asyncio.ensure_future(table.table_file.finish_writes())
    await asyncio.sleep(0)
    assert not finished.done()
    disk.unblock()
    await finished
    assert table.stored == {"value": 1}
    table.table_file.save_now()
    assert table.stored == {"value": 2}


async def test_a_failed_write_is_repeated_by_the_next_save(tmp_path: Path) -> None:
    disk = FailingSyncDisk()
    table = Table(tmp_path, disk)
    table.change()
    await table.table_file.save()
    disk.fails = True
    table.change()
    for _ in range(2):
        with pytest.raises(FileWriteError):
            await table.table_file.save()
    with pytest.raises(FileWriteError):
        table.table_file.save_now()
    assert table.stored == {"value": 1}
    disk.fails = False
    await table.table_file.save()
    assert table.stored == {"value": 2}


async def test_a_failed_write_without_a_caller_leaves_no_unretrieved_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FailingSyncDisk()
    table = Table(tmp_path, disk)
    disk.fails = True
    table.change()
    asker = asyncio.ensure_future(table.table_file.save())
    await asyncio.sleep(0)
    asker.cancel()
    await eventually(asker.done)
    await table.table_file.finish_writes()
    disk.fails = False
    table.table_file.save_now()
    assert table.stored == {"value": 1}
    assert "never retrieved" not in caplog.text
