"""Delay levels: fixed delays, which consumer retries use too.

Each level has a queue in the schedule topic. All messages of a level have the same delay, so the first is due first.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from skyroute.broker.scheduling.scheduled_delivery import (
    BACKOFF_MAX_MS,
    Alarm,
    Deliveries,
    PlainAppender,
    as_draft,
    level_of,
    real_queue,
    redirect,
)
from skyroute.broker.store.dispatch import NOT_IN_QUEUE
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.table_file import TableFile
from skyroute.broker.tables.table_format import claim_version, next_version, read_as, read_member, read_version
from skyroute.files.errors import StorageError
from skyroute.message.errors import RecordError
from skyroute.message.properties import delete_property
from skyroute.message.property_names import DELAY_LEVEL, TIMER_DELAY_MS, TIMER_DELAY_SEC, TIMER_DELIVER_MS
from skyroute.message.record import decode_record
from skyroute.message.reserved_topics import SCHEDULE_TOPIC
from skyroute.routing.registration import DataVersion
from skyroute.wire.data_version import version_members
from skyroute.wire.fastjson import Dialect, dumps

log = logging.getLogger(__name__)

SAVE_MS: Final = 10_000
"""Default interval at which the offsets of all levels are saved."""
BATCH_MAX: Final = 16
"""Messages of a level that are delivered per turn of the loop."""


def read_delay_offsets(raw: object) -> tuple[dict[int, int], DataVersion | None]:
    """Parse the file of delay offsets: offsets by level, and the data version.

    Raises:
        StoreDamagedError: it is not a table of delay offsets.
    """
    table = read_as(raw, dict[str, Any], "the table of delay offsets")
    offsets: dict[int, int] = read_member(table, "offsetTable", dict[int, int])
    return {level: offset for level, offset in offsets.items() if level > 0}, read_version(table)


class DelayLevels:
    """Redirects messages with a delay level to the schedule topic, and delivers them when they are due."""

    def __init__(self, store: MessageStore, appender: PlainAppender, file: JsonFile, *, save_ms: int = SAVE_MS) -> None:
        self._store = store
        self._appender = appender
        self._note_ms = max(1, save_ms // 2)  # noted offsets are written at the next interval, after a flush
        self._delays_ms = store.settings.delays_ms
        self._levels = list(range(1, len(self._delays_ms) + 1))
        self._offsets: dict[int, int] = {}
        """By level, the offset of the next message to deliver."""
        self._noted: tuple[int, dict[int, int]] = (0, {})
        """End of what was delivered, and offsets, at the last `note`."""
        self._safe: dict[int, int] = {}
        """Offsets whose deliveries are flushed, which may be saved."""
        self._noted_at_ms = 0
        self._version = DataVersion()
        self._claims = False
        self._deliveries = Deliveries(appender)
        self._alarm = Alarm()
        self.table_file = TableFile(file, lambda: [dumps(self.render(), Dialect.LEGACY)])

    def __repr__(self) -> str:
        return f"<DelayLevels levels={len(self._delays_ms)} delivered={self._deliveries.delivered}>"

    def load(self) -> None:
        """Read the saved offsets.

        Raises:
            StoreDamagedError: neither the file nor its backup can be used.
        """
        stored = self.table_file.load(read_delay_offsets)
        if stored is not None:
            self._offsets, version = stored
            self._version = version or self._version
        # Messages may be left at levels that the settings no longer have.
        waiting = {queue_id + 1 for queue_id in self._store.queue_ids(SCHEDULE_TOPIC)}
        self._levels = sorted({*self._levels, *waiting})
        for level, offset in self._offsets.items():
            low = self._store.min_offset(SCHEDULE_TOPIC, level - 1)
            fitted = min(max(offset, low), self._store.max_offset(SCHEDULE_TOPIC, level - 1))
            if fitted != offset:
                log.warning("delay offset corrected level=%d from=%d to=%d", level, offset, fitted)
                self._offsets[level] = fitted
        self._safe = dict(self._offsets)
        self._noted = (self._appender.delivered()[0], self._safe)

    def claim(self) -> None:
        """Let the next progress count as newer than any that the missing master has saved."""
        self._claims = True

    @property
    def version(self) -> DataVersion:
        """Data version of the saved offsets."""
        return self._version

    def take_over(self, offsets: dict[int, int], version: DataVersion | None) -> None:
        """Take over the progress of a master. Nothing may be delivered here meanwhile."""
        if offsets != self._safe:
            self._offsets, self._safe = dict(offsets), dict(offsets)
            self._version = version or self._version
            self.table_file.touch()

    def offsets(self) -> Mapping[int, tuple[int, int]]:
        """Return, by level, the offset of the next message and the end of its queue."""
        return {
            level: (offset, self._store.max_offset(SCHEDULE_TOPIC, level - 1))
            for level, offset in sorted(self._offsets.items())
        }

    # ----------------------------------------------------------------------------------------------------- scheduling

    def schedule(self, draft: Draft) -> Draft:
        """Return the message for the schedule topic; the message itself if it has no delay level.

        Raises:
            RefusedError: its level is not a number, or its properties are too long.
        """
        level = min(level_of(draft.raw_properties), len(self._delays_ms))
        if not level or draft.sys_flag & NOT_IN_QUEUE:
            return draft
        scheduled = redirect(draft, SCHEDULE_TOPIC, level - 1, {DELAY_LEVEL: str(level)})
        raw_properties = scheduled.raw_properties
        for name in (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS):
            raw_properties = delete_property(raw_properties, name)
        self._alarm.set(self._appender.now_ms() + self._delays_ms[level - 1])
        return msgspec.structs.replace(scheduled, raw_properties=raw_properties)

    # ----------------------------------------------------------------------------------------------------- delivering

    def deliver_due(self, now_ms: int) -> int | None:
        """Deliver some due messages. Returns when to call again, `now_ms` if more are due; None if none is left."""
        if self._deliveries.is_held(now_ms):
            return self._deliveries.held_until_ms
        times = [self._deliver_level(level, now_ms) for level in self._levels]
        return min((time for time in times if time is not None), default=None)

    def _deliver_level(self, level: int, now_ms: int) -> int | None:
        store, queue_id = self._store, level - 1
        start = max(self._offsets.get(level, 0), store.min_offset(SCHEDULE_TOPIC, queue_id))
        for offset in range(start, start + BATCH_MAX):
            unit = store.unit(SCHEDULE_TOPIC, queue_id, offset)
            if unit is None:
                return None
            position, _, due_ms = unit
            if now_ms < due_ms <= now_ms + self._delay_ms(level):
                return due_ms
            # A message due later than its level allows was stored while the clock was ahead: deliver it now.
            if not self._deliver(position, now_ms):
                return self._deliveries.held_until_ms
            self._offsets[level] = offset + 1
        return now_ms

    def _delay_ms(self, level: int) -> int:
        return self._delays_ms[level - 1] if level <= len(self._delays_ms) else 1 << 62

    def _deliver(self, position: int, now_ms: int) -> bool:
        """Deliver a message; also true if there is nothing to deliver."""
        record = self._store.record_at(position)
        if record is None:
            return True  # it is expired
        try:
            message = decode_record(record)
        except RecordError as error:
            log.warning("delayed message cannot be read position=%d reason=%s", position, error)
            return True
        target = real_queue(message)
        if target is None:
            return True
        return self._deliveries.put(as_draft(message, *target, message.raw_properties), now_ms)

    # --------------------------------------------------------------------------------------------------------- saving

    def note(self, now_ms: int) -> None:
        """Note the offsets of all levels. They are saved once the log is flushed up to its present end.

        Saved earlier, they would lose messages on a power failure: delivered, but not on the disk.
        """
        self._noted_at_ms = now_ms
        noted_end, offsets = self._noted
        end, safe_end = self._appender.delivered()
        if noted_end <= safe_end and offsets != self._safe:
            self._accept(offsets, now_ms)
        self._noted = (end, dict(self._offsets))

    def note_all(self) -> None:
        """Note the offsets of all levels, to be saved. Call it after the last delivery, and when all are durable."""
        if self._offsets != self._safe:
            self._accept(dict(self._offsets), self._appender.now_ms())

    def _accept(self, offsets: dict[int, int], now_ms: int) -> None:
        self._safe = offsets
        self._version = (claim_version if self._claims else next_version)(self._version, now_ms)
        self._claims = False
        self.table_file.touch()

    def render(self) -> object:
        return {"dataVersion": version_members(self._version), "offsetTable": dict(sorted(self._safe.items()))}

    async def run(self) -> None:
        """Deliver messages and save the offsets, until cancelled."""
        while True:
            now_ms = self._appender.now_ms()
            try:
                due_ms = self.deliver_due(now_ms)
            except Exception:
                # An error with one message must not stop the delivery of the others.
                log.exception("delivery failed")
                due_ms = now_ms + BACKOFF_MAX_MS
            note_at_ms = self._noted_at_ms + self._note_ms
            if not now_ms < note_at_ms <= now_ms + self._note_ms:
                self.note(now_ms)
                note_at_ms = now_ms + self._note_ms
                try:
                    await self.table_file.save()
                except StorageError as error:
                    log.warning("delay offsets not saved reason=%s", error)
            await self._alarm.sleep(now_ms, note_at_ms if due_ms is None else min(due_ms, note_at_ms))

    def close(self) -> None:
        """Save the offsets. Call it after the last delivery and a flush of the store.

        Raises:
            FileWriteError: the write failed; after the next start some messages are delivered again.
        """
        self.note_all()
        self.table_file.save_now()
