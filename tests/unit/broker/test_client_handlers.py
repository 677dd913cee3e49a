import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import pytest

from skyroute.broker.clients.change_notifications import ChangeNotifications
from skyroute.broker.clients.queue_locks import QueueLocks
from skyroute.broker.handlers.clients import HEARTBEAT_BYTES_MAX, ClientHandlers
from skyroute.broker.handlers.stepwise_responses import STEP_PARTS
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.dispatch import Answer, Dispatcher, Handler, OrderedResponse, Peer
from skyroute.wire.calls.clients import (
    PART_GROUPS,
    ConsumerData,
    ConsumeType,
    MessageModel,
    StartFrom,
    Subscription,
    decode_locked,
    decode_members,
    encode_client_check,
    encode_heartbeat,
    encode_lock,
    encode_member_query,
    encode_unlock,
    encode_unregistration,
)
from skyroute.wire.calls.groups import (
    Connection,
    GroupConfig,
    decode_consumer_connections,
    decode_producer_connections,
    encode_consumer_connections_query,
    encode_producer_connections_query,
)
from skyroute.wire.calls.topics import REQUEST_BYTES_MAX, TopicConfig
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import BodyError
from tests.unit.broker.clients import a_consumer, a_peer
from tests.unit.broker.state import State, whole

QUEUE = QueueRef("T", "broker-a", 0)
RETRY = "%RETRY%g"
GREETING = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}


@dataclass
class Room:
    state: State

    def __post_init__(self) -> None:
        state = self.state
        self.locks = QueueLocks()
        self.waiting: list[Callable[[], None]] = []
        notifications = ChangeNotifications(
            state.clients, state.groups, state.config, lambda _, then: self.waiting.append(then)
        )
        self.on = ClientHandlers(
            state.clients,
            self.locks,
            state.topics,
            state.groups,
            notifications,
            state.announce,
            state.config,
            state.clock,
            state.step_runner,
            state.step_runner,
        )
        self.peer, self.line = a_peer(1)

    def let_the_gap_pass(self) -> None:
        waiting, self.waiting[:] = list(self.waiting), []
        for then in waiting:
            then()

    def answer(self, handler: Handler, request: Request, peer: Peer | None = None) -> Answer:
        return Dispatcher({request.code: handler}).answer(request, peer or self.peer)

    def ask(self, handler: Handler, request: Request, peer: Peer | None = None) -> Response:
        """Handle a request whose response is immediate."""
        answer = self.answer(handler, request, peer)
        assert isinstance(answer, Response)
        return answer

    async def beat(self, *consumers: ConsumerData, producers: tuple[str, ...] = (), client_id: str = "c") -> Response:
        request = encode_heartbeat(client_id, producers, consumers)
        request.language, request.version = "GO", 317
        answer = self.answer(self.on.heartbeat, request)
        if isinstance(answer, Response):
            return answer
        assert asyncio.iscoroutine(answer)
        response: Response = await answer
        return response


@pytest.fixture
def room(state: State) -> Room:
    return Room(state)


# ------------------------------------------------------------------------------------------------------ heartbeats


async def test_the_first_heartbeat_of_a_group_announces_its_retry_topic_before_the_response(room: Room) -> None:
    room.state.topics.put(TopicConfig("T", 4, 4))
    response = await room.beat(a_consumer("g", "T"))
    assert (response.code, response.fields) == (ResponseCode.SUCCESS, GREETING)
    assert response.version >= 232  # or Java's clients would not pull by SQL
    assert room.state.announced == [TopicConfig(RETRY, 1, 1)]
    assert RETRY in (room.state.folder / "config" / "topics.json").read_text()


async def test_a_heartbeat_without_changes_gets_its_response_at_once(room: Room) -> None:
    await room.beat(a_consumer("g", "T"))
    answer = room.answer(room.on.heartbeat, encode_heartbeat("c", ["p"], [a_consumer("g", "T")]))
    assert isinstance(answer, Response)
    assert len(room.state.announced) == 1


async def test_the_retry_topic_follows_the_group_and_its_topics(room: Room) -> None:
    room.state.groups.put(GroupConfig("g", retry_queues=3))
    room.state.topics.put(TopicConfig("Ordered", ordered=True))
    consumer = msgspec.structs.replace(a_consumer("g", "Missing", "Ordered"), unit_mode=True)
    await room.beat(consumer)
    assert room.state.announced == [TopicConfig(RETRY, 3, 3, sys_flag=2, ordered=True)]


async def test_a_group_without_retry_queues_gets_no_retry_topic(room: Room) -> None:
    room.state.groups.put(GroupConfig("g", retry_queues=0))
    await room.beat(a_consumer("g", "T"))
    assert room.state.announced == []


async def test_a_group_that_may_not_be_created_is_ignored(room: Room) -> None:
    room.state.config.auto_create_groups = False
    room.state.groups.put(GroupConfig("known"))
    response = await room.beat(a_consumer("g", "T"), a_consumer("known", "T"), producers=("p",))
    assert response.code == ResponseCode.SUCCESS
    assert room.state.clients.consumers("g") is None
    assert room.state.clients.consumers("known") is not None
    assert room.state.clients.producers("p")


async def test_pull_consumers_can_be_rejected(room: Room) -> None:
    room.state.config.reject_pull_consumers = True
    puller = msgspec.structs.replace(a_consumer("g", "T"), consume_type=ConsumeType.PULL)
    await room.beat(puller, a_consumer("h", "T"))
    assert room.state.clients.consumers("g") is None
    assert room.state.clients.consumers("h") is not None


async def test_members_are_notified_of_a_new_member(room: Room) -> None:
    await room.beat(a_consumer("g", "T"))
    assert [(request.code, request.fields) for request in room.line.told] == [(40, {"consumerGroup": "g"})]


def test_a_heartbeat_that_is_too_long_is_refused(room: Room) -> None:
    response = room.ask(room.on.heartbeat, Request(34, body=b" " * (HEARTBEAT_BYTES_MAX + 1)))
    assert response.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"clientID":""}'])
def test_a_heartbeat_that_cannot_be_read_is_refused(room: Room, body: bytes) -> None:
    assert room.ask(room.on.heartbeat, Request(34, body=body)).code == ResponseCode.SYSTEM_ERROR


async def test_an_unregistered_client_leaves_and_the_others_are_notified(room: Room) -> None:
    await room.beat(a_consumer("g", "T"), producers=("p",))
    other, line = a_peer(2)
    room.ask(room.on.heartbeat, encode_heartbeat("d", [], [a_consumer("g", "T")]), other)
    room.let_the_gap_pass()
    room.let_the_gap_pass()
    told = len(line.told)
    assert room.ask(room.on.unregister, encode_unregistration("c", producer_group="p")).code == ResponseCode.SUCCESS
    assert room.ask(room.on.unregister, encode_unregistration("c", consumer_group="g")).code == ResponseCode.SUCCESS
    assert room.state.clients.producers("p") == ()
    assert len(line.told) == told + 1


# ---------------------------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize(
    ("subscription", "allowed", "code"),
    [
        (Subscription("T", "A || B"), True, ResponseCode.SUCCESS),
        (Subscription("T", "A || B"), False, ResponseCode.SUCCESS),
        (Subscription("T", "a > 5", "SQL92"), True, ResponseCode.SUCCESS),
        (Subscription("T", "a > 5", "SQL92"), False, ResponseCode.SYSTEM_ERROR),
        (Subscription("T", "a >", "SQL92"), True, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        (Subscription("T", "a", "MAGIC"), True, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ],
)
def test_a_client_can_check_its_filter(
    room: Room, subscription: Subscription, allowed: bool, code: ResponseCode
) -> None:
    room.state.config.property_filter_enabled = allowed
    assert room.ask(room.on.check_client, encode_client_check("c", "g", subscription)).code == code


def test_a_client_check_without_a_subscription_succeeds(room: Room) -> None:
    request = Request(46, body=b'{"clientId":"c","group":"g"}')
    assert room.ask(room.on.check_client, request).code == ResponseCode.SUCCESS


# ----------------------------------------------------------------------------------------------------------- locks


def test_queues_are_locked_and_unlocked(room: Room) -> None:
    def lock(client_id: str) -> frozenset[QueueRef]:
        return decode_locked(room.ask(room.on.lock, encode_lock(client_id, "g", [QUEUE])).body)

    assert lock("one") == {QUEUE}
    assert lock("two") == frozenset()
    assert room.ask(room.on.unlock, encode_unlock("one", "g", [QUEUE])).code == ResponseCode.SUCCESS
    assert lock("two") == {QUEUE}
    room.state.clock.advance(61)
    assert lock("one") == {QUEUE}


# ------------------------------------------------------------------------------------------------------- questions


async def test_the_client_ids_of_a_group_are_returned(room: Room) -> None:
    await room.beat(a_consumer("g", "T"), client_id="one")
    room.ask(room.on.heartbeat, encode_heartbeat("two", [], [a_consumer("g", "T")]), a_peer(2)[0])
    assert decode_members(room.ask(room.on.client_ids, encode_member_query("g")).body) == ["one", "two"]
    response = room.ask(room.on.client_ids, encode_member_query("h"))
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "no consumer for this group, h")


async def test_consumer_connections_are_returned(room: Room) -> None:
    tags = Subscription("T", "A || B", "TAG", 7, ("A", "B"), (65, 66))
    consumer = ConsumerData("g", ConsumeType.PULL, MessageModel.BROADCASTING, StartFrom.TIMESTAMP, (tags,))
    await room.beat(consumer)
    response = room.ask(room.on.consumer_connections, encode_consumer_connections_query("g"))
    told = decode_consumer_connections(response.body)
    assert told.connections == (Connection("c", "10.0.0.1:40001", "GO", 317),)
    assert (told.consume_type, told.model, told.start_from) == (
        "CONSUME_ACTIVELY",
        "BROADCASTING",
        "CONSUME_FROM_TIMESTAMP",
    )
    assert (told.subscriptions["T"].expression, told.subscriptions["T"].tags) == ("A || B", ("A", "B"))
    assert json.loads(response.body)["subscriptionTable"]["T"]["codeSet"] == [65, 66]
    offline = room.ask(room.on.consumer_connections, encode_consumer_connections_query("h"))
    assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE


async def test_producer_connections_are_returned(room: Room) -> None:
    await room.beat(producers=("p",))
    response = room.ask(room.on.producer_connections, encode_producer_connections_query("p"))
    assert decode_producer_connections(response.body) == (Connection("c", "10.0.0.1:40001", "GO", 317),)
    missing = room.ask(room.on.producer_connections, encode_producer_connections_query("q"))
    assert (missing.code, missing.remark) == (ResponseCode.SYSTEM_ERROR, "the producer group[q] not exist")


async def test_all_producers_are_returned_with_their_last_heartbeat(room: Room) -> None:
    await room.beat(producers=("p", "q"))
    heard_at_ms = room.state.now_ms()
    room.state.clock.advance(5)
    told = json.loads(room.ask(room.on.all_producers, Request(328)).body)
    entry = {
        "clientId": "c",
        "language": "GO",
        "lastUpdateTimestamp": heard_at_ms,
        "remoteIP": "/10.0.0.1:40001",
        "version": 317,
    }
    assert told == {"data": {"p": [entry], "q": [entry]}}


async def test_the_subscription_of_a_group_is_returned(room: Room) -> None:
    await room.beat(a_consumer("g", "T"))
    told = json.loads(room.ask(room.on.subscription, Request(345, {"group": "g", "topic": "T"})).body)
    assert (told["group"], told["topic"], told["subscriptionData"]["subString"]) == ("g", "T", "*")
    told = json.loads(room.ask(room.on.subscription, Request(345, {"group": "g", "topic": "U"})).body)
    assert told == {"group": "g", "topic": "U"}
    assert json.loads(room.ask(room.on.subscription, Request(345, {"group": "h"})).body) == {"group": "h"}


@pytest.mark.parametrize("name", ["client_ids", "consumer_connections", "producer_connections", "subscription"])
def test_a_request_without_a_group_is_refused(room: Room, name: str) -> None:
    assert room.ask(getattr(room.on, name), Request(1)).code == ResponseCode.SYSTEM_ERROR


# ------------------------------------------------------------------------------------------------------------ in steps


async def finish(room: Room, handler: Handler, request: Request) -> Response:
    answer = room.answer(handler, request)
    assert isinstance(answer, OrderedResponse)
    return whole(await answer.work)


async def test_a_heartbeat_of_many_groups_is_processed_in_steps(room: Room) -> None:
    names = [f"group-{number}" for number in range(20 * PART_GROUPS)]
    request = encode_heartbeat("c", [f"p-{name}" for name in names], [a_consumer(name) for name in names])
    counts: list[int] = []
    room.state.step_runner.on_step = lambda: counts.append(len(room.state.clients.consumer_groups))
    assert (await finish(room, room.on.heartbeat, request)).code == ResponseCode.SUCCESS
    assert len(room.state.clients.consumer_groups) == len(room.state.clients.producer_groups) == len(names)
    assert max(after - before for before, after in pairwise(counts)) <= PART_GROUPS
    assert room.state.topics.get("%RETRY%group-7") in room.state.announced


async def test_a_heartbeat_of_many_topics_is_processed_in_steps(room: Room) -> None:
    topics = [f"topic-{number}" for number in range(1000)]
    consumers = [a_consumer(f"g{number}", *topics) for number in range(6)]
    assert (await finish(room, room.on.heartbeat, encode_heartbeat("c", [], consumers))).code == ResponseCode.SUCCESS
    assert room.state.step_runner.steps >= 5
    assert all(len(group.subscriptions) == 1000 for group in room.state.clients.consumer_groups.values())


async def test_many_queues_are_locked_and_unlocked_in_steps(room: Room) -> None:
    queues = [QueueRef("T", "broker-a", queue_id) for queue_id in range(10 * STEP_PARTS)]
    counts: list[int] = []
    room.state.step_runner.on_step = lambda: counts.append(len(room.locks))
    answer = await finish(room, room.on.lock, encode_lock("c", "g", queues))
    assert decode_locked(answer.body) == frozenset(queues)
    assert max(after - before for before, after in pairwise(counts)) <= STEP_PARTS
    assert (await finish(room, room.on.unlock, encode_unlock("c", "g", queues))).code == ResponseCode.SUCCESS
    assert len(room.locks) == 0


async def test_nothing_is_locked_if_one_queue_has_no_name(room: Room) -> None:
    queues = [QueueRef("T", "broker-a", queue_id) for queue_id in range(3 * STEP_PARTS)]
    request = encode_lock("c", "g", [*queues, QueueRef("", "broker-a", 1)])
    with pytest.raises(BodyError):
        await finish(room, room.on.lock, request)
    assert len(room.locks) == 0


@pytest.mark.parametrize("body", [b" " * (REQUEST_BYTES_MAX + 1), b'{"a":[' + b"{a:1}," * 3000 + b"{]"])
def test_a_long_body_must_be_standard_json(room: Room, body: bytes) -> None:
    with pytest.raises(BodyError, match=r"at most|malformed"):
        room.on.lock(Request(RequestCode.LOCK_BATCH_MQ, body=body), room.peer)
