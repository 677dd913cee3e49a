"""Offsets of queues and of consumer groups: query, commit, search by time, and copy."""

import logging
import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final

from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.handlers.stepwise_responses import STEP_PARTS, join_parts, write_response
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.consumer_offsets import OFFSETS_A_STEP, ConsumerOffsets
from skyroute.broker.tables.topics import Topics
from skyroute.message.errors import InvalidNameError
from skyroute.message.names import check_group
from skyroute.message.reserved_topics import is_retry_topic
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import StepRunner, Steps
from skyroute.routing.topology import QUEUES_MAX
from skyroute.wire import fastjson
from skyroute.wire.calls.offsets import (
    NO_MIN_OFFSET,
    CorrectionQuery,
    correction_parts,
    decode_correction_query,
    decode_offset_query,
    decode_offset_update,
    decode_queue,
    decode_time_search,
    encode_offset,
    encode_timestamp,
)
from skyroute.wire.calls.progress import CloneOrder, decode_clone_order
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.fastjson import Dialect

log = logging.getLogger(__name__)

_NO_CORRECTION: Final = (1 << 63) - 1
_IN_MEMORY_SHARE: Final = 0.4
"""Share of the machine's memory that is assumed to hold the end of the log."""


def bytes_in_memory() -> int:
    """Return the size of the log's end that counts as in memory, computed as in Apache's brokers."""
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _IN_MEMORY_SHARE)


@dataclass(frozen=True, slots=True)
class OffsetHandlers:
    """Handles offset requests of consumers and tools."""

    offsets: ConsumerOffsets
    topics: Topics
    groups: Groups
    clients: ConnectedClients
    store: MessageStore
    delay_offsets: Callable[[], object]
    """Returns the content of `delayOffset.json`."""
    young_bytes: int
    """A new group starts at a queue's first message if it is at most this far from the log's end."""
    step_runner: StepRunner

    def query(self, request: Request, _peer: Peer) -> Response:
        """Return the committed offset of a group; 0 for a new one if the queue is new, or its start in memory."""
        query = decode_offset_query(request)
        topic, queue_id = query.queue.topic, query.queue.queue_id
        offset = self.offsets.get(query.group, topic, queue_id)
        if offset is not None and offset >= 0:
            return encode_offset(offset)
        if query.zero_if_not_found is False:
            reason = "Not found, do not set to zero, maybe this group boot first"
        elif self._is_in_memory(topic, queue_id) or self._is_new(topic, queue_id):
            return encode_offset(0)
        else:
            reason = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
        return Response(ResponseCode.QUERY_NOT_FOUND, reason)

    def _is_in_memory(self, topic: str, queue_id: int) -> bool:
        first = self.store.unit(topic, queue_id, 0)
        return first is not None and self.store.max_position - first[0] <= self.young_bytes

    def _is_new(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue has had no message. A client that then asks for its end may miss the first one.

        Retry topics need no such answer: clients begin there at 0.
        """
        is_known = self.topics.get(topic) is not None and not is_retry_topic(topic)
        return is_known and self.store.max_offset(topic, queue_id) == 0

    def update(self, request: Request, _peer: Peer) -> Response:
        """Commit an offset of a group."""
        update = decode_offset_update(request)
        group, topic = update.group, update.queue.topic
        if self.groups.get(group) is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        if self.topics.get(topic) is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        if not 0 <= update.queue.queue_id < QUEUES_MAX:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER, f"queueId={update.queue.queue_id} (expected 0 to {QUEUES_MAX - 1})"
            )
        if not self.offsets.commit(group, topic, update.queue.queue_id, update.offset):
            return Response(remark="Offset has been previously reset")
        return Response()

    def max_offset(self, request: Request, _peer: Peer) -> Response:
        """Return the offset of a queue's next message."""
        queue = decode_queue(request)
        return encode_offset(self.store.max_offset(queue.topic, queue.queue_id))

    def min_offset(self, request: Request, _peer: Peer) -> Response:
        """Return the offset of a queue's oldest message; -1 for a batch queue that never had one, as in Java."""
        queue = decode_queue(request)
        if self.topics.is_batch_topic(queue.topic) and not self.store.max_offset(queue.topic, queue.queue_id):
            return encode_offset(NO_MIN_OFFSET)
        return encode_offset(self.store.min_offset(queue.topic, queue.queue_id))

    def offset_at_time(self, request: Request, _peer: Peer) -> Response:
        """Return the offset of a queue at a time."""
        search = decode_time_search(request)
        queue = search.queue
        return encode_offset(self.store.offset_at(queue.topic, queue.queue_id, search.timestamp_ms, upper=search.upper))

    def earliest_time(self, request: Request, _peer: Peer) -> Response:
        """Return the store time of a queue's oldest message; -1 if it has none."""
        queue = decode_queue(request)
        earliest_ms = self.store.earliest_ms(queue.topic, queue.queue_id)
        return encode_timestamp(-1 if earliest_ms is None else earliest_ms)

    def corrections(self, request: Request, _peer: Peer) -> Answer:
        """Return the least offset of all groups for each queue; where `compareGroup` is behind it, the largest long.

        Offsets of deleted messages are ignored.
        """
        return self.step_runner.answer(self._corrections(decode_correction_query(request)))

    def _corrections(self, query: CorrectionQuery) -> Steps:
        least: dict[int, int] = {}
        visited = 0
        for group in self.offsets.groups_of(query.topic):
            known = {} if group in query.left_out else self.offsets.of(group, query.topic)
            for queue_id, offset in known.items():
                if offset >= self.store.min_offset(query.topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, offset))
                visited += 1
                if visited % STEP_PARTS == 0:
                    yield
        for queue_id, offset in self.offsets.of(query.group, query.topic).items():
            if least.get(queue_id, offset) > offset:
                least[queue_id] = _NO_CORRECTION
        return (yield from write_response(join_parts(correction_parts(least.items()))))

    def clone(self, request: Request, peer: Peer) -> Answer:
        """Copy the offsets of one group to another."""
        order = decode_clone_order(request)
        try:
            check_group(order.destination)
        except InvalidNameError as error:
            raise RefusedError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        return OrderedResponse(self._clone(order, peer))

    async def _clone(self, order: CloneOrder, peer: Peer) -> Response:
        topics = self.offsets.topics_of(order.source) if order.topic is None else [order.topic]
        cloned = await self.step_runner.run(self._clone_topics(order, topics))
        log.info(
            "offsets copied from=%s to=%s topics=%d of=%d peer=%s",
            *(order.source, order.destination, cloned, len(topics), peer.address),
        )
        await self.offsets.table_file.save()
        return Response()

    def _clone_topics(self, order: CloneOrder, topics: Sequence[str]) -> Generator[None, None, int]:
        """Copy the offsets of topics that members of the source subscribe to; return the number of topics copied."""
        source = self.clients.consumers(order.source)
        subscribed = None if source is None or order.offline else source.subscriptions
        cloned = work = 0
        for topic in topics:
            if self.topics.get(topic) is not None and (not subscribed or topic in subscribed):
                cloned += self.offsets.clone(order.source, order.destination, topic)
                work += len(self.offsets.of(order.source, topic))
            work += 1
            if work >= OFFSETS_A_STEP:
                work = 0
                yield
        return cloned

    def all(self, _request: Request, _peer: Peer) -> Answer:
        """Return all consumer offsets, in the form of their file."""
        return self.step_runner.answer(write_response(self.offsets.pieces()))

    def all_delays(self, _request: Request, _peer: Peer) -> Response:
        """Return the offset of each delay level, in the form of its file."""
        return Response(body=fastjson.dumps(self.delay_offsets(), Dialect.LEGACY))
