"""Consume status of groups (offsets, lag, times), and the reset of their offsets."""

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.config import BrokerConfig
from skyroute.broker.handlers.stepwise_responses import STEP_PARTS, join_parts, write_body, write_response
from skyroute.broker.identity import Identity
from skyroute.broker.stats import Stats
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.tables.queue_mappings import QueueMappings
from skyroute.broker.tables.topics import Topics
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import StepRunner, Steps
from skyroute.routing.topology import QUEUES_MAX
from skyroute.wire.calls.consumers import encode_offset_reset
from skyroute.wire.calls.groups import PopProgress, QueueProgress, release_name
from skyroute.wire.calls.progress import (
    ConsumeStatsQuery,
    QueueTimes,
    ResetOrder,
    TopicProgress,
    broker_progress_parts,
    consume_stats_parts,
    decode_broker_progress_query,
    decode_consume_stats_query,
    decode_reset_order,
    decode_time_span_query,
    reset_offsets_parts,
    time_spans_parts,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

_V3_0_7_SNAPSHOT: Final = 28
"""Older clients do not support an offset reset."""

PUSHED_BYTES_A_STEP: Final = 4 * 1024 * 1024
"""Bytes sent to the members of a group in one step."""


@dataclass(frozen=True, slots=True)
class ConsumeStatusHandlers:
    """Handles requests of administrators for the status and the reset of consumer groups."""

    offsets: ConsumerOffsets
    topics: Topics
    groups: Groups
    clients: ConnectedClients
    store: MessageStore
    stats: Stats
    config: BrokerConfig
    identity: Identity
    now_ms: Callable[[], int]
    wake: Callable[[str, int], None]
    """Wakes the suspended pulls of a queue."""
    step_runner: StepRunner
    mappings: QueueMappings
    pop_progress: Callable[[str, str], PopProgress | None]
    """Returns the popped messages of a group in a topic; None if it has none, and does not wait for any."""

    def group_status(self, request: Request, _peer: Peer) -> Answer:
        """Return a group's offsets and lag; each queue has its state at the time it is read."""
        query = decode_consume_stats_query(request)
        pops = ((topic, self.pop_progress(query.group, topic)) for topic in self._topics_of(query))
        parts = consume_stats_parts(self._group_status(query), pops)
        return self.step_runner.answer(write_response(join_parts(parts)))

    def _topics_of(self, query: ConsumeStatsQuery) -> Iterable[str]:
        topics: Collection[str] = query.topics or self.offsets.topics_of(query.group)
        if not query.even_if_not_subscribed:
            topics = self._subscribed(query.group, topics)
        return dict.fromkeys(topics)

    def _group_status(self, query: ConsumeStatsQuery) -> Iterator[TopicProgress]:
        for topic in self._topics_of(query):
            if (config := self.topics.get(topic)) is not None:
                yield self._progress(query.group, topic, config.read_queues)

    def broker_status(self, request: Request, _peer: Peer) -> Answer:
        """Return offsets and lag of all groups; each queue has its state at the time it is read."""
        only_ordered = decode_broker_progress_query(request)
        groups = ((group, self._ordered_or_all(group, only_ordered=only_ordered)) for group in list(self.groups.all()))
        return self.step_runner.answer(write_response(join_parts(broker_progress_parts(self.identity.address, groups))))

    def _ordered_or_all(self, group: str, *, only_ordered: bool) -> Iterator[TopicProgress | None]:
        for topic in self._subscribed(group, self.offsets.topics_of(group)):
            if (config := self.topics.get(topic)) is not None and (config.ordered or not only_ordered):
                yield self._progress(group, topic, config.write_queues)
            else:
                yield None

    def _subscribed(self, group: str, topics: Iterable[str]) -> Collection[str]:
        """Return those of the topics that a group subscribes to; all if it has no members."""
        online = self.clients.consumers(group)
        if online is None or not online.subscriptions:
            return list(topics)
        return [topic for topic in topics if topic in online.subscriptions]

    def _progress(self, group: str, topic: str, queues: int) -> TopicProgress:
        progress = ((queue_id, self._queue_progress(group, topic, queue_id)) for queue_id in range(queues))
        return TopicProgress(topic, self.identity.name, progress, self.stats.fetch_rate(group, topic))

    def _queue_progress(self, group: str, topic: str, queue_id: int) -> QueueProgress:
        committed = self.offsets.get(group, topic, queue_id)
        offset = max(committed or 0, 0)
        if committed is None and self.mappings.get(topic) is not None:
            offset = -1  # tools then take the offset of another item of the logical queue
        pulled = self.offsets.pulled(group, topic, queue_id) or 0
        last_at_ms = self.store.stored_at_ms(topic, queue_id, offset - 1) if offset > 0 else None
        return QueueProgress(
            self.store.max_offset(topic, queue_id), offset, max(offset, pulled), 0 if last_at_ms is None else last_at_ms
        )

    def time_spans(self, request: Request, _peer: Peer) -> Answer:
        """Return the store times of the oldest, last and last consumed message, and the delay of a group."""
        query = decode_time_span_query(request)
        config = self.topics.get(query.topic)
        if config is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{query.topic}] not exist")
        queue_ids = range(config.write_queues)
        spans = ((queue_id, self._queue_times(query.group, query.topic, queue_id)) for queue_id in queue_ids)
        parts = time_spans_parts(query.topic, self.identity.name, spans)
        return self.step_runner.answer(write_response(join_parts(parts)))

    def _queue_times(self, group: str, topic: str, queue_id: int) -> QueueTimes:
        def stored_ms(offset: int) -> int:
            stored_at_ms = self.store.stored_at_ms(topic, queue_id, offset)
            return -1 if stored_at_ms is None else stored_at_ms

        oldest, end = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        offset = max(self.offsets.get(group, topic, queue_id) or 0, 0)
        consumed_ms = stored_ms(offset - 1) if offset else stored_ms(oldest)
        next_ms = stored_ms(max(offset, oldest))
        behind_ms = self.now_ms() - next_ms if next_ms >= 0 else 0
        return QueueTimes(stored_ms(oldest), stored_ms(end - 1), consumed_ms, behind_ms)

    # ---------------------------------------------------------------------------------------------------- reset offsets

    def reset(self, request: Request, peer: Peer) -> Answer:
        """Reset a group's offsets: by the response to the next pull, or, as before 5.0, by a request to its members."""
        order = decode_reset_order(request)
        if not self.config.server_side_offset_reset:
            return self.step_runner.answer(self._reset_by_members(order, peer))
        if (config := self.topics.get(order.topic)) is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {order.topic} does not exist")
        if self.groups.get(order.group) is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {order.group} does not exist")
        if order.queue_id is not None:
            self._check_target(order, order.queue_id)
        elif not config.read_queues:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        queue_ids = range(config.read_queues) if order.queue_id is None else [order.queue_id]
        return OrderedResponse(self._reset(order, queue_ids, peer))

    def _check_target(self, order: ResetOrder, queue_id: int) -> None:
        if queue_id >= QUEUES_MAX:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"queueId={queue_id} is out of range (expected 0 to {QUEUES_MAX - 1})"
            )
        low, high = self.store.min_offset(order.topic, queue_id), self.store.max_offset(order.topic, queue_id)
        if order.offset is not None and not low <= order.offset <= high + 1:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"Target offset {order.offset} not in consume queue range [{low}-{high}]"
            )

    async def _reset(self, order: ResetOrder, queue_ids: Sequence[int], peer: Peer) -> Response:
        targets = await self.step_runner.run(self._reset_queues(order, queue_ids))
        log.info(
            "offsets reset group=%s topic=%s queues=%d timestamp_ms=%d offset=%s peer=%s",
            *(order.group, order.topic, len(targets), order.timestamp_ms, order.offset, peer.address),
        )
        await self.offsets.table_file.save()
        parts = reset_offsets_parts(order.topic, self.identity.name, targets.items())
        return await self.step_runner.run(write_response(join_parts(parts)))

    def _reset_queues(self, order: ResetOrder, queue_ids: Sequence[int]) -> Generator[None, None, dict[int, int]]:
        """Reset the queues, or none if the table has no room for their offsets; return the new offsets."""
        targets: dict[int, int] = {}
        for queue_id in queue_ids:
            # Only a reset of one queue has an offset.
            given = order.offset if order.queue_id is not None else None
            targets[queue_id] = self._target(order, queue_id) if given is None else given
            if len(targets) % STEP_PARTS == 0:
                yield
        known = self.offsets.of(order.group, order.topic)
        self.offsets.check_room(len(targets.keys() - known.keys()))
        for number, (queue_id, offset) in enumerate(targets.items(), 1):
            self.offsets.reset(order.group, order.topic, queue_id, offset)
            self.wake(order.topic, queue_id)
            if number % STEP_PARTS == 0:
                yield
        return targets

    def _target(self, order: ResetOrder, queue_id: int) -> int:
        if order.timestamp_ms < 0:
            return self.store.max_offset(order.topic, queue_id)
        return self.store.offset_at(order.topic, queue_id, order.timestamp_ms)

    def _reset_by_members(self, order: ResetOrder, peer: Peer) -> Steps:
        if (config := self.topics.get(order.topic)) is None:
            raise RefusedError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={order.topic}",
            )
        offsets: dict[int, int] = {}
        for queue_id in range(config.write_queues):
            offset = self.offsets.get(order.group, order.topic, queue_id)
            if offset is None:
                # Java's own spelling.
                raise RefusedError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{order.group}> not exist")
            target = self._target(order, queue_id)
            offsets[queue_id] = target if order.force else min(target, offset)
            if len(offsets) % STEP_PARTS == 0:
                yield
        parts = reset_offsets_parts(order.topic, self.identity.name, offsets.items())
        body = b"".join((yield from write_body(join_parts(parts))))
        online = self.clients.consumers(order.group)
        if online is None or not online.members:
            raise RefusedError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {order.group} Topic: {order.topic} "
                f"Timestamp: {order.timestamp_ms}",
            )
        pushed_bytes = 0
        for member in list(online.members):
            if member.version < _V3_0_7_SNAPSHOT:
                raise RefusedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={release_name(member.version)}",
                )
            member.peer.send_oneway(encode_offset_reset(order.topic, order.group, order.timestamp_ms, body))
            pushed_bytes += len(body)
            if pushed_bytes >= PUSHED_BYTES_A_STEP:
                pushed_bytes = 0
                yield
        log.info("offset reset sent to members group=%s topic=%s peer=%s", order.group, order.topic, peer.address)
        return Response(body=body)
