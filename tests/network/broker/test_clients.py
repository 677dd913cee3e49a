"""Clients of a broker: rebalance, filters, queue locks, replies, and clients that leave."""

from dataclasses import dataclass, field

import pytest

from skyroute.client.consuming.consumer import Consumer
from skyroute.client.consuming.subscription import sql
from skyroute.client.errors import ExpressionRefusedError, ServerFailedError
from skyroute.client.producing.producer import Producer
from skyroute.client.session.session import Session
from skyroute.message.message import Message, StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.clients import (
    ConsumerData,
    decode_consumer_group,
    decode_locked,
    decode_members,
    encode_heartbeat,
    encode_lock,
    encode_member_query,
    encode_unlock,
    encode_unregistration,
)
from skyroute.wire.command import Request, Response
from tests.network.broker.clusters import Cluster
from tests.network.client.consumers import Inbox
from tests.support.connections import WAIT_S
from tests.support.waiting import eventually
from tests.unit.broker.clients import a_consumer

RETRY = "%RETRY%g"
QUEUE = QueueRef("T", "broker-a", 0)


@dataclass
class Client:
    """A session that sends given heartbeats, and records the groups of its notifications."""

    session: Session
    address: str
    heard: list[str] = field(default_factory=list)

    async def beat(self, *consumers: ConsumerData) -> Response:
        return await self.session.ask(self.address, encode_heartbeat(self.session.client_id, [], consumers))

    async def ask(self, request: Request) -> Response:
        return await self.session.ask(self.address, request)

    async def members(self, group: str = "g") -> set[str]:
        return set(decode_members((await self.ask(encode_member_query(group))).body))

    async def note(self, request: Request, _address: str) -> None:
        self.heard.append(decode_consumer_group(request))


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    await cluster.add_topic("T", 4)
    return cluster


async def client_of(cluster: Cluster) -> Client:
    session = await cluster.session()
    client = Client(session, cluster.broker.address)
    session.requests.add(40, client.note)
    return client


# ---------------------------------------------------------------------------------------------------- groups


async def test_the_retry_topic_has_a_route_before_the_heartbeat_response(cluster: Cluster) -> None:
    client = await client_of(cluster)
    await client.beat(a_consumer("g", "T"))
    assert RETRY in cluster.name_server.server.table.topics


async def test_members_are_notified_when_others_join_and_leave(cluster: Cluster) -> None:
    first, second = await client_of(cluster), await client_of(cluster)
    await first.beat(a_consumer("g", "T"))
    await second.beat(a_consumer("g", "T"))
    assert await first.members() == {first.session.client_id, second.session.client_id}
    await eventually(lambda: len(first.heard) >= 2 and "g" in second.heard)
    heard = len(first.heard)
    await second.ask(encode_unregistration(second.session.client_id, consumer_group="g"))
    assert await first.members() == {first.session.client_id}
    await eventually(lambda: len(first.heard) > heard)


async def test_a_closed_connection_removes_its_clients_from_their_groups(cluster: Cluster) -> None:
    first, second = await client_of(cluster), await client_of(cluster)
    await second.beat(a_consumer("g", "T"))
    await first.beat(a_consumer("g", "T"))
    await eventually(lambda: first.heard != [])
    heard = len(first.heard)
    await second.session.stop()
    await eventually(lambda: len(first.heard) > heard)
    assert await first.members() == {first.session.client_id}


async def test_a_client_without_heartbeats_is_evicted(cluster: Cluster) -> None:
    client = await client_of(cluster)
    await client.beat(a_consumer("g", "T"))
    scan = cluster.broker.components.client_expiry.scan
    for _ in range(13):
        cluster.clock.advance(10)
        await scan()
    assert cluster.broker.components.clients.consumers("g") is None
    await eventually(lambda: cluster.broker.address not in client.session.connections.by_address)


async def test_an_unknown_group_has_no_members(cluster: Cluster) -> None:
    client = await client_of(cluster)
    with pytest.raises(ServerFailedError, match="no consumer for this group, nobody"):
        await client.members("nobody")


def _queues_of(consumer: Consumer) -> set[int]:
    return {queue.queue_id for queue in consumer.assignment if queue.topic == "T"}


async def test_two_consumers_share_the_queues_of_a_topic(cluster: Cluster) -> None:
    inboxes = Inbox(), Inbox()
    consumers = cluster.consumer(), cluster.consumer()
    for consumer, inbox in zip(consumers, inboxes, strict=True):
        consumer.subscribe("T", handler=inbox)
    async with consumers[0], consumers[1]:
        await eventually(
            lambda: [_queues_of(consumer) for consumer in consumers] in ([{0, 1}, {2, 3}], [{2, 3}, {0, 1}])
        )
        await cluster.send(*(Message("T", b"%d" % number) for number in range(40)))
        await eventually(lambda: len(inboxes[0].messages) + len(inboxes[1].messages) >= 40)
    assert sorted(int(body) for inbox in inboxes for body in inbox.bodies) == list(range(40))
    assert cluster.broker.components.clients.consumers("g") is None  # both have unregistered


# --------------------------------------------------------------------------------------------------- filters


async def test_a_consumer_gets_messages_with_its_tags(cluster: Cluster) -> None:
    await cluster.send(*(Message("T", tag.encode(), tag=tag) for tag in ("A", "红", "B", "C")))
    inbox = Inbox()
    consumer = cluster.consumer()
    consumer.subscribe("T", "A || 红", handler=inbox)
    async with consumer:
        assert sorted(await inbox.until(2)) == [b"A", "红".encode()]


async def test_a_consumer_gets_messages_that_its_sql_filter_accepts(cluster: Cluster) -> None:
    await cluster.send(*(Message("T", b"%d" % number, properties={"n": str(number)}) for number in range(6)))
    inbox = Inbox()
    consumer = cluster.consumer()
    consumer.subscribe("T", sql("n BETWEEN 2 AND 3"), handler=inbox)
    async with consumer:
        assert sorted(await inbox.until(2)) == [b"2", b"3"]


async def test_an_invalid_sql_filter_makes_the_start_of_a_consumer_fail(cluster: Cluster) -> None:
    consumer = cluster.consumer()
    consumer.subscribe("T", sql("n LIKE '2'"), handler=Inbox())
    with pytest.raises(ExpressionRefusedError):
        await consumer.start()
    await consumer.stop()


# ----------------------------------------------------------------------------------------------------- locks


async def test_a_queue_is_locked_by_one_client_at_a_time(cluster: Cluster) -> None:
    first, second = await client_of(cluster), await client_of(cluster)

    async def lock(client: Client) -> frozenset[QueueRef]:
        return decode_locked((await client.ask(encode_lock(client.session.client_id, "g", [QUEUE]))).body)

    assert await lock(first) == {QUEUE}
    assert await lock(second) == frozenset()
    await first.ask(encode_unlock(first.session.client_id, "g", [QUEUE]))
    assert await lock(second) == {QUEUE}


# --------------------------------------------------------------------------------------------------- replies


async def test_a_request_message_gets_its_reply(cluster: Cluster) -> None:
    async with (
        Producer("askers", cluster.name_server.address) as asker,
        Producer("repliers", cluster.name_server.address) as replier,
    ):
        consumer = cluster.consumer()

        async def answer(message: StoredMessage) -> None:
            await replier.reply(message, b"re: " + message.body)

        consumer.subscribe("T", handler=answer)
        async with consumer:
            reply = await asker.request(Message("T", b"hello"), timeout_s=WAIT_S)
    assert reply.body == b"re: hello"
