"""Heartbeats and queue locks of clients, and requests about connected clients."""

import asyncio
from collections.abc import Callable, Collection, Generator, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from skyroute.broker.clients.change_notifications import ChangeNotifications
from skyroute.broker.clients.client_groups import GroupMember
from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.clients.queue_locks import QueueLocks
from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.filters import make_filter
from skyroute.broker.handlers.stepwise_responses import STEP_PARTS, join_parts, write_response
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.topics import Announce, Topics
from skyroute.clock import Clock
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import retry_topic
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import StepRunner, Steps
from skyroute.routing.topology import Permission, TopicFlag
from skyroute.wire.calls.clients import (
    ConsumerData,
    ConsumeType,
    Heartbeat,
    QueueLocking,
    decode_client_check,
    decode_consumer_group,
    decode_heartbeat,
    decode_heartbeat_parts,
    decode_locking,
    decode_unregistration,
    encode_heartbeat_answer,
    encode_members,
    locked_parts,
)
from skyroute.wire.calls.connections import (
    HeardProducer,
    consumer_connections_parts,
    decode_producer_group,
    decode_subscription_query,
    encode_subscription,
    producer_connections_parts,
    producers_parts,
)
from skyroute.wire.calls.groups import Connection
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

HEARTBEAT_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of a heartbeat, which is parsed in one step; a thousand groups take less than half of it."""
SHORT_HEARTBEAT_BYTES: Final = 32 * 1024
"""Size up to which a heartbeat is processed in one step."""


@dataclass(frozen=True, slots=True)
class ClientHandlers:
    """Handles requests of clients about themselves, and of tools about clients."""

    clients: ConnectedClients
    locks: QueueLocks
    topics: Topics
    groups: Groups
    notifications: ChangeNotifications
    announce: Announce
    config: BrokerConfig
    clock: Clock
    step_runner: StepRunner
    prompt_runner: StepRunner
    """Lane for heartbeats and locks, which do not wait for long responses."""
    on_leave: Callable[[int, str], None] = lambda _connection, _group: None
    """Called with connection and group when a consumer leaves."""

    def heartbeat(self, request: Request, peer: Peer) -> Answer:
        """Process a heartbeat. The response waits only while retry topics of new groups are announced."""
        if len(request.body) > HEARTBEAT_BYTES_MAX:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"the heartbeat has {len(request.body)} bytes (expected at most {HEARTBEAT_BYTES_MAX})",
            )
        if len(request.body) > SHORT_HEARTBEAT_BYTES:
            return OrderedResponse(self._process_long(request, peer))
        wants_whole, created = self._process(decode_heartbeat(request), request, peer)
        response = encode_heartbeat_answer(wants_whole=wants_whole)
        return self._announce_topics(created, response) if created else response

    def _process(self, heartbeat: Heartbeat, request: Request, peer: Peer) -> tuple[bool, list[TopicConfig]]:
        """Process a heartbeat; return whether the next one must be complete, and the retry topics created."""
        admitted = self._without_refused(heartbeat)
        outcome = self.clients.beat(peer, admitted, request.language, request.version, self.clock.monotonic())
        self.notifications.put(outcome.changed)
        return outcome.needs_subscriptions, self._create_retry_topics(admitted.consumers)

    async def _process_long(self, request: Request, peer: Peer) -> Response:
        """Process a long heartbeat in parts. Components before a refused one stay in effect."""
        wants_whole, created = await self.prompt_runner.run(self._process_parts(request, peer))
        response = encode_heartbeat_answer(wants_whole=wants_whole)
        return await self._announce_topics(created, response) if created else response

    def _process_parts(self, request: Request, peer: Peer) -> Generator[None, None, tuple[bool, list[TopicConfig]]]:
        any_wants_whole, created = False, list[TopicConfig]()
        for part in decode_heartbeat_parts(request):
            yield
            wants_whole, topics = self._process(part, request, peer)
            any_wants_whole |= wants_whole
            created += topics
        return any_wants_whole, created

    def _without_refused(self, heartbeat: Heartbeat) -> Heartbeat:
        """Return a heartbeat without refused consumer groups. The client is not notified, as in Java."""
        admitted = tuple(
            consumer
            for consumer in heartbeat.consumers
            if not (self.config.reject_pull_consumers and consumer.consume_type is ConsumeType.PULL)
            and self.groups.find(consumer.group) is not None
        )
        if len(admitted) == len(heartbeat.consumers):
            return heartbeat
        return msgspec.structs.replace(heartbeat, consumers=admitted)

    def _create_retry_topics(self, consumers: Iterable[ConsumerData]) -> list[TopicConfig]:
        created = []
        for consumer in consumers:
            name = retry_topic(consumer.group)
            group = self.groups.get(consumer.group)
            if self.topics.get(name) is not None or group is None or group.retry_queues <= 0:
                continue
            subscribed = (self.topics.get(subscription.topic) for subscription in consumer.subscriptions)
            config = TopicConfig(
                name,
                group.retry_queues,
                group.retry_queues,
                Permission.READ | Permission.WRITE,
                sys_flag=int(TopicFlag.UNIT_SUBSCRIPTION) if consumer.unit_mode else 0,
                ordered=any(topic is not None and topic.ordered for topic in subscribed),
            )
            created.append(self.topics.create(config))
        return created

    async def _announce_topics(self, created: Collection[TopicConfig], response: Response) -> Response:
        await asyncio.gather(self.announce(created), self.topics.table_file.save())
        return response

    def unregister(self, request: Request, peer: Peer) -> Response:
        """Remove a client from its groups."""
        leaving = decode_unregistration(request)
        changed = self.clients.leave(
            peer.connection, producer_group=leaving.producer_group, consumer_group=leaving.consumer_group
        )
        if leaving.consumer_group is not None:
            self.on_leave(peer.connection, leaving.consumer_group)
        self.notifications.put(changed)
        return Response()

    def check_client(self, request: Request, _peer: Peer) -> Response:
        """Check a filter expression; refuse one that the broker cannot apply."""
        subscription = decode_client_check(request).subscription
        if subscription is not None:
            make_filter(subscription, by_properties=self.config.property_filter_enabled)
        return Response()

    # Locks

    def lock(self, request: Request, _peer: Peer) -> Answer:
        """Lock queues for one member of a group; return the queues it holds."""
        return self.prompt_runner.answer(self._lock(decode_locking(request)))

    def _lock(self, locking: QueueLocking) -> Steps:
        locked: list[QueueRef] = []
        for queues in (yield from _queues(locking)):
            locked += self.locks.lock(locking.group, locking.client_id, queues, self.clock.monotonic())
            if len(queues) == STEP_PARTS:
                yield
        return (yield from write_response(join_parts(locked_parts(locked))))

    def unlock(self, request: Request, _peer: Peer) -> Answer:
        """Unlock queues."""
        return self.prompt_runner.answer(self._unlock(decode_locking(request)))

    def _unlock(self, locking: QueueLocking) -> Steps:
        for queues in (yield from _queues(locking)):
            self.locks.unlock(locking.group, locking.client_id, queues)
            if len(queues) == STEP_PARTS:
                yield
        return Response()

    # Groups and connections

    def client_ids(self, request: Request, _peer: Peer) -> Response:
        """Return the client ids of a group; its members allocate queues by them."""
        name = decode_consumer_group(request)
        group = self.clients.consumers(name)
        if group is None:
            return Response.error(f"no consumer for this group, {name}")
        return Response(body=encode_members(member.client_id for member in group.members))

    def consumer_connections(self, request: Request, _peer: Peer) -> Answer:
        """Return the connections and subscriptions of a consumer group."""
        name = decode_consumer_group(request)
        group = self.clients.consumers(name)
        if group is None:
            return Response.error(f"the consumer group[{name}] not online", ResponseCode.CONSUMER_NOT_ONLINE)
        members, subscriptions = list(group.members), list(group.subscriptions.values())
        parts = consumer_connections_parts(
            map(_connection, members), subscriptions, group.type, group.model, group.start_from
        )
        return self.step_runner.answer(write_response(join_parts(parts)))

    def producer_connections(self, request: Request, _peer: Peer) -> Answer:
        """Return the connections of a producer group."""
        name = decode_producer_group(request)
        members = self.clients.producers(name)
        if not members:
            return Response.error(f"the producer group[{name}] not exist")
        return self.step_runner.answer(
            write_response(join_parts(producer_connections_parts(map(_connection, members))))
        )

    def all_producers(self, _request: Request, _peer: Peer) -> Answer:
        """Return the producers of all groups."""
        groups = (
            (group.name, map(self._producer, list(group.members)))
            for group in list(self.clients.producer_groups.values())
        )
        return self.step_runner.answer(write_response(join_parts(producers_parts(groups))))

    def _producer(self, member: GroupMember) -> HeardProducer:
        idle_s = self.clock.monotonic() - member.heard_at
        return HeardProducer(
            member.client_id,
            member.language,
            int((self.clock.wall() - idle_s) * 1000),
            # Java's tools expect an address in the form of InetSocketAddress.
            f"/{member.peer.address}",
            member.version,
        )

    def subscription(self, request: Request, _peer: Peer) -> Response:
        """Return the subscription of a group to a topic."""
        query = decode_subscription_query(request)
        found = None if query.topic is None else self.clients.subscription(query.group, query.topic)
        return encode_subscription(query, found)


def _queues(locking: QueueLocking) -> Generator[None, None, list[list[QueueRef]]]:
    """Parse the queues of a request, `STEP_PARTS` at a time."""
    parts: list[list[QueueRef]] = []
    for start in range(0, len(locking.queues), STEP_PARTS):
        if parts:
            yield
        parts.append([queue.value() for queue in locking.queues[start : start + STEP_PARTS]])
    return parts


def _connection(member: GroupMember) -> Connection:
    return Connection(member.client_id, member.peer.address, member.language, member.version)
