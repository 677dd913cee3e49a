"""What clients say of themselves, and what others ask about them."""

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from skyroute.broker.config import BrokerConfig
from skyroute.broker.filters import make_filter
from skyroute.broker.groups import Groups
from skyroute.broker.members import Members
from skyroute.broker.notices import MemberNotices
from skyroute.broker.queue_locks import QueueLocks
from skyroute.broker.rosters import Member
from skyroute.broker.topics import Announce, Topics
from skyroute.clock import Clock
from skyroute.message.reserved_topics import retry_topic
from skyroute.remoting.dispatch import Answer, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.routing.topology import Permission, TopicFlag
from skyroute.wire.calls.clients import (
    ConsumerData,
    ConsumeType,
    Heartbeat,
    decode_client_check,
    decode_consumer_group,
    decode_heartbeat,
    decode_locking,
    decode_unregistration,
    encode_heartbeat_answer,
    encode_locked,
    encode_members,
)
from skyroute.wire.calls.connections import (
    HeardProducer,
    decode_producer_group,
    decode_subscription_query,
    encode_consumer_connections,
    encode_producer_connections,
    encode_producers,
    encode_subscription,
)
from skyroute.wire.calls.groups import Connection
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

HEARTBEAT_BYTES_MAX: Final = 1024 * 1024
"""How long a heartbeat may be: it is read in one go, and a thousand groups take less than half of this."""


@dataclass(frozen=True, slots=True)
class MemberHandlers:
    """Heartbeats, goodbyes, locks, and who is in which group."""

    members: Members
    locks: QueueLocks
    topics: Topics
    groups: Groups
    notices: MemberNotices
    announce: Announce
    config: BrokerConfig
    clock: Clock

    def heartbeat(self, request: Request, peer: Peer) -> Answer:
        """Take a heartbeat. It is answered at once, unless there is a new group whose topic has to be made known."""
        if len(request.body) > HEARTBEAT_BYTES_MAX:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"a heartbeat may have {HEARTBEAT_BYTES_MAX} bytes, and this one has {len(request.body)}",
            )
        beat = self._welcome(decode_heartbeat(request))
        outcome = self.members.beat(peer, beat, request.language, request.version, self.clock.monotonic())
        self.notices.put(outcome.changed)
        answer = encode_heartbeat_answer(wants_whole=outcome.wants_whole)
        created = self._create_retry_topics(beat.consumers)
        return self._make_known(created, answer) if created else answer

    def _welcome(self, beat: Heartbeat) -> Heartbeat:
        """Return a heartbeat without the groups that may not be here. Nobody is told which."""
        welcome = tuple(
            consumer
            for consumer in beat.consumers
            if not (self.config.reject_pull_consumer_enable and consumer.consume_type is ConsumeType.PULL)
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
        await asyncio.gather(self.announce(created), self.topics.keeper.save())
        return answer

    def leave(self, request: Request, peer: Peer) -> Response:
        """Have a client leave a group."""
        leaving = decode_unregistration(request)
        changed = self.members.leave(
            peer.connection, producer_group=leaving.producer_group, consumer_group=leaving.consumer_group
        )
        self.notices.put(changed)
        return Response()

    def check_client(self, request: Request, _peer: Peer) -> Response:
        """Say whether we can filter as a client wants."""
        wanted = decode_client_check(request).subscription
        if wanted is not None:
            make_filter(wanted, by_properties=self.config.enable_property_filter)
        return Response()

    # Locks

    def lock(self, request: Request, _peer: Peer) -> Response:
        """Give queues to one member of a group alone."""
        wanted = decode_locking(request)
        given = self.locks.lock(wanted.group, wanted.client_id, wanted.queues, self.clock.monotonic())
        return Response(body=encode_locked(given))

    def unlock(self, request: Request, _peer: Peer) -> Response:
        """Take queues back."""
        given_back = decode_locking(request)
        self.locks.unlock(given_back.group, given_back.client_id, given_back.queues)
        return Response()

    # Questions

    def client_ids(self, request: Request, _peer: Peer) -> Response:
        """Tell a group's members, to those who share its queues out."""
        name = decode_consumer_group(request)
        group = self.members.consumers(name)
        if group is None:
            return Response.error(f"no consumer for this group, {name}")
        return Response(body=encode_members(member.client_id for member in group.members))

    def consumer_connections(self, request: Request, _peer: Peer) -> Response:
        """Tell who consumes in a group, and what."""
        name = decode_consumer_group(request)
        group = self.members.consumers(name)
        if group is None:
            return Response.error(f"the consumer group[{name}] not online", ResponseCode.CONSUMER_NOT_ONLINE)
        return encode_consumer_connections(
            map(_connection, group.members), group.subscriptions, group.type, group.model, group.start_from
        )

    def producer_connections(self, request: Request, _peer: Peer) -> Response:
        """Tell who produces in a group."""
        name = decode_producer_group(request)
        members = self.members.producers(name)
        if not members:
            return Response.error(f"the producer group[{name}] not exist")
        return encode_producer_connections(map(_connection, members))

    def all_producers(self, _request: Request, _peer: Peer) -> Response:
        """Tell who produces, by group."""
        now, wall = self.clock.monotonic(), self.clock.wall()
        return encode_producers(
            {
                name: [
                    HeardProducer(
                        member.client_id,
                        member.language,
                        int((wall - (now - member.heard_at)) * 1000),
                        # Java's tools expect an address as Java writes one.
                        f"/{member.peer.address}",
                        member.version,
                    )
                    for member in group.members
                ]
                for name, group in self.members.producer_groups.items()
            }
        )

    def subscription(self, request: Request, _peer: Peer) -> Response:
        """Tell what a group wants of a topic."""
        query = decode_subscription_query(request)
        wanted = None if query.topic is None else self.members.subscription(query.group, query.topic)
        return encode_subscription(query, wanted)


def _connection(member: Member) -> Connection:
    return Connection(member.client_id, member.peer.address, member.language, member.version)
