"""How far groups have come, for people to see, and sending them elsewhere."""

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.config import BrokerConfig
from skyroute.broker.handlers.long_answers import STEP_PARTS, answer_with, gather, in_pieces
from skyroute.broker.identity import Identity
from skyroute.broker.stats import Stats
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.tables.topics import Topics
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import StepRunner, Steps
from skyroute.routing.topology import QUEUES_MAX
from skyroute.wire.calls.consumers import encode_offset_reset
from skyroute.wire.calls.groups import QueueProgress, release_name
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
"""Clients before it do not understand that they are sent elsewhere."""

TOLD_BYTES_A_STEP: Final = 4 * 1024 * 1024
"""Bytes sent to the members of a group in one step."""


@dataclass(frozen=True, slots=True)
class ProgressHandlers:
    """What administrators see of groups at work, and where they send them."""

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
    """Has those who wait at a queue look again."""
    step_runner: StepRunner

    def of_group(self, request: Request, _peer: Peer) -> Answer:
        """Return a group's progress, with each queue as of the time it is read."""
        parts = consume_stats_parts(self._of_group(decode_consume_stats_query(request)))
        return self.step_runner.answer(answer_with(in_pieces(parts)))

    def _of_group(self, query: ConsumeStatsQuery) -> Iterator[TopicProgress]:
        topics: Collection[str] = query.topics or self.offsets.topics_of(query.group)
        if not query.even_if_not_subscribed:
            topics = self._wanted(query.group, topics)
        for topic in dict.fromkeys(topics):
            if (config := self.topics.get(topic)) is not None:
                yield self._progress(query.group, topic, config.read_queues)

    def of_broker(self, request: Request, _peer: Peer) -> Answer:
        """Return the progress of all groups, with each queue as of the time it is read."""
        only_ordered = decode_broker_progress_query(request)
        groups = ((group, self._of_topics(group, only_ordered=only_ordered)) for group in list(self.groups.all()))
        return self.step_runner.answer(answer_with(in_pieces(broker_progress_parts(self.identity.address, groups))))

    def _of_topics(self, group: str, *, only_ordered: bool) -> Iterator[TopicProgress]:
        for topic in self._wanted(group, self.offsets.topics_of(group)):
            if (config := self.topics.get(topic)) is not None and (config.ordered or not only_ordered):
                yield self._progress(group, topic, config.write_queues)

    def _wanted(self, group: str, topics: Iterable[str]) -> Collection[str]:
        """Return those of the topics that members of a group want; all, where it has no members."""
        online = self.clients.consumers(group)
        if online is None or not online.subscriptions:
            return list(topics)
        return [topic for topic in topics if topic in online.subscriptions]

    def _progress(self, group: str, topic: str, queues: int) -> TopicProgress:
        progress = ((queue_id, self._queue_progress(group, topic, queue_id)) for queue_id in range(queues))
        return TopicProgress(topic, self.identity.name, progress, self.stats.fetch_rate(group, topic))

    def _queue_progress(self, group: str, topic: str, queue_id: int) -> QueueProgress:
        offset = max(self.offsets.get(group, topic, queue_id) or 0, 0)
        pulled = self.offsets.pulled(group, topic, queue_id) or 0
        last_at_ms = self.store.stored_at_ms(topic, queue_id, offset - 1) if offset else None
        return QueueProgress(
            self.store.max_offset(topic, queue_id), offset, max(offset, pulled), 0 if last_at_ms is None else last_at_ms
        )

    def times(self, request: Request, _peer: Peer) -> Answer:
        """Tell when the messages were stored that a group has consumed, and how long the next ones wait."""
        query = decode_time_span_query(request)
        config = self.topics.get(query.topic)
        if config is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{query.topic}] not exist")
        queue_ids = range(config.write_queues)
        spans = ((queue_id, self._times(query.group, query.topic, queue_id)) for queue_id in queue_ids)
        parts = time_spans_parts(query.topic, self.identity.name, spans)
        return self.step_runner.answer(answer_with(in_pieces(parts)))

    def _times(self, group: str, topic: str, queue_id: int) -> QueueTimes:
        def stored_ms(offset: int) -> int:
            stored_at_ms = self.store.stored_at_ms(topic, queue_id, offset)
            return -1 if stored_at_ms is None else stored_at_ms

        oldest, end = self.store.min_offset(topic, queue_id), self.store.max_offset(topic, queue_id)
        offset = max(self.offsets.get(group, topic, queue_id) or 0, 0)
        consumed_ms = stored_ms(offset - 1) if offset else stored_ms(oldest)
        next_ms = stored_ms(max(offset, oldest))
        behind_ms = self.now_ms() - next_ms if next_ms >= 0 else 0
        return QueueTimes(stored_ms(oldest), stored_ms(end - 1), consumed_ms, behind_ms)

    # -------------------------------------------------------------------------------------------------- moving groups

    def reset(self, request: Request, peer: Peer) -> Answer:
        """Send a group elsewhere: the next pull of each queue is told, or, the old way, its members are at once."""
        order = decode_reset_order(request)
        if not self.config.server_side_offset_reset:
            return self.step_runner.answer(self._tell_members(order, peer))
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
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"no topic has a queue {queue_id}")
        low, high = self.store.min_offset(order.topic, queue_id), self.store.max_offset(order.topic, queue_id)
        if order.offset is not None and not low <= order.offset <= high + 1:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"Target offset {order.offset} not in consume queue range [{low}-{high}]"
            )

    async def _reset(self, order: ResetOrder, queue_ids: Sequence[int], peer: Peer) -> Response:
        targets = await self.step_runner.run(self._reset_queues(order, queue_ids))
        log.info(
            "group sent elsewhere group=%s topic=%s queues=%d timestamp_ms=%d offset=%s peer=%s",
            *(order.group, order.topic, len(targets), order.timestamp_ms, order.offset, peer.address),
        )
        await self.offsets.table_file.save()
        parts = reset_offsets_parts(order.topic, self.identity.name, targets.items())
        return await self.step_runner.run(answer_with(in_pieces(parts)))

    def _reset_queues(self, order: ResetOrder, queue_ids: Sequence[int]) -> Generator[None, None, dict[int, int]]:
        """Reset the queues, or none if the table has no room for their offsets; return the new offsets."""
        targets: dict[int, int] = {}
        for queue_id in queue_ids:
            # An offset is given for one queue only.
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

    def _tell_members(self, order: ResetOrder, peer: Peer) -> Steps:
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
        body = b"".join((yield from gather(in_pieces(parts))))
        online = self.clients.consumers(order.group)
        if online is None or not online.members:
            raise RefusedError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {order.group} Topic: {order.topic} "
                f"Timestamp: {order.timestamp_ms}",
            )
        told_bytes = 0
        for member in list(online.members):
            if member.version < _V3_0_7_SNAPSHOT:
                raise RefusedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={release_name(member.version)}",
                )
            member.peer.send_oneway(encode_offset_reset(order.topic, order.group, order.timestamp_ms, body))
            told_bytes += len(body)
            if told_bytes >= TOLD_BYTES_A_STEP:
                told_bytes = 0
                yield
        log.info("members sent elsewhere group=%s topic=%s peer=%s", order.group, order.topic, peer.address)
        return Response(body=body)
