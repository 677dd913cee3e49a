"""Appending: delayed messages, counters, long polls, and waits for a flush."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skyroute.broker.appender import Appender
from skyroute.broker.delivery.flush_wait import Flushed, Flushing
from skyroute.broker.delivery.long_polling import LongPolling
from skyroute.broker.scheduling.delay_levels import DelayLevels
from skyroute.broker.scheduling.timer_check import TimerCheck
from skyroute.broker.scheduling.timers import Timers
from skyroute.broker.stats import Stats
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError, FileWriteError
from skyroute.message.batch import BatchItem
from skyroute.message.reserved_topics import SCHEDULE_TOPIC, TIMER_TOPIC
from skyroute.remoting.dispatch import wait_for_response
from skyroute.remoting.errors import RefusedError
from skyroute.wire.command import Response
from tests.support.clock import ManualClock
from tests.support.disks import BlockingDisk, FailingSyncDisk, FullDisk, bodies, draft, small_store
from tests.unit.broker.test_long_polling import Reader


class Room:
    """A store with its appender, constructed as in a broker."""

    def __init__(self, folder: Path, disk: Disk | None = None, *, sync: bool = False) -> None:
        self.clock = ManualClock()
        self.timeout_s = 10.0
        self.store = small_store(
            folder, disk, now_ms=self.now_ms(), sync_flush=sync, delays_ms=(1_000,), log_segment_bytes=1 << 16
        )
        self.stats = Stats(self.clock)
        self.long_polling = LongPolling(self.clock.monotonic)
        self.long_polling.wake_after_flush = sync
        self.flushing = Flushing(
            self.store, interval_s=1, timeout_s=lambda: self.timeout_s, on_flushed=self.long_polling.wake
        )
        self.appender = Appender(
            self.store, long_polling=self.long_polling, flushing=self.flushing, stats=self.stats, now_ms=self.now_ms
        )
        config = folder / "config"
        self.delay_max_s = 100
        delays = DelayLevels(self.store, self.appender, JsonFile(config / "delayOffset.json"))
        check = TimerCheck(config / "timercheck", 1_000)
        timers = Timers(self.store, self.appender, check, delay_max_s=lambda: self.delay_max_s)
        self.appender.use(delays, timers)

    def now_ms(self) -> int:
        return int(self.clock.wall() * 1000)


@contextmanager
def room_in(folder: Path, disk: Disk | None = None, *, sync: bool = False) -> Iterator[Room]:
    room = Room(folder, disk, sync=sync)
    try:
        yield room
    finally:
        room.store.kill()


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    with room_in(tmp_path) as room:
        yield room
        await room.flushing.stop()


async def test_a_stored_message_is_counted_and_wakes_long_polls(room: Room) -> None:
    reader = Reader()
    room.long_polling.suspend(reader)
    appended = room.appender.put(draft())
    assert bodies(room.store) == [b"body"]
    assert appended.stored_at_ms == room.now_ms()
    assert (room.stats.totals().stored, room.stats.totals().stored_bytes) == (1, appended.record_bytes)
    await asyncio.sleep(0)
    assert reader.looks == 1


async def test_a_stored_batch_is_counted_and_wakes_long_polls_once(room: Room) -> None:
    reader = Reader()
    room.long_polling.suspend(reader)
    appended = room.appender.put_batch(draft(), [BatchItem(b"1"), BatchItem(b"2")])
    assert bodies(room.store) == [b"1", b"2"]
    assert room.stats.totals().stored_bytes == appended.log_end
    assert room.stats.totals().stored == 2
    await asyncio.sleep(0)
    assert reader.looks == 1


@pytest.mark.parametrize(
    ("properties", "topic"),
    [
        ({"DELAY": "1"}, SCHEDULE_TOPIC),
        ({"TIMER_DELAY_SEC": "10"}, TIMER_TOPIC),
        ({"DELAY": "1", "TIMER_DELAY_SEC": "10"}, SCHEDULE_TOPIC),
        ({"DELAY": "0", "TIMER_DELAY_MS": "10"}, TIMER_TOPIC),
        ({"DELAY": "0"}, "T"),
        ({"TIMER_DELIVER_MS": "1"}, "T"),
        ({"XDELAY": "1", "TIMER_": "2"}, "T"),
    ],
)
async def test_a_delayed_message_is_redirected_to_a_system_topic(
    room: Room, properties: dict[str, str], topic: str
) -> None:
    assert room.appender.schedule(draft(properties=properties)).topic == topic
    room.appender.put_plain(draft(properties=properties))
    assert bodies(room.store) == [b"body"]  # its delay is ignored
    room.appender.put(draft(properties=properties))
    assert len(bodies(room.store, topic)) == (2 if topic == "T" else 1)


async def test_the_longest_delay_can_be_changed_at_run_time(room: Room) -> None:
    late = draft(properties={"TIMER_DELAY_SEC": "200"})
    with pytest.raises(RefusedError, match="should not be bigger than the max delay 100000ms"):
        room.appender.put(late)
    room.delay_max_s = 300
    room.appender.put(late)


async def test_a_failed_append_is_not_counted_and_wakes_no_long_poll(tmp_path: Path) -> None:
    disk = FullDisk()
    with room_in(tmp_path, disk) as room:
        room.appender.put(draft())
        reader = Reader()
        room.long_polling.suspend(reader)
        disk.is_full = True
        with pytest.raises(DiskFullError):
            list(map(room.appender.put, [draft(body=bytes(9_000))] * 20))
        stored = room.stats.totals().stored
        with pytest.raises(DiskFullError):
            room.appender.put_batch(draft(), [BatchItem(bytes(60_000))])
        assert room.stats.totals().stored == stored == len(bodies(room.store))
        disk.is_full = False
        await room.flushing.stop()


async def test_with_async_flush_a_send_does_not_wait(room: Room) -> None:
    assert not room.appender.may_wait
    assert room.appender.until_durable(room.appender.put(draft())) is None


async def test_a_send_waits_for_slaves_only_while_they_are_needed(room: Room) -> None:
    needed = True
    room.appender.use_replicas(
        lambda _, then: then(Flushed.NOT_REPLICATED), check=lambda: None, are_needed=lambda: needed
    )
    safe = room.appender.until_durable(room.appender.put(draft()))
    assert safe is not None
    with pytest.raises(FileWriteError, match="not on enough slaves"):
        await safe
    needed = False
    assert room.appender.until_durable(room.appender.put(draft())) is None


async def test_with_sync_flush_missing_slaves_outweigh_a_flush(tmp_path: Path) -> None:
    with room_in(tmp_path, sync=True) as room:
        room.appender.use_replicas(
            lambda _, then: then(Flushed.NOT_REPLICATED), check=lambda: None, are_needed=lambda: False
        )
        safe = room.appender.until_durable(room.appender.put(draft()))
        assert safe is not None
        with pytest.raises(FileWriteError, match="not on enough slaves"):
            await safe
        await room.flushing.stop()


async def test_with_sync_flush_a_send_and_its_readers_wait_for_the_flush(tmp_path: Path) -> None:
    disk = BlockingDisk()
    with room_in(tmp_path, disk, sync=True) as room:
        reader = Reader()
        room.long_polling.suspend(reader)
        disk.block()
        safe = room.appender.until_durable(room.appender.put(draft()))
        assert safe is not None
        waiting = asyncio.ensure_future(safe)
        await asyncio.sleep(0)
        assert (waiting.done(), reader.looks, bodies(room.store)) == (False, 0, [])
        disk.unblock()
        await waiting
        assert (reader.looks, bodies(room.store)) == (1, [b"body"])
        await room.flushing.stop()


async def test_with_sync_flush_an_append_without_a_wait_is_flushed_too(tmp_path: Path) -> None:
    with room_in(tmp_path, FailingSyncDisk(), sync=True) as room:
        reader = Reader()
        room.long_polling.suspend(reader)
        reader.finds = Response
        room.appender.put_plain(draft())
        async with asyncio.timeout(5):  # no background task flushes here
            await wait_for_response(reader.answer)
        assert bodies(room.store) == [b"body"]
        await room.flushing.stop()


@pytest.mark.parametrize(("outcome", "text"), [(Flushed.LATE, "late"), (Flushed.FAILED, "failed")])
async def test_a_send_fails_if_its_flush_is_late_or_fails(tmp_path: Path, outcome: Flushed, text: str) -> None:
    disk: Disk
    stuck, forgetful = BlockingDisk(), FailingSyncDisk()
    disk = stuck if outcome is Flushed.LATE else forgetful
    with room_in(tmp_path, disk, sync=True) as room:
        stuck.block()
        room.timeout_s = 0.01 if outcome is Flushed.LATE else 10.0
        forgetful.fails = True
        safe = room.appender.until_durable(room.appender.put(draft()))
        assert safe is not None
        with pytest.raises(FileWriteError, match=f"record at 0 is not durable: flush {text}"):
            await safe
        stuck.unblock()
        await room.flushing.stop()


async def test_the_used_share_of_the_disk_comes_from_the_store(room: Room) -> None:
    assert room.appender.disk_used() == room.store.disk_used()
