"""Requests about one queue, against fake brokers on real sockets."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from skyroute.client.consuming import queue_calls as calls
from skyroute.client.consuming.subscription import StartPosition
from skyroute.client.errors import NoBrokerError, NoPermissionError, NoRouteError
from skyroute.client.session.session import Session
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.errors import CallTimeoutError
from skyroute.routing.topology import BrokerGroup, TopicRoute
from skyroute.wire.calls.pull import PullQuestion, PullStatus
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.fake_broker import FIRST_STORED_AT_MS, FakeCluster, Reply, fake_cluster

QUEUE = QueueRef("T", "broker-a", 0)
RETRY_QUEUE = QueueRef("%RETRY%g", "broker-a", 0)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 1, "%RETRY%g": 1}, brokers=["broker-a", "broker-b"]) as cluster:
        yield cluster


@pytest.fixture
async def session(cluster: FakeCluster) -> AsyncIterator[Session]:
    async with Session(cluster.address) as session:
        yield session


def question(offset: int = 0, commit_offset: int | None = None) -> PullQuestion:
    return PullQuestion("g", "T", 0, offset, 32, commit_offset, expression="*", broker_name="broker-a")


async def test_a_pull_returns_records_or_an_empty_status(cluster: FakeCluster, session: Session) -> None:
    cluster.put(QUEUE, b"one")
    found = await calls.pull(session, question())
    assert (found.status, found.next_offset, found.max_offset) == (PullStatus.FOUND, 1, 1)
    assert found.body == cluster.stored(QUEUE)[0].data
    assert (await calls.pull(session, question(1))).status is PullStatus.NO_NEW_MESSAGE
    moved = await calls.pull(session, question(5))
    assert (moved.status, moved.next_offset) == (PullStatus.OFFSET_ILLEGAL, 1)


async def test_a_refused_pull_raises(cluster: FakeCluster, session: Session) -> None:
    cluster.refuse(RequestCode.PULL_MESSAGE, ResponseCode.NO_PERMISSION, "not you")
    with pytest.raises(NoPermissionError, match="not you"):
        await calls.pull(session, question())


async def test_a_pull_without_a_response_times_out(cluster: FakeCluster, session: Session) -> None:
    cluster.hang(RequestCode.PULL_MESSAGE)
    with pytest.raises(CallTimeoutError):
        await calls.pull(session, question(), timeout_s=0.01)


async def test_only_pulls_from_a_master_commit_an_offset(cluster: FakeCluster, session: Session) -> None:
    slave = BrokerGroup("broker-a", "c", {1: cluster.broker("broker-a").address})
    session.routes.store("T", TopicRoute((slave,), ()))
    await calls.pull(session, question(commit_offset=0), broker_id=1)
    master = BrokerGroup("broker-a", "c", {0: cluster.broker("broker-a").address})
    session.routes.store("T", TopicRoute((master,), ()))
    await calls.pull(session, question(commit_offset=0))
    assert [int(pull.fields["sysFlag"]) & 1 for pull in cluster.seen(RequestCode.PULL_MESSAGE)] == [0, 1]


async def test_ends_and_times_of_a_queue(cluster: FakeCluster, session: Session) -> None:
    assert await calls.earliest_time_ms(session, QUEUE) == -1
    for _ in range(3):
        cluster.put(QUEUE, b"x")
    cluster.drop_before(QUEUE, 1)
    assert await calls.min_offset(session, QUEUE) == 1
    assert await calls.max_offset(session, QUEUE) == 3
    assert await calls.earliest_time_ms(session, QUEUE) == FIRST_STORED_AT_MS + 1
    assert await calls.offset_at(session, QUEUE, FIRST_STORED_AT_MS + 2) == 2
    await calls.offset_at(session, QUEUE, FIRST_STORED_AT_MS + 2, upper=True)
    assert [search.fields["boundaryType"] for search in cluster.seen(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)] == [
        "LOWER",
        "UPPER",
    ]


async def test_a_committed_offset_is_kept(cluster: FakeCluster, session: Session) -> None:
    assert await calls.committed_offset(session, "g", QUEUE) is None
    await calls.commit_offset(session, "g", QUEUE, 3, wait=True)
    assert await calls.committed_offset(session, "g", QUEUE) == 3
    await calls.commit_offset(session, "g", QUEUE, 2)
    await cluster.until(lambda: cluster.offsets["g", QUEUE] == 2)
    assert [commit.is_one_way for commit in cluster.seen(RequestCode.UPDATE_CONSUMER_OFFSET)] == [False, True]


@pytest.mark.parametrize(
    ("start", "normal", "retried"),
    [
        (StartPosition.FIRST, 0, 0),
        (StartPosition.LAST, 2, 0),
        (StartPosition.at(datetime.fromtimestamp((FIRST_STORED_AT_MS + 1) / 1000, UTC)), 1, 2),
    ],
)
async def test_where_a_group_begins(
    cluster: FakeCluster, session: Session, start: StartPosition, normal: int, retried: int
) -> None:
    for queue in (QUEUE, QUEUE, RETRY_QUEUE, RETRY_QUEUE):
        cluster.put(queue, b"x")
    assert await calls.start_offset(session, QUEUE, start) == normal
    assert await calls.start_offset(session, RETRY_QUEUE, start) == retried


async def test_members_are_known_by_any_broker_and_a_failing_one_is_passed_over(
    cluster: FakeCluster, session: Session
) -> None:
    known = Reply(body=b'{"consumerIdList":["b","a"]}')
    cluster.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, lambda _command, _peer: known, broker="broker-b")
    while not cluster.seen(RequestCode.GET_CONSUMER_LIST_BY_GROUP, "broker-a"):  # whom it asks first is chance
        assert await calls.members(session, "g", "T") == ["b", "a"]
    cluster.refuse(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ResponseCode.NO_PERMISSION, "not you")
    with pytest.raises(NoPermissionError):
        await calls.members(session, "g", "T")


async def test_the_route_of_an_unknown_broker_is_refreshed_once(cluster: FakeCluster, session: Session) -> None:
    with pytest.raises(NoBrokerError, match="broker-z"):
        await calls.max_offset(session, QueueRef("T", "broker-z", 0))
    assert len(cluster.seen(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1
    with pytest.raises(NoRouteError):
        await calls.max_offset(session, QueueRef("Nowhere", "broker-z", 0))
