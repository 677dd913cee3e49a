"""What clients say of themselves, and what others ask about them."""

import asyncio
from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from skyroute.broker.clients.change_notifications import ChangeNotifications
from skyroute.broker.clients.client_groups import GroupMember
from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.clients.queue_locks import QueueLocks
from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.filters import make_filter
from skyroute.broker.handlers.long_answers import STEP_PARTS, answer_with, in_pieces
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
"""How long a heartbeat may be: it is read in one go, and a thousand groups take less than half of this."""
SHORT_HEARTBEAT_BYTES: Final = 32 * 1024
"""Size up to which a heartbeat is processed in one step."""


@dataclass(frozen=True, slots=True)
class MemberHandlers:
    """Heartbeats, goodbyes, locks, and who is in which group."""

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

    def heartbeat(self, request: Request, peer: Peer) -> Answer:
        """Take a heartbeat. It is answered at once, unless there is a new group whose topic has to be made known."""
        if len(request.body) > HEARTBEAT_BYTES_MAX:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"a heartbeat may have {HEARTBEAT_BYTES_MAX} bytes, and this one has {len(request.body)}",
            )
        if len(request.body) > SHORT_HEARTBEAT_BYTES:
            return OrderedResponse(self._take_long(request, peer))
        needs_subscriptions, created = self._take(decode_heartbeat(request), request, peer)
        answer = encode_heartbeat_answer(wants_whole=needs_subscriptions)
        return self._make_known(created, answer) if created else answer

    def _take(self, said: Heartbeat, request: Request, peer: Peer) -> tuple[bool, list[TopicConfig]]:
        """Process a heartbeat; return whether the next one must be complete, and the retry topics created."""
        beat = self._welcome(said)
        outcome = self.clients.beat(peer, beat, request.language, request.version, self.clock.monotonic())
        self.notifications.put(outcome.changed)
        return outcome.needs_subscriptions, self._create_retry_topics(beat.consumers)

    async def _take_long(self, request: Request, peer: Peer) -> Response:
        """Process a long heartbeat in parts. Components before a refused one stay in effect."""
        needs_subscriptions, created = await self.prompt_runner.run(self._take_parts(request, peer))
        answer = encode_heartbeat_answer(wants_whole=needs_subscriptions)
        return await self._make_known(created, answer) if created else answer

    def _take_parts(self, request: Request, peer: Peer) -> Generator[None, None, tuple[bool, list[TopicConfig]]]:
        any_wants_whole, created = False, list[TopicConfig]()
        for part in decode_heartbeat_parts(request):
            yield
            needs_subscriptions, made = self._take(part, request, peer)
            any_wants_whole |= needs_subscriptions
            created += made
        return any_wants_whole, created

    def _welcome(self, beat: Heartbeat) -> Heartbeat:
        """Return a heartbeat without the groups that may not be here. Nobody is told which."""
        welcome = tuple(
            consumer
            for consumer in beat.consumers
            if not (self.config.reject_pull_consumers and consumer.consume_type is ConsumeType.PULL)
            and self.groups.find(consumer.group) is not None
        )
        return beat if len(welcome) == len(beat.consumers) else msgspec.structs.replace(beat, consumers=welcome)

    def _create_retry_topics(self, consumers: Iterable[ConsumerData]) -> list[TopicConfig]:
        created = []
        for consumer in consumers:
            name = retry_topic(consumer.group)
            group = self.groups.get(consumer.group)
            if self.topics.get(name) is not None or group is None or group.retry_queues <= 0:
                continue
            wanted = (self.topics.get(subscription.topic) for subscription in consumer.subscriptions)
            config = TopicConfig(
                name,
                group.retry_queues,
                group.retry_queues,
                Permission.READ | Permission.WRITE,
                sys_flag=int(TopicFlag.UNIT_SUBSCRIPTION) if consumer.unit_mode else 0,
                ordered=any(topic is not None and topic.ordered for topic in wanted),
            )
            created.append(self.topics.create(config))
        return created

    async def _make_known(self, created: Collection[TopicConfig], answer: Response) -> Response:
        await asyncio.gather(self.announce(created), self.topics.table_file.save())
        return answer

    def leave(self, request: Request, peer: Peer) -> Response:
        """Have a client leave a group."""
        leaving = decode_unregistration(request)
        changed = self.clients.leave(
            peer.connection, producer_group=leaving.producer_group, consumer_group=leaving.consumer_group
        )
        self.notifications.put(changed)
        return Response()

    def check_client(self, request: Request, _peer: Peer) -> Response:
        """Say whether we can filter as a client wants."""
        wanted = decode_client_check(request).subscription
        if wanted is not None:
            make_filter(wanted, by_properties=self.config.property_filter_enabled)
        return Response()

    # Locks

    def lock(self, request: Request, _peer: Peer) -> Answer:
        """Give queues to one member of a group alone."""
        return self.prompt_runner.answer(self._lock(decode_locking(request)))

    def _lock(self, wanted: QueueLocking) -> Steps:
        given: list[QueueRef] = []
        for queues in (yield from _queues(wanted)):
            given += self.locks.lock(wanted.group, wanted.client_id, queues, self.clock.monotonic())
            if len(queues) == STEP_PARTS:
                yield
        return (yield from answer_with(in_pieces(locked_parts(given))))

    def unlock(self, request: Request, _peer: Peer) -> Answer:
        """Take queues back."""
        return self.prompt_runner.answer(self._unlock(decode_locking(request)))

    def _unlock(self, given_back: QueueLocking) -> Steps:
        for queues in (yield from _queues(given_back)):
            self.locks.unlock(given_back.group, given_back.client_id, queues)
            if len(queues) == STEP_PARTS:
                yield
        return Response()

    # Questions

    def client_ids(self, request: Request, _peer: Peer) -> Response:
        """Tell a group's members, to those who share its queues out."""
        name = decode_consumer_group(request)
        group = self.clients.consumers(name)
        if group is None:
            return Response.error(f"no consumer for this group, {name}")
        return Response(body=encode_members(member.client_id for member in group.members))

    def consumer_connections(self, request: Request, _peer: Peer) -> Answer:
        """Tell who consumes in a group, and what."""
        name = decode_consumer_group(request)
        group = self.clients.consumers(name)
        if group is None:
            return Response.error(f"the consumer group[{name}] not online", ResponseCode.CONSUMER_NOT_ONLINE)
        members, subscriptions = list(group.members), list(group.subscriptions.values())
        parts = consumer_connections_parts(
            map(_connection, members), subscriptions, group.type, group.model, group.start_from
        )
        return self.step_runner.answer(answer_with(in_pieces(parts)))

    def producer_connections(self, request: Request, _peer: Peer) -> Answer:
        """Tell who produces in a group."""
        name = decode_producer_group(request)
        members = self.clients.producers(name)
        if not members:
            return Response.error(f"the producer group[{name}] not exist")
        return self.step_runner.answer(answer_with(in_pieces(producer_connections_parts(map(_connection, members)))))

    def all_producers(self, _request: Request, _peer: Peer) -> Answer:
        """Tell who produces, by group."""
        groups = (
            (group.name, map(self._heard, list(group.members))) for group in list(self.clients.producer_groups.values())
        )
        return self.step_runner.answer(answer_with(in_pieces(producers_parts(groups))))

    def _heard(self, member: GroupMember) -> HeardProducer:
        silence_s = self.clock.monotonic() - member.heard_at
        return HeardProducer(
            member.client_id,
            member.language,
            int((self.clock.wall() - silence_s) * 1000),
            # Java's tools expect an address as Java writes one.
            f"/{member.peer.address}",
            member.version,
        )

    def subscription(self, request: Request, _peer: Peer) -> Response:
        """Tell what a group wants of a topic."""
        query = decode_subscription_query(request)
        wanted = None if query.topic is None else self.clients.subscription(query.group, query.topic)
        return encode_subscription(query, wanted)


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
