"""How far groups have come, for people to see, and sending them elsewhere."""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

from skyroute.broker.config import BrokerConfig
from skyroute.broker.groups import Groups
from skyroute.broker.identity import Identity
from skyroute.broker.members import Members
from skyroute.broker.offsets import Offsets
from skyroute.broker.stats import Stats
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.topics import Topics
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.dispatch import Answer, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.routing.topology import QUEUES_MAX
from skyroute.wire.calls.consumers import OffsetReset, encode_offset_reset
from skyroute.wire.calls.groups import ConsumeStats, QueueProgress, release_name
from skyroute.wire.calls.progress import (
    BrokerProgress,
    QueueTimes,
    ResetOrder,
    decode_broker_progress_query,
    decode_consume_stats_query,
    decode_reset_order,
    decode_time_span_query,
    encode_broker_progress,
    encode_consume_stats,
    encode_reset_offsets,
    encode_time_spans,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

_V3_0_7_SNAPSHOT: Final = 28
"""Clients before it do not understand that they are sent elsewhere."""


@dataclass(frozen=True, slots=True)
class ProgressHandlers:
    """What administrators see of groups at work, and where they send them."""

    offsets: Offsets
    topics: Topics
    groups: Groups
    members: Members
    store: MessageStore
    stats: Stats
    config: BrokerConfig
    identity: Identity
    now_ms: Callable[[], int]
    wake: Callable[[str, int], None]
    """Has those who wait at a queue look again."""

    def of_group(self, request: Request, _peer: Peer) -> Response:
        """Tell how far a group has come."""
        query = decode_consume_stats_query(request)
        topics: Collection[str] = query.topics or self.offsets.topics_of(query.group)
        if not query.even_if_not_subscribed:
            topics = self._wanted(query.group, topics)
        parts = [
            self._progress(query.group, topic, config.read_queues)
            for topic in sorted(set(topics))
            if (config := self.topics.get(topic)) is not None
        ]
        queues = {queue: progress for part in parts for queue, progress in part.queues.items()}
        return encode_consume_stats(ConsumeStats(queues, sum(part.tps for part in parts)))

    def of_broker(self, request: Request, _peer: Peer) -> Response:
        """Tell how far all groups have come."""
        only_ordered = decode_broker_progress_query(request)
        groups = {
            group: [
                self._progress(group, topic, config.write_queues)
                for topic in sorted(self._wanted(group, self.offsets.topics_of(group)))
                if (config := self.topics.get(topic)) is not None and (config.ordered or not only_ordered)
            ]
            for group in self.groups.all()
        }
        queues = [progress for parts in groups.values() for part in parts for progress in part.queues.values()]
        return encode_broker_progress(
            BrokerProgress(
                self.identity.address,
                groups,
                lag=sum(progress.lag for progress in queues),
                inflight=sum(progress.inflight for progress in queues),
            )
        )

    def _wanted(self, group: str, topics: Iterable[str]) -> Collection[str]:
        """Return those of the topics that members of a group want; all, where it has no members."""
        online = self.members.consumers(group)
        if online is None or not online.subscriptions:
            return set(topics)
        return set(topics) & online.subscriptions.keys()

    def _progress(self, group: str, topic: str, queues: int) -> ConsumeStats:
        table = {
            QueueRef(topic, self.identity.name, queue_id): self._queue_progress(group, topic, queue_id)
            for queue_id in range(queues)
        }
        return ConsumeStats(table, self.stats.fetch_rate(group, topic))

    def _queue_progress(self, group: str, topic: str, queue_id: int) -> QueueProgress:
        offset = max(self.offsets.get(group, topic, queue_id) or 0, 0)
        pulled = self.offsets.pulled(group, topic, queue_id) or 0
        last_at_ms = self.store.stored_at_ms(topic, queue_id, offset - 1) if offset else None
        return QueueProgress(
            self.store.max_offset(topic, queue_id), offset, max(offset, pulled), 0 if last_at_ms is None else last_at_ms
        )

    def times(self, request: Request, _peer: Peer) -> Response:
        """Tell when the messages were stored that a group has consumed, and how long the next ones wait."""
        query = decode_time_span_query(request)
        config = self.topics.get(query.topic)
        if config is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{query.topic}] not exist")
        return encode_time_spans(
            {
                QueueRef(query.topic, self.identity.name, queue_id): self._times(query.group, query.topic, queue_id)
                for queue_id in range(config.write_queues)
            }
        )

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
        if not self.config.use_server_side_reset_offset:
            return self._tell_members(order, peer)
        if (config := self.topics.get(order.topic)) is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {order.topic} does not exist")
        if self.groups.get(order.group) is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {order.group} does not exist")
        if order.queue_id is None:
            targets = {queue_id: self._target(order, queue_id) for queue_id in range(config.read_queues)}
        else:
            targets = {order.queue_id: self._checked_target(order, order.queue_id)}
        if not targets:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "No queues to reset.")
        for queue_id, offset in targets.items():
            self.offsets.reset(order.group, order.topic, queue_id, offset)
        for queue_id in targets:
            self.wake(order.topic, queue_id)
        log.info(
            "group sent elsewhere group=%s topic=%s to=%s peer=%s", order.group, order.topic, targets, peer.address
        )
        return self._save_reset({self._queue(order, queue_id): offset for queue_id, offset in targets.items()})

    def _queue(self, order: ResetOrder, queue_id: int) -> QueueRef:
        return QueueRef(order.topic, self.identity.name, queue_id)

    def _target(self, order: ResetOrder, queue_id: int) -> int:
        if order.timestamp_ms < 0:
            return self.store.max_offset(order.topic, queue_id)
        return self.store.offset_at(order.topic, queue_id, order.timestamp_ms)

    def _checked_target(self, order: ResetOrder, queue_id: int) -> int:
        if queue_id >= QUEUES_MAX:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"no topic has a queue {queue_id}")
        if order.offset is None:
            return self._target(order, queue_id)
        low, high = self.store.min_offset(order.topic, queue_id), self.store.max_offset(order.topic, queue_id)
        if not low <= order.offset <= high + 1:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"Target offset {order.offset} not in consume queue range [{low}-{high}]"
            )
        return order.offset

    async def _save_reset(self, offsets: dict[QueueRef, int]) -> Response:
        await self.offsets.keeper.save()
        return encode_reset_offsets(offsets)

    def _tell_members(self, order: ResetOrder, peer: Peer) -> Response:
        if (config := self.topics.get(order.topic)) is None:
            raise RefusedError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"[reset-offset] reset offset failed, no topic in this broker. topic={order.topic}",
            )
        offsets: dict[QueueRef, int] = {}
        for queue_id in range(config.write_queues):
            offset = self.offsets.get(order.group, order.topic, queue_id)
            if offset is None:
                # Java's own spelling.
                raise RefusedError(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{order.group}> not exist")
            target = self._target(order, queue_id)
            offsets[self._queue(order, queue_id)] = target if order.force else min(target, offset)
        online = self.members.consumers(order.group)
        if online is None or not online.members:
            raise RefusedError(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {order.group} Topic: {order.topic} "
                f"Timestamp: {order.timestamp_ms}",
            )
        told = encode_offset_reset(OffsetReset(order.topic, order.group, offsets, order.timestamp_ms))
        for member in online.members:
            if member.version < _V3_0_7_SNAPSHOT:
                raise RefusedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={release_name(member.version)}",
                )
            member.peer.tell(told)
        log.info("members sent elsewhere group=%s topic=%s peer=%s", order.group, order.topic, peer.address)
        return encode_reset_offsets(offsets)
