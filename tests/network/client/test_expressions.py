"""SQL filters are checked by a broker before they take effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from skyroute import Consumer, Message, Producer, PullConsumer, StartPosition, StoredMessage, blocking, sql
from skyroute.client.errors import BrokerRefusedError, ExpressionRefusedError, ServerFailedError
from skyroute.testing import cluster as own_cluster
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.client.consumers import HURRIED, Inbox, consumer_of
from tests.support.fake_broker import FakeCluster, Peer, Reply, fake_cluster
from tests.support.raw import Command

CHECK = RequestCode.CHECK_CLIENT_CONFIG
NONSENSE = ResponseCode.SUBSCRIPTION_PARSE_FAILED

pytestmark = pytest.mark.usefixtures("nothing_lost")


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 1, "U": 1}) as running:
        yield running


def told(cluster: FakeCluster, topic: str, group: str = "g") -> str | None:
    """What the broker was told last that the group wants of a topic."""
    wanted = cluster.subscriptions.get(("broker-a", group, topic))
    return None if wanted is None else wanted["subString"]


async def test_a_condition_that_is_refused_changes_nothing(cluster: FakeCluster) -> None:
    inbox = Inbox()
    consumer = consumer_of(cluster)
    consumer.subscribe("T", "A", inbox)
    async with consumer:
        cluster.refuse(CHECK, NONSENSE, "the expression is nonsense")
        with pytest.raises(ExpressionRefusedError, match="nonsense"):
            await consumer.subscribe("T", sql("a >"), inbox)
        with pytest.raises(ExpressionRefusedError, match="nonsense"):
            await consumer.subscribe("U", sql("a >"), inbox)
        cluster.put(cluster.queue("T"), b"still wanted", tag="A")
        assert await inbox.until(1) == [b"still wanted"]
        await consumer.session.heartbeats.send()
    assert told(cluster, "T") == "A"
    assert told(cluster, "U") is None


async def test_awaiting_the_subscription_is_optional(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        cluster.refuse(CHECK, NONSENSE, "the expression is nonsense", times=1)
        consumer.subscribe("U", sql("a >"), Inbox())
        await cluster.until_seen(CHECK)
        consumer.subscribe("U", sql("a > 5"), Inbox())
        await cluster.until(lambda: told(cluster, "U") == "a > 5")
    assert any(line.startswith("subscription refused group=g topic=U") for line in caplog.messages)


async def test_the_last_subscription_to_a_topic_wins(cluster: FakeCluster) -> None:
    go_on = asyncio.Event()

    async def wait(command: Command, peer: Peer) -> Reply | None:
        await go_on.wait()
        return await cluster.answer(command, peer)

    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        cluster.on(CHECK, wait)
        early = consumer.subscribe("U", sql("a > 5"), Inbox())
        gone = consumer.subscribe("T", sql("a > 5"), Inbox())
        await cluster.until_seen(CHECK, 2)
        consumer.subscribe("U", "B", Inbox())
        consumer.unsubscribe("T")
        go_on.set()
        await early
        await gone
        await cluster.until(lambda: told(cluster, "U") == "B")
        await consumer.session.heartbeats.send()
        assert told(cluster, "U") == "B"
        assert "T" not in consumer._subscriptions.topics


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL, ResponseCode.GO_AWAY, None])
async def test_a_busy_broker_does_not_refuse_the_filter(cluster: FakeCluster, code: int | None) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        if code is not None:
            cluster.refuse(CHECK, code, "not now")
        else:
            cluster.cut(CHECK, times=1)
        await consumer.subscribe("U", sql("a > 5"), Inbox())
        await cluster.until(lambda: told(cluster, "U") == "a > 5")


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
    ],
)
async def test_other_response_codes_refuse_the_filter(cluster: FakeCluster, code: int) -> None:
    cluster.refuse(CHECK, code, "no SQL here")
    puller = PullConsumer("g", cluster.address)
    puller.subscribe("T", sql("a > 5"))
    with pytest.raises(BrokerRefusedError, match="no SQL here"):
        await puller.start()
    puller.subscribe("T", "A")
    async with puller:
        with pytest.raises(BrokerRefusedError, match="no SQL here"):
            await puller.subscribe("T", sql("a > 5"))
    consumer = consumer_of(cluster)
    consumer.subscribe("T", "A", Inbox())
    async with consumer:
        with pytest.raises(BrokerRefusedError, match="no SQL here"):
            await consumer.subscribe("T", sql("a > 5"), Inbox())
        await consumer.session.heartbeats.send()
        assert told(cluster, "T") == "A"


async def test_a_refusing_name_server_does_not_refuse_the_filter(cluster: FakeCluster) -> None:
    async with PullConsumer("g", cluster.address) as consumer:
        cluster.refuse(RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.SYSTEM_ERROR, "not ready")
        await consumer.subscribe("T", sql("a > 5"))
        cluster.heal(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        await cluster.until(lambda: told(cluster, "T") == "a > 5")


async def test_the_filter_of_a_missing_topic_is_not_checked(cluster: FakeCluster) -> None:
    async with PullConsumer("g", cluster.address) as consumer:
        await consumer.subscribe("Later", sql("a > 5"))
        assert cluster.seen(CHECK) == []


async def test_stop_ends_the_filter_checks(cluster: FakeCluster) -> None:
    consumer = consumer_of(cluster)
    consumer.subscribe("T", handler=Inbox())
    async with consumer:
        cluster.hang(CHECK)
        consumer.subscribe("U", sql("a > 5"), Inbox())
        await cluster.until_seen(CHECK)
    assert consumer.session._tasks == set()


async def test_a_pull_consumer_is_refused_at_its_start_and_after_it(cluster: FakeCluster) -> None:
    cluster.refuse(CHECK, NONSENSE, "the expression is nonsense", times=2)
    consumer = PullConsumer("g", cluster.address)
    consumer.subscribe("T", sql("a >"))
    with pytest.raises(ExpressionRefusedError, match="nonsense"):
        await consumer.start()
    consumer.subscribe("T", "A")
    async with consumer:
        with pytest.raises(ExpressionRefusedError, match="nonsense"):
            await consumer.subscribe("T", sql("a >"))
        await consumer.session.heartbeats.send()
        assert told(cluster, "T") == "A"
        await consumer.subscribe("T", sql("a > 5"))
        await cluster.until(lambda: told(cluster, "T") == "a > 5")


async def test_a_blocking_subscribe_raises_the_refusal(cluster: FakeCluster) -> None:
    def script() -> None:
        with blocking.Consumer("g", cluster.address) as consumer:
            with pytest.raises(ExpressionRefusedError, match="nonsense"):
                consumer.subscribe("T", sql("a >"), print)
            with pytest.raises(ExpressionRefusedError, match="nonsense"):
                consumer.on("T", sql("a >"))(print)
            consumer.on("T", "A")(print)
        with blocking.PullConsumer("g", cluster.address) as puller, pytest.raises(ExpressionRefusedError):
            puller.subscribe("T", sql("a >"))

    cluster.refuse(CHECK, NONSENSE, "the expression is nonsense")
    await asyncio.wait_for(asyncio.to_thread(script), 10.0)


async def test_our_broker_refuses_sql_filters_that_are_turned_off() -> None:
    async with (
        own_cluster(property_filter_enabled=False) as real,
        Producer("p", real.name_server_address) as producer,
        PullConsumer("g", real.name_server_address) as consumer,
    ):
        await producer.send(Message("T", b"one"))
        with pytest.raises(ServerFailedError, match="SQL92"):
            await consumer.subscribe("T", sql("amount > 100"))


async def test_our_broker_refuses_invalid_sql_filters_and_evaluates_valid_ones() -> None:
    inbox = Inbox()
    async with (
        own_cluster() as real,
        Producer("p", real.name_server_address) as producer,
        Consumer("g", real.name_server_address, start=StartPosition.FIRST, intervals=HURRIED) as consumer,
    ):
        await producer.send(Message("T", b"cheap", properties={"amount": "5"}))
        with pytest.raises(ExpressionRefusedError):
            await consumer.subscribe("T", sql("amount >"), inbox)
        await consumer.subscribe("T", sql("amount > 100"), inbox)
        await producer.send(Message("T", b"dear", properties={"amount": "500"}))
        assert await inbox.until(1) == [b"dear"]
    assert all(isinstance(message, StoredMessage) for message in inbox.messages)
