"""Check points and acknowledgements in the revive topic, in the format of Apache's broker.

A check point is a timer message that is delivered to the revive topic a second before its messages become visible; an
acknowledgement is delivered when they do, so it is always behind its check point. The table in memory (`InFlight`) has
all of them: the revive topic is read at the start, and then to advance the offset from which the next start reads.
"""

import logging
from collections import deque
from collections.abc import Iterator
from typing import Final

from skyroute.broker.appender import Appender
from skyroute.broker.identity import Identity
from skyroute.broker.pop.in_flight import Batch, BatchKey, InFlight
from skyroute.broker.pop.taken_log import TakenLog
from skyroute.broker.scheduling.scheduled_delivery import real_queue
from skyroute.broker.scheduling.timers import Timers
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.message.message import StoredMessage
from skyroute.message.properties import encode_properties, find_property
from skyroute.message.property_names import REAL_TOPIC, TAGS, TIMER_DELIVER_MS, UNIQUE_ID
from skyroute.message.record import decode_run
from skyroute.message.reserved_topics import TIMER_TOPIC
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.pop_records import (
    ACK_TAG,
    BATCH_ACK_TAG,
    CHECK_POINT_TAG,
    CheckPointAck,
    decode_check_point,
    decode_check_point_ack,
    encode_check_point,
    encode_check_point_ack,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.errors import BodyError

log = logging.getLogger(__name__)

REVIVE_QUEUES: Final = 8
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
"""Its committed offset in a revive queue is that of the last record that is finished."""

READ_MAX: Final = 256
READ_BYTES_MAX: Final = 1 << 20
"""Of one step."""

CLAIMED_MAX: Final = 100_000
"""Messages that are acknowledged before their check points are loaded, at the start."""

EARLY_MS: Final = 1_000
"""A check point is delivered this long before its acknowledgements."""


_LIVE_MIN: Final = 1_024


class ReviveLog:
    """Writes and reads the revive topic."""

    def __init__(
        self,
        store: MessageStore,
        appender: Appender,
        timers: Timers,
        offsets: ConsumerOffsets,
        in_flight: InFlight,
        taken_log: TakenLog,
        identity: Identity,
    ) -> None:
        self._store = store
        self._appender = appender
        self._timers = timers
        self._offsets = offsets
        self._in_flight = in_flight
        self._taken_log = taken_log
        self._identity = identity
        self.topic = f"rmq_sys_REVIVE_LOG_{identity.cluster}"
        self._read_to = [0] * REVIVE_QUEUES
        self._live: list[deque[tuple[int, Batch]]] = [deque() for _ in range(REVIVE_QUEUES)]
        """Check points that were read, for each revive queue; some are finished."""
        self._live_max = [_LIVE_MIN] * REVIVE_QUEUES
        """Lengths at which finished ones are removed."""
        self._claimed: set[tuple[BatchKey, int]] = set()
        self.is_loading = True
        self.check_points_written = 0
        self.acks_written = 0

    # --------------------------------------------------------------------------------------------------------- writing

    def write_check_point(self, batch: Batch) -> None:
        """Write the check point of a batch.

        Raises:
            RefusedError, StorageError: nothing was written.
        """
        key, broker = batch.key, self._identity.name
        unique_id = f"{key.topic}@{key.queue_id}@{key.start_offset}@{key.group}@{key.popped_at_ms}@{broker}@ck"
        body = encode_check_point(batch.check_point(broker))
        self._write(body, CHECK_POINT_TAG, unique_id, batch.revive_queue_id, batch.visible_at_ms - EARLY_MS)
        self.check_points_written += 1
        self._taken_log.note_taken(key[:3], batch.offsets_left())
        if not batch.is_written:
            self._in_flight.note_written(batch)

    def write_ack(self, key: BatchKey, offsets: tuple[int, ...], revive_queue_id: int, visible_at_ms: int) -> None:
        """Write that messages of a batch are acknowledged.

        Raises:
            RefusedError, StorageError: nothing was written.
        """
        group, topic, queue_id, start, popped_at_ms = key
        broker = self._identity.name
        ack = CheckPointAck(group, topic, queue_id, start, popped_at_ms, broker, offsets)
        tag = ACK_TAG if len(offsets) == 1 else BATCH_ACK_TAG
        which = str(offsets[0]) if len(offsets) == 1 else str(list(offsets))
        unique_id = f"{topic}@{queue_id}@{which}@{group}@{popped_at_ms}@{broker}@{tag}"
        self._write(encode_check_point_ack(ack), tag, unique_id, revive_queue_id, visible_at_ms)
        self.acks_written += 1

    def claim(self, key: BatchKey, offsets: tuple[int, ...]) -> tuple[int, ...]:
        """Return messages of an unknown batch that may still be loaded, each only once; none after the load.

        Raises:
            RefusedError: too many were claimed.
        """
        if not self.is_loading:
            return ()
        new = tuple(offset for offset in offsets if (key, offset) not in self._claimed)
        if len(self._claimed) + len(new) > CLAIMED_MAX:
            raise RefusedError(ResponseCode.SYSTEM_BUSY, "messages in flight are being loaded: try again in a second")
        self._claimed.update((key, offset) for offset in new)
        return new

    def _write(self, body: bytes, tag: str, unique_id: str, queue_id: int, deliver_ms: int) -> None:
        raw_properties = encode_properties({TAGS: tag, UNIQUE_ID: unique_id, TIMER_DELIVER_MS: str(deliver_ms)})
        host = self._identity.raw_store_host
        now_ms = self._appender.now_ms()
        queue_id = queue_id if 0 <= queue_id < REVIVE_QUEUES else 0
        self._appender.put(Draft(self.topic, queue_id, body, raw_properties, now_ms, host, host))

    # --------------------------------------------------------------------------------------------------------- reading

    def reset(self) -> None:
        """Forget everything, for another `load`."""
        self._in_flight.clear()
        for live in self._live:
            live.clear()
        self._claimed.clear()
        self.is_loading = True

    def load(self) -> Iterator[None]:
        """Fill the table from the log, in steps. Until the end, acknowledgements of unknown batches are written."""
        timer_offset = self._timers.first_offset
        for queue_id in range(REVIVE_QUEUES):
            done = self._offsets.get(REVIVE_GROUP, self.topic, queue_id)
            low = self._store.min_offset(self.topic, queue_id)
            self._read_to[queue_id] = max(low, 0 if done is None else done + 1)
            while self._follow(queue_id):
                yield
        while timer_offset < self._store.max_offset(TIMER_TOPIC, 0):
            reached, messages = self._timers.read_waiting(timer_offset, READ_MAX)
            for message in messages:
                if find_property(message.raw_properties, REAL_TOPIC) == self.topic:
                    real = real_queue(message)
                    if real is not None:
                        self._apply(message, real[1])
            if reached == timer_offset:
                break
            timer_offset = reached
            yield
        while any(self._follow(queue_id) for queue_id in range(REVIVE_QUEUES)):
            pass
        self.is_loading = False
        self._claimed.clear()
        if len(self._in_flight):
            log.info(
                "messages in flight loaded batches=%d messages=%d", len(self._in_flight), self._in_flight.message_count
            )

    def follow(self) -> bool:
        """Read some of what is new in the revive topic; false if there was nothing."""
        return any(self._follow(queue_id) for queue_id in range(REVIVE_QUEUES))

    def _follow(self, queue_id: int) -> bool:
        offset = self._read_to[queue_id]
        read = self._store.read_queue(self.topic, queue_id, offset, READ_MAX, READ_BYTES_MAX)
        for chunk in read.chunks:
            for message in decode_run(chunk).messages:
                batch = self._apply(message, queue_id)
                if batch is not None:
                    self._note_live(queue_id, message.queue_offset, batch)
        if read.max_offset:
            self._read_to[queue_id] = read.next_offset
        return read.max_offset > 0 and read.next_offset != offset

    def _note_live(self, queue_id: int, offset: int, batch: Batch) -> None:
        live = self._live[queue_id]
        live.append((offset, batch))
        if len(live) > self._live_max[queue_id]:  # finished ones gather behind one that stays in flight for long
            live = self._live[queue_id] = deque(entry for entry in live if not entry[1].is_done)
            self._live_max[queue_id] = 2 * len(live) + _LIVE_MIN

    def _apply(self, message: StoredMessage, queue_id: int) -> Batch | None:
        """Apply one record to the table; return the unfinished batch of a check point."""
        tag = find_property(message.raw_properties, TAGS)
        try:
            if tag == CHECK_POINT_TAG:
                return self._check_point(message.stored_body, queue_id)
            if tag in (ACK_TAG, BATCH_ACK_TAG):
                ack = decode_check_point_ack(message.stored_body)
                key = BatchKey(ack.group, ack.topic, ack.queue_id, ack.start_offset, ack.popped_at_ms)
                batch = self._in_flight.find(key)
                for offset in ack.offsets:
                    if batch is not None and not batch.is_done:
                        self._in_flight.take(batch, offset)
        except BodyError as error:
            log.warning("record of the revive topic skipped offset=%d reason=%s", message.queue_offset, error)
        return None

    def _check_point(self, body: bytes, queue_id: int) -> Batch | None:
        point = decode_check_point(body)
        key = BatchKey(point.group, point.topic, point.queue_id, point.start_offset, point.popped_at_ms)
        batch = self._in_flight.find(key)
        if batch is None and self.is_loading and point.offsets:
            batch = Batch(key, point.offsets, point.invisible_ms, queue_id, is_written=True, suspended=point.suspended)
            batch.left &= ~point.acked
            if batch.left:
                self._in_flight.add(batch)
        return None if batch is None or batch.is_done or not batch.left else batch

    def commit(self) -> None:
        """Commit the offsets up to which all check points are finished."""
        for queue_id, live in enumerate(self._live):
            while live and live[0][1].is_done:
                live.popleft()
            finished = (live[0][0] if live else self._read_to[queue_id]) - 1
            known = self._offsets.get(REVIVE_GROUP, self.topic, queue_id)
            if finished >= 0 and finished != known:
                self._offsets.commit(REVIVE_GROUP, self.topic, queue_id, finished)
