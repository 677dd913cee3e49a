"""Timers: messages with a delivery time.

They are in the timer topic, in the order of their arrival. Times are rounded to slots: the slot at time t has messages
due after t and up to t plus the precision, and is delivered when all are due. `TimerCheck` has the progress; everything
else is derived from the topic, which is read at the start, and then as it grows.

A store can move to Apache's broker and back without losing a message. Some messages may be delivered twice:

- From Apache's broker to this one, after a clean stop: none. A message with a delay of more than two days is rolled
  (appended again), and the key index shows which record counts; without an index, it may be delivered twice.
- From this broker to Apache's: delivered messages behind the oldest one that is not due. Apache's broker finds no timer
  log, reads the topic from there, and takes messages past their time for late. If it ran on this store before, it
  reads on from the end of its own timer log. A message that this broker rolled may be delivered twice as well.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec

from skyroute.broker.scheduling.scheduled_delivery import (
    BACKOFF_MAX_MS,
    Alarm,
    Deliveries,
    PlainAppender,
    as_draft,
    level_of,
    number_of,
    real_queue,
    redirect,
    replace_properties,
)
from skyroute.broker.scheduling.timer_check import TimerCheck, TimerProgress
from skyroute.broker.scheduling.timer_records import ROLL_MS, out_ms_of, recall_key, rolls_of, slot_of
from skyroute.broker.scheduling.timer_slots import Slot, Slots
from skyroute.broker.store.dispatch import NOT_IN_QUEUE
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.message_store import MessageStore
from skyroute.files.errors import StorageError
from skyroute.message.errors import RecordError
from skyroute.message.message import StoredMessage
from skyroute.message.properties import find_property
from skyroute.message.property_names import (
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELETE_UNIQUE_ID,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQUE_ID,
)
from skyroute.message.record import decode_record, decode_run
from skyroute.message.reserved_topics import TIMER_TOPIC, is_retry_topic
from skyroute.remoting.errors import RefusedError
from skyroute.routing.registration import DataVersion
from skyroute.wire.calls.send_back import RecallHandle, encode_recall_handle
from skyroute.wire.codes import ResponseCode

log = logging.getLogger(__name__)

NEAR_MAX: Final = 1_000_000
"""Offsets in memory, at 8 bytes each; the topic is read again for messages that are due later."""
SLOT_MAX: Final = 4_000_000
"""Messages of one slot. Their offsets are in memory before they are delivered."""
MARKS_MAX: Final = 250_000
"""Recall marks of one slot. Their keys are in memory while its messages are delivered."""
MARKS_READ_MAX: Final = 200
"""Recall marks that are read per turn of the loop."""
READ_MAX: Final = 256
READ_BYTES_MAX: Final = 1 << 20
DELIVER_MAX: Final = 32
"""Messages that are read, and delivered, per turn of the loop."""
SAVE_MS: Final = 1_000
"""Interval at which the progress is noted. It is written at the next interval, after a flush."""
IDLE_MS: Final = 10_000
"""Longest sleep, in case the clock is set ahead."""
LOOK_MS: Final = 100


def recall_handle(scheduled: Draft, broker_name: str) -> str | None:
    """Return the handle with which a producer recalls a timer message; None if it cannot be recalled."""
    raw_properties = scheduled.raw_properties
    topic = find_property(raw_properties, REAL_TOPIC)
    unique_id = find_property(raw_properties, UNIQUE_ID)
    out_ms = number_of(raw_properties, TIMER_OUT_MS)
    if topic is None or unique_id is None or out_ms is None or is_retry_topic(topic):
        return None
    # Plus one, because a time that is a multiple of the precision belongs to the slot before.
    return encode_recall_handle(RecallHandle(topic, broker_name, out_ms + 1, unique_id))


class Timers:
    """Redirects messages with a delivery time to the timer topic, and delivers them when they are due."""

    def __init__(
        self,
        store: MessageStore,
        appender: PlainAppender,
        check: TimerCheck,
        *,
        enabled: bool = True,
        delay_max_s: Callable[[], int] = lambda: 259_200,
        precision_ms: int = 1_000,
        near_max: int = NEAR_MAX,
    ) -> None:
        self._store = store
        self._appender = appender
        self._check = check
        self._enabled = enabled
        self._delay_max_s = delay_max_s
        self._precision_ms = precision_ms
        self._near_max = near_max
        self._slots = Slots(near_max)
        self._start = TimerProgress()
        """Progress at the start of this process."""
        self._slot_ms = 0
        self._slot_offset = 0
        """Of the messages read, slots before `_slot_ms` are delivered, and in that slot those before `_slot_offset`."""
        self._read_end = 0
        self.first_offset = 0
        """Messages before this offset of the timer topic were delivered before the start of this process."""
        self._late: set[int] = set()
        """Messages of slots that count as delivered, because the clock was set back."""
        self._refill: tuple[int, int, int] | None = None
        """During a refill: first slot, next offset, end offset."""
        self._noted: tuple[int, TimerProgress] = (0, TimerProgress())
        self._safe = TimerProgress()
        """As in `DelayLevels`."""
        self._saved = TimerProgress()
        self._noted_state = (0, 0)
        self._noted_at_ms = 0
        self._handled = 0
        """Number of messages that were delivered, rolled or dropped."""
        self._scheduled_at_ms = 0
        self._deliveries = Deliveries(appender)
        self._alarm = Alarm()

    def __repr__(self) -> str:
        return f"<Timers waiting={len(self._slots)} delivered={self._deliveries.delivered}>"

    def __len__(self) -> int:
        """Return the number of messages that are not due, as far as the topic was read."""
        return len(self._slots)

    @property
    def slot_ms(self) -> int:
        """Time of the slot before which all slots are delivered."""
        return self._slot_ms

    @property
    def read_end(self) -> int:
        """Offset up to which the timer topic was read."""
        return self._read_end

    def load(self) -> None:
        """Read the saved progress.

        Raises:
            StoreDamagedError: the file is damaged.
        """
        self._slots = Slots(self._near_max)
        self._late.clear()
        self._refill = None
        progress = self._check.load()
        end = self._store.max_offset(TIMER_TOPIC, 0)
        if progress.read_end > end:
            log.warning("timer progress corrected read_end=%d to=%d", progress.read_end, end)
            progress = msgspec.structs.replace(progress, read_end=end, oldest=min(progress.oldest, end))
        self._start = self._safe = self._saved = progress
        self._noted = (0, progress)
        self._slot_ms, self._slot_offset = progress.slot_ms, progress.slot_offset
        self._read_end = self.first_offset = progress.oldest if progress.is_ours else 0

    @property
    def check_point(self) -> bytes:
        """The saved progress, as other members of the group ask for it.

        If nothing was delivered since it was saved, it has the present time. An Apache slave that acts begins there;
        from 1970 on, it would take hours.
        """
        is_saved = self._saved == self._noted[1] and self._noted_state == (self._read_end, self._handled)
        return self._check.advanced(self._slot_ms) if is_saved else self._check.check_point

    @property
    def version(self) -> DataVersion:
        """Data version of the saved progress."""
        return self._check.version

    def claim(self) -> None:
        """Let the next progress count as newer than any that the missing master has saved."""
        self._check.claims = True

    def take_over(self, check_point: bytes) -> None:
        """Save the progress of another member of the group, for a later `load`. Nothing may be delivered meanwhile.

        Raises:
            FileWriteError: the write failed.
            StoreDamagedError: it is invalid.
        """
        self._check.take_over(check_point)

    @property
    def _delay_max_ms(self) -> int:
        return self._delay_max_s() * 1000

    # ----------------------------------------------------------------------------------------------------- scheduling

    def schedule(self, draft: Draft, now_ms: int) -> Draft:
        """Return the message for the timer topic; the message itself if it is due or has no time.

        Raises:
            RefusedError: the delay is too long, the slot is full, or timers are disabled.
        """
        raw_properties = draft.raw_properties
        if (
            draft.topic == TIMER_TOPIC
            or draft.sys_flag & NOT_IN_QUEUE
            or find_property(raw_properties, TIMER_OUT_MS) is not None
            or level_of(raw_properties)
        ):
            return draft
        wanted_ms = self._wanted_ms(raw_properties, now_ms)
        if wanted_ms is None:
            return draft
        if not self._enabled:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false"
            )
        is_mark = find_property(raw_properties, TIMER_DELETE_UNIQUE_ID) is not None
        if wanted_ms <= now_ms and not is_mark:
            return draft
        if wanted_ms <= now_ms or wanted_ms - now_ms > self._delay_max_ms:
            raise RefusedError(
                ResponseCode.MESSAGE_ILLEGAL,
                "timer message illegal, the delay time should not be bigger than the max delay "
                f"{self._delay_max_ms}ms; or if set del msg, the delay time should be bigger than the current time",
            )
        slot_ms = (wanted_ms - 1) // self._precision_ms * self._precision_ms
        count, count_max = self._slots.count(slot_ms), SLOT_MAX + (MARKS_MAX if is_mark else 0)
        if count >= count_max or (is_mark and self._slots.count_marks(slot_ms) >= MARKS_MAX):
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"timer message is under flow control, {count} wait for the same time"
            )
        scheduled = redirect(draft, TIMER_TOPIC, 0, {TIMER_OUT_MS: str(slot_ms)})
        self._scheduled_at_ms = now_ms
        self._alarm.set(min(slot_ms + self._precision_ms, now_ms + SAVE_MS))
        return scheduled

    @staticmethod
    def _wanted_ms(raw_properties: bytes, now_ms: int) -> int | None:
        delay_s = number_of(raw_properties, TIMER_DELAY_SEC)
        if delay_s is not None:
            return now_ms + delay_s * 1000
        delay_ms = number_of(raw_properties, TIMER_DELAY_MS)
        return now_ms + delay_ms if delay_ms is not None else number_of(raw_properties, TIMER_DELIVER_MS)

    # -------------------------------------------------------------------------------------------------------- reading

    def step(self, now_ms: int) -> int | None:
        """Read or deliver some messages. Returns when to call again, `now_ms` if at once; None if none is left."""
        if self._deliveries.is_held(now_ms):
            return self._deliveries.held_until_ms
        # Any later message may recall an earlier one, so all are read before one is delivered.
        if self._read_on() or self._read_again():
            return now_ms
        nearest = self._slots.nearest()
        if nearest is None or nearest[0] + self._precision_ms > now_ms:
            reached_ms = now_ms // self._precision_ms * self._precision_ms
            if nearest is not None:
                reached_ms = min(reached_ms, nearest[0])
            if reached_ms > self._slot_ms:
                self._slot_ms, self._slot_offset = reached_ms, 0
            return None if nearest is None else nearest[0] + self._precision_ms
        return self._deliver_slot(*nearest, now_ms)

    def _read_on(self) -> bool:
        """Read some new messages; false if there are none."""
        start = self._read_end
        self._read_end, messages = self._read(start, READ_MAX)
        for message in messages:
            if self._waits(message):
                self._enter(message)
        return self._read_end != start

    def _read_again(self) -> bool:
        """Read some of the topic again for messages beyond the horizon; false if not needed."""
        if self._refill is None:
            if not self._slots.needs_refill():
                return False
            start_ms, offset = self._slots.begin_refill()
            self._refill = (start_ms, offset, self._read_end)
        start_ms, offset, end = self._refill
        reached, messages = self._read(offset, min(READ_MAX, end - offset))
        for message in messages:
            if slot_of(message) >= start_ms and self._waits(message):
                self._enter(message)
        self._refill = (start_ms, reached, end)
        if reached >= end or reached == offset:
            self._slots.end_refill(start_ms)
            self._refill = None
        return True

    def _read(self, offset: int, count_max: int) -> tuple[int, list[StoredMessage]]:
        """Return the next offset, and the messages."""
        read = self._store.read_queue(TIMER_TOPIC, 0, offset, count_max, READ_BYTES_MAX)
        messages = [message for chunk in read.chunks for message in decode_run(chunk).messages]
        if read.max_offset == 0:
            return offset, messages
        return read.next_offset, messages

    def read_waiting(self, offset: int, count_max: int) -> tuple[int, list[StoredMessage]]:
        """Return the next offset, and those messages that were not delivered before the start of this process."""
        reached, messages = self._read(offset, count_max)
        return reached, [message for message in messages if self._waits(message)]

    def _waits(self, message: StoredMessage) -> bool:
        """Return whether a message was not delivered before the start of this process."""
        start, offset = self._start, message.queue_offset
        if offset >= start.read_end:
            return True
        # Apache's broker rolls at other times, so only the due time counts.
        slot_ms = slot_of(message) if start.is_ours else out_ms_of(message)
        return (slot_ms, offset) >= (start.slot_ms, start.slot_offset)

    def _was_rolled(self, message: StoredMessage) -> bool:
        unique_id = find_property(message.raw_properties, UNIQUE_ID)
        if unique_id is None:
            return False
        end_ms = message.stored_at_ms + self._delay_max_ms + ROLL_MS
        for position in self._store.find_by_key(TIMER_TOPIC, unique_id, 64, message.stored_at_ms, end_ms).positions:
            other = self._decoded(position) if position > message.log_position else None
            if other is not None and rolls_of(other) and find_property(other.raw_properties, UNIQUE_ID) == unique_id:
                return True
        return False

    def _enter(self, message: StoredMessage) -> None:
        slot_ms, offset = slot_of(message), message.queue_offset
        is_mark = find_property(message.raw_properties, TIMER_DELETE_UNIQUE_ID) is not None
        # A mark that is to be rolled recalls nothing yet.
        is_mark = is_mark and slot_ms == out_ms_of(message)
        self._slots.add(slot_ms, offset, is_mark=is_mark)
        if slot_ms < self._slot_ms and not is_mark:
            self._late.add(offset)

    # ----------------------------------------------------------------------------------------------------- delivering

    def _deliver_slot(self, slot_ms: int, slot: Slot, now_ms: int) -> int:
        if slot_ms > self._slot_ms:
            self._slot_ms, self._slot_offset = slot_ms, 0
        if slot.marks is not None and slot.marks_read < len(slot.marks):
            self._read_marks(slot, slot.marks)
            return now_ms
        for offset in slot.offsets[slot.done : slot.done + DELIVER_MAX]:
            if not self._deliver(slot_ms, offset, slot.recalled, now_ms):
                return self._deliveries.held_until_ms
            slot.done += 1
            self._handled += 1
            self._late.discard(offset)
            if slot_ms == self._slot_ms:
                self._slot_offset = offset + 1
        if slot.done >= len(slot.offsets):
            self._slots.remove_nearest()
        return now_ms

    def _read_marks(self, slot: Slot, marks: "array[int]") -> None:
        """Read the keys of some recalled messages. A mark recalls messages of its own topic only: it may be sent there.

        All marks are read before the first message is delivered.
        """
        some = marks[slot.marks_read : slot.marks_read + MARKS_READ_MAX]
        for message in filter(None, map(self._message_at, some)):
            key = find_property(message.raw_properties, TIMER_DELETE_UNIQUE_ID) or ""
            topic = find_property(message.raw_properties, REAL_TOPIC) or ""
            if key.startswith(recall_key(topic, "")):
                slot.recalled.add(key)
        slot.marks_read += len(some)

    def _message_at(self, offset: int) -> StoredMessage | None:
        """Return a message of the timer topic; None if it is expired."""
        unit = self._store.unit(TIMER_TOPIC, 0, offset)
        return None if unit is None else self._decoded(unit[0])

    def _decoded(self, position: int) -> StoredMessage | None:
        record = self._store.record_at(position)
        try:
            return None if record is None else decode_record(record)
        except RecordError as error:
            log.warning("timer message cannot be read position=%d reason=%s", position, error)
            return None

    def _deliver(self, slot_ms: int, offset: int, recalled: AbstractSet[str], now_ms: int) -> bool:
        """Deliver or roll a message; also true if there is nothing to deliver."""
        message = self._message_at(offset)
        target = None if message is None else real_queue(message)
        if message is None or target is None:
            return True
        raw_properties = message.raw_properties
        entered_ms = message.stored_at_ms // self._precision_ms * self._precision_ms
        more = {TIMER_ENQUEUE_MS: str(entered_ms), TIMER_DEQUEUE_MS: str(now_ms)}
        if slot_ms < out_ms_of(message):
            if self._was_rolled(message):
                return True
            target = TIMER_TOPIC, 0
            more[TIMER_ROLL_TIMES] = str(rolls_of(message) + 1)
        elif recalled and recall_key(target[0], find_property(raw_properties, UNIQUE_ID) or "") in recalled:
            return True
        try:
            raw_properties = replace_properties(raw_properties, more)
        except RefusedError:
            log.warning("timer message without room for more properties real_topic=%s offset=%d", target[0], offset)
        return self._deliveries.put(as_draft(message, *target, raw_properties), now_ms)

    # --------------------------------------------------------------------------------------------------------- saving

    def progress(self) -> TimerProgress:
        """Return the present progress."""
        if self._read_end < self._start.read_end:  # still reading what the last process had read
            return self._start
        read_end = min(self._late, default=self._read_end)
        oldest = self._slots.oldest()
        return TimerProgress(self._slot_ms, self._slot_offset, read_end, read_end if oldest is None else oldest)

    def note(self, now_ms: int) -> bool:
        """Note the progress, as `DelayLevels.note`. Returns whether there is something to save."""
        self._noted_at_ms = now_ms
        noted_end, progress = self._noted
        end, safe_end = self._appender.delivered()
        if noted_end <= safe_end:
            self._safe = progress
        if self._noted_state != (state := (self._read_end, self._handled)):
            self._noted_state = state
            self._noted = (end, self.progress())
        return self._safe != self._saved

    async def run(self) -> None:
        """Deliver messages and save the progress, until cancelled."""
        while self._enabled:
            now_ms = self._appender.now_ms()
            try:
                due_ms = self.step(now_ms)
            except Exception:
                # An error with one message must not stop the delivery of the others.
                log.exception("delivery failed")
                due_ms = now_ms + BACKOFF_MAX_MS
            note_at_ms = self._noted_at_ms + SAVE_MS
            if not now_ms < note_at_ms <= now_ms + SAVE_MS:
                note_at_ms = now_ms + SAVE_MS
                if self.note(now_ms):
                    await self._save(now_ms)
            rest_ms = note_at_ms - now_ms if self._is_busy(now_ms) else IDLE_MS
            if self._store.settings.sync_flush and self._is_busy(now_ms):
                rest_ms = LOOK_MS  # scheduled messages are visible only after a flush
            await self._alarm.sleep(now_ms, now_ms + rest_ms if due_ms is None else min(due_ms, now_ms + rest_ms))

    def _is_busy(self, now_ms: int) -> bool:
        """Return whether a message was scheduled recently, or progress is not saved yet."""
        if 0 <= now_ms - self._scheduled_at_ms < IDLE_MS:
            return True
        return self._saved != self._noted[1] or self._noted_state != (self._read_end, self._handled)

    async def _save(self, now_ms: int) -> None:
        progress = self._safe
        write = asyncio.ensure_future(asyncio.to_thread(self._check.save, progress, now_ms))
        try:
            await asyncio.shield(write)
            self._saved = progress
        except asyncio.CancelledError:
            await asyncio.wait({write})  # else it could overwrite what `close` writes
            raise
        except StorageError as error:
            log.warning("timer progress not saved reason=%s", error)

    def close(self) -> None:
        """Save the progress. Call it after the last delivery and a flush of the store.

        Raises:
            FileWriteError: the write failed; after the next start some messages are delivered again.
        """
        if self._enabled and (progress := self.progress()) != self._saved:
            self._check.save(progress, self._appender.now_ms())
            self._saved = progress
