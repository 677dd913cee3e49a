"""Messages that wait for a time of their own.

They lie in the timer topic, in the order in which they came. Times are rounded to slots: a slot at time t holds what is
due after t and up to t plus the precision, and is delivered when all of it is due. How far that has come is in
`TimerCheck`; everything else follows from the topic, which is read at the start, and then as it grows.

Our folders go to Apache's broker and back without the loss of a message that waits. What is delivered twice then:

- From Apache's broker to us, after a clean stop, nothing. A message that waits for more than two days is stored anew
  after a while, and which of these records counts is found in the key index; without an index, such a message may come
  twice.
- From us to Apache's broker, whatever was delivered and lies in the topic behind the oldest message that waits: it
  finds no timer log of ours, so it reads on from there, and takes what is past its time for late. If it had run on this
  folder before, it reads on from where its own timer log ends. A message that we stored anew may come twice as well.
"""

import asyncio
import logging
from collections.abc import Callable
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
from skyroute.broker.scheduling.timer_records import RENEW_MS, out_ms_of, renewals_of, slot_of, withdrawal_key
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
from skyroute.wire.calls.send_back import RecallHandle, encode_recall_handle
from skyroute.wire.codes import ResponseCode

log = logging.getLogger(__name__)

NEAR_MAX: Final = 1_000_000
"""How many messages that wait are known one by one, at 8 bytes each; the topic is read again for those further off."""
SLOT_MAX: Final = 4_000_000
"""How many messages may wait for the same time. These are known one by one before they are delivered."""
READ_MAX: Final = 256
READ_BYTES_MAX: Final = 1 << 20
DELIVER_MAX: Final = 32
"""How many messages are read, and delivered, before others get their turn."""
SAVE_MS: Final = 1_000
"""How often it is noted how far timers have come. What was noted is written one time later, when it is safe."""
IDLE_MS: Final = 10_000
"""How long it sleeps at most, should the clock be set ahead meanwhile."""
LOOK_MS: Final = 100


def recall_handle(scheduled: Draft, broker_name: str) -> str | None:
    """Return what the producer of a message in the timer topic can recall it with; None where it cannot."""
    raw_properties = scheduled.raw_properties
    topic = find_property(raw_properties, REAL_TOPIC)
    unique_id = find_property(raw_properties, UNIQUE_ID)
    out_ms = number_of(raw_properties, TIMER_OUT_MS)
    if topic is None or unique_id is None or out_ms is None or is_retry_topic(topic):
        return None
    # One more, because a time that is a multiple of the precision belongs to the slot before.
    return encode_recall_handle(RecallHandle(topic, broker_name, out_ms + 1, unique_id))


class Timers:
    """Puts messages with a time aside, and delivers them when it has come."""

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
        self._slots = Slots(near_max)
        self._start = TimerProgress()
        """How far it had come when this process began."""
        self._slot_ms = 0
        self._slot_offset = 0
        """Of what was read, all slots before this one are delivered, and of this one all before that offset."""
        self._read_end = 0
        self._late: set[int] = set()
        """Messages that wait for slots which count as delivered: the clock was set back."""
        self._refill: tuple[int, int, int] | None = None
        """While the topic is read again: from which slot on, where it is, and up to where."""
        self._noted: tuple[int, TimerProgress] = (0, TimerProgress())
        self._safe = TimerProgress()
        """As in `DelayLevels`."""
        self._saved = TimerProgress()
        self._noted_state = (0, 0)
        self._noted_at_ms = 0
        self._handled = 0
        """How many messages were delivered, renewed or dropped."""
        self._scheduled_at_ms = 0
        self._deliveries = Deliveries(appender)
        self._alarm = Alarm()

    def __repr__(self) -> str:
        return f"<Timers waiting={len(self._slots)} delivered={self._deliveries.delivered}>"

    def __len__(self) -> int:
        """Return how many messages wait, as far as the topic was read."""
        return len(self._slots)

    @property
    def slot_ms(self) -> int:
        """Slots before this one are delivered."""
        return self._slot_ms

    @property
    def read_end(self) -> int:
        """The timer topic was read up to this offset."""
        return self._read_end

    def load(self) -> None:
        """Read how far it had come.

        Raises:
            StoreDamagedError: the file is damaged.
        """
        progress = self._check.load()
        end = self._store.max_offset(TIMER_TOPIC, 0)
        if progress.read_end > end:
            log.warning("timer progress corrected read_end=%d to=%d", progress.read_end, end)
            progress = msgspec.structs.replace(progress, read_end=end, oldest=min(progress.oldest, end))
        self._start = self._safe = self._saved = progress
        self._noted = (0, progress)
        self._slot_ms, self._slot_offset = progress.slot_ms, progress.slot_offset
        self._read_end = progress.oldest if progress.is_ours else 0

    @property
    def _delay_max_ms(self) -> int:
        return self._delay_max_s() * 1000

    # -------------------------------------------------------------------------------------------------------- parking

    def schedule(self, draft: Draft, now_ms: int) -> Draft:
        """Return what is to be stored of a message in the timer topic; itself where it is due, or does not wait.

        Raises:
            RefusedError: it may not wait so long, too many wait for the same time, or timers are switched off.
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
        if self._slots.count(slot_ms) >= SLOT_MAX and not is_mark:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"timer message is under flow control, {SLOT_MAX} wait for the same time"
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
        """Read or deliver some messages. Returns when to come again, now if there is more; None if nothing waits."""
        if self._deliveries.is_held(now_ms):
            return self._deliveries.held_until_ms
        # A message may be withdrawn by any that follows it, so nothing is delivered before all is read.
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
        """Read some of what has come in; false if there is none."""
        start = self._read_end
        self._read_end, messages = self._read(start, READ_MAX)
        for message in messages:
            if self._waits(message):
                self._enter(message)
        return self._read_end != start

    def _read_again(self) -> bool:
        """Read some of the topic again for messages beyond the horizon; false if there is no need."""
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
        """Return where to read on, and messages."""
        read = self._store.read_queue(TIMER_TOPIC, 0, offset, count_max, READ_BYTES_MAX)
        messages = [message for chunk in read.chunks for message in decode_run(chunk).messages]
        if read.max_offset == 0:
            return offset, messages
        return read.next_offset, messages

    def _waits(self, message: StoredMessage) -> bool:
        """Return whether a message was not delivered before this process began."""
        start, offset = self._start, message.queue_offset
        if offset >= start.read_end:
            return True
        # Apache's broker renews at other times than we do, so there only the end tells.
        slot_ms = slot_of(message) if start.is_ours else out_ms_of(message)
        return (slot_ms, offset) >= (start.slot_ms, start.slot_offset)

    def _was_renewed(self, message: StoredMessage) -> bool:
        unique_id = find_property(message.raw_properties, UNIQUE_ID)
        if unique_id is None:
            return False
        end_ms = message.stored_at_ms + self._delay_max_ms + RENEW_MS
        for position in self._store.find_by_key(TIMER_TOPIC, unique_id, 64, message.stored_at_ms, end_ms).positions:
            other = self._decoded(position) if position > message.log_position else None
            if other is not None and renewals_of(other) and find_property(other.raw_properties, UNIQUE_ID) == unique_id:
                return True
        return False

    def _enter(self, message: StoredMessage) -> None:
        slot_ms, offset = slot_of(message), message.queue_offset
        is_mark = find_property(message.raw_properties, TIMER_DELETE_UNIQUE_ID) is not None
        # A mark that is renewed before its time withdraws nothing yet.
        is_mark = is_mark and slot_ms == out_ms_of(message)
        self._slots.add(slot_ms, offset, is_mark=is_mark)
        if slot_ms < self._slot_ms and not is_mark:
            self._late.add(offset)

    # ----------------------------------------------------------------------------------------------------- delivering

    def _deliver_slot(self, slot_ms: int, slot: Slot, now_ms: int) -> int:
        if slot_ms > self._slot_ms:
            self._slot_ms, self._slot_offset = slot_ms, 0
        if slot.withdrawn is None:
            slot.withdrawn = frozenset(self._read_marks(slot))
        for offset in slot.offsets[slot.done : slot.done + DELIVER_MAX]:
            if not self._deliver(slot_ms, offset, slot.withdrawn, now_ms):
                return self._deliveries.held_until_ms
            slot.done += 1
            self._handled += 1
            self._late.discard(offset)
            if slot_ms == self._slot_ms:
                self._slot_offset = offset + 1
        if slot.done >= len(slot.offsets):
            self._slots.remove_nearest()
        return now_ms

    def _read_marks(self, slot: Slot) -> list[str]:
        messages = map(self._message_at, slot.marks or ())
        keys = (find_property(message.raw_properties, TIMER_DELETE_UNIQUE_ID) for message in messages if message)
        return [key for key in keys if key]

    def _message_at(self, offset: int) -> StoredMessage | None:
        """Return a message of the timer topic; None where it has expired."""
        unit = self._store.unit(TIMER_TOPIC, 0, offset)
        return None if unit is None else self._decoded(unit[0])

    def _decoded(self, position: int) -> StoredMessage | None:
        record = self._store.record_at(position)
        try:
            return None if record is None else decode_record(record)
        except RecordError as error:
            log.warning("record that waited cannot be read position=%d reason=%s", position, error)
            return None

    def _deliver(self, slot_ms: int, offset: int, withdrawn: frozenset[str], now_ms: int) -> bool:
        """Deliver a message; also true where there is nothing to deliver."""
        message = self._message_at(offset)
        target = None if message is None else real_queue(message)
        if message is None or target is None:
            return True
        raw_properties = message.raw_properties
        entered_ms = message.stored_at_ms // self._precision_ms * self._precision_ms
        more = {TIMER_ENQUEUE_MS: str(entered_ms), TIMER_DEQUEUE_MS: str(now_ms)}
        if slot_ms < out_ms_of(message):
            if self._was_renewed(message):
                return True
            target = TIMER_TOPIC, 0
            more[TIMER_ROLL_TIMES] = str(renewals_of(message) + 1)
        elif withdrawn and withdrawal_key(target[0], find_property(raw_properties, UNIQUE_ID) or "") in withdrawn:
            return True
        try:
            raw_properties = replace_properties(raw_properties, more)
        except RefusedError:
            log.warning("message has no room for more properties real_topic=%s offset=%d", target[0], offset)
        return self._deliveries.put(as_draft(message, *target, raw_properties), now_ms)

    # --------------------------------------------------------------------------------------------------------- saving

    def progress(self) -> TimerProgress:
        """Return how far it has come."""
        if self._read_end < self._start.read_end:  # not yet where it was before
            return self._start
        read_end = min(self._late, default=self._read_end)
        oldest = self._slots.oldest()
        return TimerProgress(self._slot_ms, self._slot_offset, read_end, read_end if oldest is None else oldest)

    def note(self, now_ms: int) -> bool:
        """Take note of how far it has come, as `DelayLevels.note`. Returns whether there is something to save."""
        self._noted_at_ms = now_ms
        log_end, progress = self._noted
        if log_end <= self._store.flushed_position:
            self._safe = progress
        if self._noted_state != (state := (self._read_end, self._handled)):
            self._noted_state = state
            self._noted = (self._store.max_position, self.progress())
        return self._safe != self._saved

    async def run(self) -> None:
        """Deliver, and save how far it has come, until cancelled."""
        while self._enabled:
            now_ms = self._appender.now_ms()
            try:
                due_ms = self.step(now_ms)
            except Exception:
                # Whatever is wrong with one message, the others that wait are worth another attempt.
                log.exception("delivery failed")
                due_ms = now_ms + BACKOFF_MAX_MS
            note_at_ms = self._noted_at_ms + SAVE_MS
            if not now_ms < note_at_ms <= now_ms + SAVE_MS:
                note_at_ms = now_ms + SAVE_MS
                if self.note(now_ms):
                    await self._save(now_ms)
            rest_ms = note_at_ms - now_ms if self._is_busy(now_ms) else IDLE_MS
            if self._store.settings.sync_flush and self._is_busy(now_ms):
                rest_ms = LOOK_MS  # what was scheduled is not shown before it is on the disk
            await self._alarm.sleep(now_ms, now_ms + rest_ms if due_ms is None else min(due_ms, now_ms + rest_ms))

    def _is_busy(self, now_ms: int) -> bool:
        """Return whether something has happened of late, or is not saved yet."""
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
            await asyncio.wait({write})  # else it could come after the one of `close`
            raise
        except StorageError as error:
            log.warning("timer progress not saved reason=%s", error)

    def close(self) -> None:
        """Save how far it has come. To be called when nothing is delivered any more and the store is flushed.

        Raises:
            FileWriteError: the disk refuses; after the next start some are delivered again.
        """
        if self._enabled and (progress := self.progress()) != self._saved:
            self._check.save(progress, self._appender.now_ms())
            self._saved = progress
