"""Drops what the mappings of static topics no longer need.

A leader drops the first items of a logical queue once their physical queues are empty. A broker that led a queue two
or more moves ago drops the queue. What cannot be found out, because a broker does not answer, stays until the next
round.
"""

import asyncio
import logging
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from skyroute.broker.cluster.peer_brokers import PeerBrokers
from skyroute.broker.cluster.topic_routes import TopicRoutes
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.queue_mappings import QueueMappings
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.errors import RemotingError
from skyroute.wire.calls.offsets import (
    decode_offset,
    encode_max_offset_query,
    encode_min_offset_query,
    encode_offset_query,
    encode_offset_update,
)
from skyroute.wire.calls.static_topics import Items, MappingItem, QueueMapping, decode_config_mapping
from skyroute.wire.calls.topics import decode_topic_readers, encode_topic_config_query, encode_topic_readers_query
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import WireError

log = logging.getLogger(__name__)

QUEUES_A_TURN: Final = 1_000
"""Logical queues that are looked at before other requests are served."""


class MappingCleanup:
    """Shortens the mappings of static topics."""

    def __init__(
        self,
        mappings: QueueMappings,
        store: MessageStore,
        peers: PeerBrokers,
        routes: TopicRoutes,
        broker_name: str,
    ) -> None:
        self._mappings = mappings
        self._store = store
        self._peers = peers
        self._routes = routes
        self._broker_name = broker_name
        self._silent: set[str] = set()
        """Brokers that did not answer in this round."""
        self._refused: set[tuple[str, int]] = set()
        """Brokers and requests that they refused in this round, each logged once."""
        self._readers: dict[tuple[str, str], list[str]] = {}
        """Groups with offsets, by broker and topic, as read in this round."""

    async def clean(self) -> None:
        """Check all mappings once.

        Raises:
            StorageError: the shorter mappings could not be saved.
        """
        self._silent.clear()
        self._refused.clear()
        self._readers.clear()
        for topic in list(self._mappings.all()):
            mapping = self._mappings.get(topic)
            if mapping is not None:
                await self._clean_topic(mapping)
        await self._mappings.table_file.save()

    async def _clean_topic(self, mapping: QueueMapping) -> None:
        shorter: dict[int, Items] = {}
        moved: dict[int, Items] = {}
        for number, (queue_id, items) in enumerate(mapping.hosted.items(), 1):
            if mapping.led_items(queue_id):
                if count := await self._count_unneeded(mapping.topic, items):
                    shorter[queue_id] = items[count:]
            elif items:
                moved[queue_id] = items
            if number % QUEUES_A_TURN == 0:
                await asyncio.sleep(0)
        gone = await self._moved_again(mapping, moved) if moved else set()
        if not shorter and not gone:
            return
        hosted = {each: shorter.get(each, items) for each, items in mapping.hosted.items() if each not in gone}
        if self._mappings.shorten(mapping, hosted):  # else it has changed meanwhile
            log.info("static topic shortened topic=%s queues=%d moved=%d", mapping.topic, len(shorter), len(gone))

    # -------------------------------------------------------------------------------- items of queues that it leads

    async def _count_unneeded(self, topic: str, items: Items) -> int:
        """Return how many of the first items have no messages. No group loses its place when they are dropped."""
        count = 0
        try:
            for item, later in pairwise(items):
                if not later.is_decided or not await self._is_empty(topic, item):
                    break
                count += 1
            if count:
                await self._move_offsets(topic, items[:count], items[count:])
        except (RemotingError, WireError) as error:
            log.debug("items of a static topic stay topic=%s reason=%s", topic, error)
            return 0
        return count

    async def _is_empty(self, topic: str, item: MappingItem) -> bool:
        queue = QueueRef(topic, item.broker_name, item.queue_id)
        end = decode_offset(await self._ask(item.broker_name, encode_max_offset_query(queue)))
        if end == 0:  # its files were deleted
            return True
        return end >= item.end and end == decode_offset(
            await self._ask(item.broker_name, encode_min_offset_query(queue))
        )

    async def _move_offsets(self, topic: str, unneeded: Items, kept: Items) -> None:
        """Commit the start of the first kept item for groups that have an offset in unneeded items only.

        Without any offset such a group would start as a new one does, perhaps behind messages that it has not read.
        """
        moved: set[str] = set()
        for item in unneeded:
            for group in await self._groups(topic, item.broker_name):
                if group in moved or not await self._has_offset(group, topic, (item,)):
                    continue
                moved.add(group)
                if not await self._has_offset(group, topic, kept):
                    first = kept[0]
                    queue = QueueRef(topic, first.broker_name, first.queue_id)
                    await self._ask(first.broker_name, encode_offset_update(group, queue, first.start))

    async def _groups(self, topic: str, broker_name: str) -> list[str]:
        key = broker_name, topic
        if key not in self._readers:
            response = await self._ask(broker_name, encode_topic_readers_query(topic))
            self._readers[key] = decode_topic_readers(response.body)
        return self._readers[key]

    async def _has_offset(self, group: str, topic: str, items: Iterable[MappingItem]) -> bool:
        for item in items:
            queue = QueueRef(topic, item.broker_name, item.queue_id)
            query = encode_offset_query(group, queue, zero_if_not_found=False)
            if (await self._ask(item.broker_name, query, ResponseCode.QUERY_NOT_FOUND)).code == ResponseCode.SUCCESS:
                return True
        return False

    # ---------------------------------------------------------------------------------------- queues that moved twice

    async def _moved_again(self, mapping: QueueMapping, moved: dict[int, Items]) -> set[int]:
        """Return those queues that the broker that took them over has given to a third one."""
        route = await self._routes.find(mapping.topic, fresh_s=0.0)
        leaders: dict[int, str] = {}
        for name, each in sorted(() if route is None else route.mappings.items(), key=lambda entry: entry[1].epoch):
            leaders.update(dict.fromkeys(each.current_ids, name))
        theirs: dict[str, QueueMapping | None] = {}
        gone = set()
        for number, (queue_id, items) in enumerate(moved.items(), 1):
            leader = leaders.get(queue_id)
            if leader is not None and leader not in (items[-1].broker_name, self._broker_name):
                if leader not in theirs:
                    theirs[leader] = await self._mapping_of(leader, mapping.topic)
                if self._is_led_by(theirs[leader], mapping, queue_id):
                    gone.add(queue_id)
            if number % QUEUES_A_TURN == 0:
                await asyncio.sleep(0)
        return gone

    async def _mapping_of(self, broker_name: str, topic: str) -> QueueMapping | None:
        try:
            found = decode_config_mapping((await self._ask(broker_name, encode_topic_config_query(topic))).body)
        except (RemotingError, WireError) as error:
            log.debug("queues of a static topic stay topic=%s reason=%s", topic, error)
            return None
        return found if found is not None and found.broker_name == broker_name else None

    def _is_led_by(self, theirs: QueueMapping | None, mapping: QueueMapping, queue_id: int) -> bool:
        """Return whether a broker leads a queue, and reads all messages that this broker has of it."""
        own = mapping.epoch, mapping.total_queues, mapping.scope
        if theirs is None or (theirs.epoch, theirs.total_queues, theirs.scope) != own:
            return False
        store, topic = self._store, mapping.topic
        read = {item.generation for item in theirs.led_items(queue_id)}
        held = {
            item.generation
            for item in mapping.hosted[queue_id]
            if item.broker_name == self._broker_name
            and store.max_offset(topic, item.queue_id) > store.min_offset(topic, item.queue_id)
        }
        return bool(read) and held <= read

    # ------------------------------------------------------------------------------------------------------ requests

    async def _ask(self, broker_name: str, request: Request, *accepted: ResponseCode) -> Response:
        """Return the response of a master; a slave may lag behind.

        Raises:
            RemotingError: there is no master, it did not answer in time, or it refused.
        """
        if broker_name in self._silent:
            raise RemotingError(f"broker {broker_name} did not answer before")
        fields = {"lo": "false", **request.fields}  # a physical queue, if the request names one
        try:
            response = await self._peers.call(broker_name, Request(request.code, fields), master_only=True)
        except RemotingError as error:
            self._silent.add(broker_name)
            log.info("mappings not shortened, broker did not answer broker=%s reason=%s", broker_name, error)
            raise
        if response.code not in (ResponseCode.SUCCESS, *accepted):
            refusal = f"response {response.code} to request {request.code}: {response.remark}"
            if (broker_name, request.code) not in self._refused:
                self._refused.add((broker_name, request.code))
                log.info("mapping not shortened, request refused broker=%s reason=%s", broker_name, refusal)
            raise RemotingError(f"broker {broker_name} gave {refusal}")
        return response
