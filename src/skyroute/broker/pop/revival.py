"""Redelivers popped messages that were not acknowledged in time: each goes to the POP retry topic of its group."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from skyroute.broker.appender import Appender
from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.pop.acknowledging import Acknowledgements
from skyroute.broker.pop.in_flight import Batch, BatchKey, InFlight
from skyroute.broker.pop.ordered_queues import OrderedQueues
from skyroute.broker.pop.revive_log import ReviveLog
from skyroute.broker.scheduling.scheduled_delivery import Alarm, as_draft, replace_properties
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.errors import RecordTooLargeError
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.tables.topics import Announce, Topics
from skyroute.files.errors import StorageError
from skyroute.message.errors import InvalidNameError, RecordError
from skyroute.message.message import StoredMessage
from skyroute.message.properties import delete_property, find_property
from skyroute.message.property_names import FIRST_POP_TIME, ORIGIN_GROUP
from skyroute.message.record import decode_record
from skyroute.message.reserved_topics import is_retry_topic, pop_retry_topic
from skyroute.remoting.errors import RefusedError
from skyroute.routing.topology import Permission
from skyroute.wire.calls.topics import TopicConfig

log = logging.getLogger(__name__)

TURN_S: Final = 0.005
"""Time of the loop for redelivery before other requests are served."""
LOOK_MS: Final = 1_000
"""Interval at which the revive topic is followed while check points are in it."""
IDLE_MS: Final = 10_000
"""Longest sleep, in case the clock is set ahead."""
BACKOFF_S: Final = (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Pauses before a message that could not be redelivered is tried again."""


class Revival:
    """Redelivers messages, and writes check points of batches that stay in flight."""

    def __init__(
        self,
        store: MessageStore,
        appender: Appender,
        acknowledgements: Acknowledgements,
        *,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        in_flight: InFlight,
        revive_log: ReviveLog,
        ordered: OrderedQueues,
        announce: Announce,
        config: BrokerConfig,
        identity: Identity,
        monotonic: Callable[[], float],
        alarm: Alarm,
    ) -> None:
        self._store = store
        self._appender = appender
        self._acknowledgements = acknowledgements
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._in_flight = in_flight
        self._revive_log = revive_log
        self._ordered = ordered
        self._announce = announce
        self._config = config
        self._identity = identity
        self._monotonic = monotonic
        self._alarm = alarm
        self._changed: dict[str, TopicConfig] = {}
        """Retry topics that were created or got more queues, and are not announced yet."""
        self._looked_at_ms = 0
        self.revived = 0
        self.dropped = 0
        """Messages that were not redelivered: their topic or group does not exist, or they are no longer stored."""

    async def run(self) -> None:
        """Redeliver messages until cancelled."""
        for _ in self._revive_log.load():
            await asyncio.sleep(0)
        while True:
            now_ms = self._appender.now_ms()
            try:
                until_ms = self.step(now_ms)
                await self.announce_changed()
            except Exception:
                # An error with one message must not stop the others.
                log.exception("redelivery failed")
                until_ms = now_ms + IDLE_MS
            await self._alarm.sleep(now_ms, until_ms)

    def step(self, now_ms: int) -> int:
        """Do some work for at most `TURN_S`; return when to call again."""
        deadline = self._monotonic() + TURN_S
        while self._monotonic() < deadline:
            batch = self._in_flight.due(now_ms)
            if batch is not None:
                self._revive(batch, now_ms)
                continue
            batch = self._in_flight.to_write(now_ms)
            if batch is None:
                break
            self._write(batch, now_ms)
        else:
            return now_ms
        ordered_ms = self._ordered.wake_unblocked(now_ms)
        if self._in_flight.written or not 0 <= now_ms - self._looked_at_ms < IDLE_MS:
            if self._revive_log.follow():
                return now_ms
            self._revive_log.commit()
            self._looked_at_ms = now_ms
        times = [now_ms + (LOOK_MS if len(self._in_flight) else IDLE_MS)]
        times += [at_ms for at_ms in (self._in_flight.next_due_ms(), ordered_ms) if at_ms is not None]
        return min(times)

    def _write(self, batch: Batch, now_ms: int) -> None:
        try:
            self._revive_log.write_check_point(batch)
        except (RefusedError, StorageError) as error:
            log.warning("check point not written batch=%r reason=%s", batch, error)
            self._in_flight.delay_write(batch, now_ms)
        else:
            self._acknowledgements.commit(*batch.key[:3])

    def _revive(self, batch: Batch, now_ms: int) -> None:
        key = batch.key
        if self._topics.get(key.topic) is None or self._groups.get(key.group) is None:
            log.info("popped messages dropped, topic or group does not exist batch=%r", batch)
            self.dropped += batch.left.bit_count()
            self._in_flight.drop(batch)
        else:
            try:
                for offset in batch.offsets_left():
                    self._revive_message(batch, offset)
                    self._in_flight.take(batch, offset)
            except (RefusedError, StorageError) as error:
                pause_s = BACKOFF_S[min(batch.attempts, len(BACKOFF_S) - 1)]
                batch.attempts += 1
                log.warning("redelivery paused s=%d batch=%r reason=%s", pause_s, batch, error)
                self._in_flight.postpone(batch, now_ms + pause_s * 1000)
        if not batch.is_written:
            self._acknowledgements.commit(*key[:3])

    def _revive_message(self, batch: Batch, offset: int) -> None:
        key = batch.key
        message = self._message_at(key, offset)
        if message is None:
            log.warning("popped message is no longer stored topic=%s queue=%d offset=%d", *key[1:3], offset)
            self.dropped += 1
            return
        try:
            self._appender.put_due(self._retry_of(message, batch))
        except (RecordTooLargeError, RecordError, InvalidNameError) as error:
            log.error("popped message discarded topic=%s offset=%d reason=%s", key.topic, offset, error)  # noqa: TRY400 - its text is enough
            self.dropped += 1
        else:
            self.revived += 1

    def _message_at(self, key: BatchKey, offset: int) -> StoredMessage | None:
        unit = self._store.unit(key.topic, key.queue_id, offset)
        record = None if unit is None else self._store.record_at(unit[0])
        try:
            return None if record is None else decode_record(record)
        except RecordError:
            return None

    def _retry_of(self, message: StoredMessage, batch: Batch) -> Draft:
        key = batch.key
        topic, queue_id = self._retry_queue(key)
        if self._offsets.get(key.group, topic, queue_id) is None:
            self._offsets.commit(key.group, topic, queue_id, 0)
        more = {ORIGIN_GROUP: key.group}
        if find_property(message.raw_properties, FIRST_POP_TIME) is None:
            more[FIRST_POP_TIME] = str(key.popped_at_ms)
        try:
            raw_properties = replace_properties(message.raw_properties, more)
        except RefusedError:
            # No room: the time is for display only, but the name of another group would hide the message from this one.
            raw_properties = delete_property(message.raw_properties, ORIGIN_GROUP)
        draft = as_draft(message, topic, queue_id, raw_properties)
        attempts = message.reconsume_times + (0 if batch.suspended else 1)
        return Draft(
            *(draft.topic, draft.queue_id, draft.body, draft.raw_properties, draft.born_at_ms, draft.raw_born_host),
            *(self._identity.raw_store_host, draft.sys_flag, draft.flag, attempts),
        )

    def _retry_queue(self, key: BatchKey) -> tuple[str, int]:
        """Return the retry topic and its queue for messages of a batch. The topic is created, or gets more queues."""
        is_separate = self._config.separate_retry_queues
        is_retried = is_retry_topic(key.topic)
        name = key.topic if is_retried else pop_retry_topic(key.group, key.topic)
        topic = self._topics.get(name)
        popped_topic = self._topics.get(key.topic) if is_separate and not is_retried else None
        queues = 1 if popped_topic is None else max(1, popped_topic.read_queues)
        if topic is None:
            topic = self._put(TopicConfig(name, queues, queues, Permission.READ | Permission.WRITE))
        elif min(topic.read_queues, topic.write_queues) < queues:
            topic = self._put(
                msgspec.structs.replace(
                    topic,
                    read_queues=max(topic.read_queues, queues),
                    write_queues=max(topic.write_queues, queues),
                )
            )
        return name, key.queue_id if is_separate and key.queue_id < topic.read_queues else 0

    def _put(self, topic: TopicConfig) -> TopicConfig:
        self._topics.put(topic)
        self._changed[topic.name] = topic
        return topic

    async def announce_changed(self) -> None:
        """Register changed retry topics with the name servers."""
        if self._changed:
            changed, self._changed = self._changed, {}
            await self._announce(changed.values())
            await self._topics.table_file.save()
