"""A store with delay levels and timers, and a manual clock."""

from __future__ import annotations

from pathlib import Path

from skyroute.broker.scheduling.delay_levels import DelayLevels
from skyroute.broker.scheduling.timer_check import TimerCheck
from skyroute.broker.scheduling.timers import NEAR_MAX, Timers
from skyroute.broker.store.draft import Appended, Draft
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.settings import StoreSettings
from skyroute.files.errors import FileWriteError
from skyroute.message.host import encode_host
from skyroute.message.message import StoredMessage
from skyroute.message.properties import encode_properties
from skyroute.message.record import decode_records

HOST = encode_host("10.0.0.1", 10911)
PRODUCER = encode_host("10.0.0.9", 40000)
START_MS = 1_758_275_140_000
SETTINGS = StoreSettings(
    log_segment_bytes=1 << 16,
    queue_segment_units=64,
    index_slots=64,
    index_entries=256,
    delays_ms=(1_000, 5_000, 30_000),
)


def draft(properties: dict[str, str], topic: str = "Orders", body: bytes = b"coffee", **more: int) -> Draft:
    return Draft(topic, more.pop("queue_id", 2), body, encode_properties(properties), 17, PRODUCER, HOST, **more)


class Waiting:
    """Delay levels and timers of a broker that can be stopped, killed and restarted."""

    def __init__(self, folder: Path, *, near_max: int = NEAR_MAX, settings: StoreSettings = SETTINGS) -> None:
        self.folder = folder
        self.time_ms = START_MS
        self.near_max = near_max
        self.settings = settings
        self.failures = 0
        self.start()

    def start(self) -> None:
        self.store = MessageStore.open(self.folder, self.settings, now_ms=self.time_ms)
        self.delays = DelayLevels(self.store, self, JsonFile(self.folder / "config" / "delayOffset.json"))
        self.timers = Timers(
            self.store, self, TimerCheck(self.folder / "config" / "timercheck", 1_000), near_max=self.near_max
        )
        self.delays.load()
        self.timers.load()

    def stop(self) -> None:
        self.save()
        self.store.close()

    def save(self) -> None:
        """Flush the store and save the progress."""
        self.store.flush()
        self.delays.close()
        self.timers.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def crash(self) -> None:
        """Restart with the whole log, but without saving the progress."""
        self.store.kill()
        self.start()

    # PlainAppender

    def now_ms(self) -> int:
        return self.time_ms

    def put_plain(self, draft: Draft) -> Appended:
        if self.failures:
            self.failures -= 1
            raise FileWriteError("the write failed")
        return self.store.append(draft, self.time_ms)

    def put_due(self, draft: Draft) -> None:
        self.put_plain(draft)

    def delivered(self) -> tuple[int, int]:
        return self.store.max_position, self.store.flushed_position

    def put(self, draft: Draft) -> Appended:
        scheduled = self.delays.schedule(draft)
        if scheduled is draft:
            scheduled = self.timers.schedule(draft, self.time_ms)
        return self.put_plain(scheduled)

    # Time

    def pass_ms(self, ms: int) -> None:
        """Advance the clock, and deliver all due messages."""
        self.time_ms += ms
        self.deliver()

    def deliver(self) -> None:
        for work in (self.delays.deliver_due, self.timers.step):
            while (due_ms := work(self.time_ms)) is not None and due_ms <= self.time_ms:
                pass

    def messages(self, topic: str = "Orders", queue_id: int = 2) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        offset = 0
        while chunks := (read := self.store.read_queue(topic, queue_id, offset, 1000, 1 << 20)).chunks:
            found += [message for chunk in chunks for message in decode_records(bytes(chunk))]
            offset = read.next_offset
        return found

    def bodies(self, topic: str = "Orders", queue_id: int = 2) -> list[bytes]:
        return [message.body for message in self.messages(topic, queue_id)]
