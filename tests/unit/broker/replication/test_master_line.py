"""A slave's connection to its master: what it reads, appends, reports and dispatches."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skyroute.broker.config import BrokerConfig
from skyroute.broker.replication import master_line
from skyroute.broker.replication.master_line import HistoryError, MasterLine
from skyroute.broker.replication.slave import HaSlave
from skyroute.broker.store.message_store import MessageStore
from skyroute.wire.ha import encode_report, encode_transfer_head
from tests.support.clock import ManualClock
from tests.support.disks import bodies, draft, small_store


class Connected(asyncio.Transport):
    """A transport that keeps what is written, and when the slave reads."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""
        self.readings: list[bool] = []
        """Whether the slave reads, after each change."""
        self.is_aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def pause_reading(self) -> None:
        self.readings.append(False)

    def resume_reading(self) -> None:
        self.readings.append(True)

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


class Room:
    """A slave that is connected to a master whose log is `log`."""

    def __init__(self, folder: Path) -> None:
        master = small_store(folder / "master")
        for number in range(6):
            master.append(draft(body=b"%d" % number), 1)
        found = master.log_range(0, master.max_position)
        assert found is not None
        self.log = os.pread(found[0], found[2], found[1])
        master.close()
        self.store: MessageStore = small_store(folder / "slave")
        self.arrived = 0
        self.is_failing = False
        """Whether what follows from arrived messages fails."""
        self.slave = HaSlave(self.store, BrokerConfig(), ManualClock(), on_arrived=self._note)
        self.line, self.transport = MasterLine(self.slave), Connected()
        self.line.connection_made(self.transport)

    def _note(self, _: dict[tuple[str, int], None]) -> None:
        if self.is_failing:
            raise HistoryError("this dispatch fails")
        self.arrived += 1

    def receive(self, start: int, end: int) -> None:
        """Let a part of the log arrive, as one transfer."""
        self.line.data_received(encode_transfer_head(start, end - start) + self.log[start:end])


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    room = Room(tmp_path)
    yield room
    room.line.close()
    room.store.close()


async def test_bytes_are_appended_and_reported_before_their_records_are_dispatched(room: Room) -> None:
    assert room.transport.data == encode_report(0)
    half = len(room.log) // 2 + 10  # within a record
    room.receive(0, half)
    assert room.transport.data == encode_report(0) + encode_report(half)
    assert bodies(room.store) == []
    await asyncio.sleep(0)
    assert bodies(room.store) == [b"0", b"1", b"2"]
    room.receive(half, len(room.log))
    await asyncio.sleep(0)
    assert bodies(room.store) == [b"%d" % number for number in range(6)]
    assert (room.arrived, room.slave.master_end) == (2, len(room.log))


async def test_what_was_appended_is_dispatched_although_the_connection_is_lost(room: Room) -> None:
    room.receive(0, len(room.log))
    room.line.connection_lost(ConnectionResetError())
    room.line.close()
    await asyncio.sleep(0)
    assert len(bodies(room.store)) == 6


async def test_nothing_is_dispatched_once_the_broker_stops(room: Room) -> None:
    room.receive(0, len(room.log))
    room.line.close()
    room.line.cancel_dispatch()
    await asyncio.sleep(0)
    assert room.arrived == 0


async def test_nothing_is_read_while_many_bytes_wait_for_the_dispatch(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_line, "UNDISPATCHED_BYTES_MAX", len(room.log) - 100)
    room.receive(0, len(room.log) - 200)
    assert room.transport.readings == []
    room.receive(len(room.log) - 200, len(room.log))
    assert room.transport.readings == [False]
    await asyncio.sleep(0)
    assert room.transport.readings == [False, True]
    assert len(bodies(room.store)) == 6


async def test_a_master_that_reads_no_reports_gets_the_newest_one_when_it_does(room: Room) -> None:
    room.line.pause_writing()
    for end in (100, 200, 300):
        room.receive(end - 100, end)
    assert room.transport.data == encode_report(0)
    room.line.resume_writing()
    assert room.transport.data == encode_report(0) + encode_report(300)


async def test_the_failure_of_a_dispatch_ends_the_connection(room: Room) -> None:
    room.is_failing = True
    room.receive(0, len(room.log))
    await asyncio.sleep(0)
    assert room.line.ended.is_set()
    assert str(room.line.failure) == "this dispatch fails"


async def test_nothing_is_appended_behind_an_error(room: Room) -> None:
    was_lost = [room.line.was_lost]
    for start, end in ((0, 100), (150, 200)):
        room.receive(start, end)
        was_lost.append(room.line.was_lost)
    assert isinstance(room.line.failure, HistoryError)
    assert was_lost == [False, True, False]
    room.receive(100, 200)
    assert room.store.max_position == 100
