import json

import pytest

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.consumers import decode_offset_reset
from skyroute.wire.calls.groups import (
    QueueProgress,
    decode_consume_stats,
    decode_reset_offsets,
    encode_consume_stats_query,
    encode_reset_order,
)
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request
from skyroute.wire.queue_maps import quote_object_keys
from tests.unit.broker.clients import a_beat, a_consumer, a_peer
from tests.unit.broker.state import BROKER, State, settings

ORDERS = [QueueRef("Orders", BROKER, queue_id) for queue_id in range(2)]
END = -1


@pytest.fixture(autouse=True)
def orders(state: State) -> None:
    """Ten messages, one a second, in one queue of two."""
    state.topics.put(TopicConfig("Orders", 2, 2))
    state.groups.find("g")
    state.write("Orders", count=10)


def began_ms(state: State) -> int:
    return state.store.earliest_ms("Orders", 0) or 0


# ------------------------------------------------------------------------------------------------------------- seeing


async def test_the_consume_status_of_a_group_is_returned(state: State) -> None:
    state.offsets.commit("g", "Orders", 0, 4)
    state.offsets.note_pull("g", "Orders", 0, 6)
    response = await state.ask(state.on_consume_status.group_status, encode_consume_stats_query("g"))
    stats = decode_consume_stats(response.body)
    assert stats.queues == {
        ORDERS[0]: QueueProgress(10, 4, 6, began_ms(state) + 3000),
        ORDERS[1]: QueueProgress(0, 0, 0, 0),
    }
    assert response.body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,')


async def test_the_status_of_a_named_topic_is_returned_even_without_offsets(state: State) -> None:
    response = await state.ask(state.on_consume_status.group_status, encode_consume_stats_query("g", "Orders"))
    assert decode_consume_stats(response.body).queues[ORDERS[0]] == QueueProgress(10, 0, 0, 0)
    response = await state.ask(state.on_consume_status.group_status, encode_consume_stats_query("g", "Unknown"))
    assert decode_consume_stats(response.body).queues == {}


async def test_unsubscribed_topics_are_left_out_unless_they_are_listed(state: State) -> None:
    state.offsets.commit("g", "Orders", 0, 4)
    state.clients.beat(state.peer, a_beat("c", a_consumer("g", "Other")), "JAVA", 479, 0)
    response = await state.ask(state.on_consume_status.group_status, encode_consume_stats_query("g"))
    assert decode_consume_stats(response.body).queues == {}
    listed = Request(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g", "topicList": "Orders;Unknown;"})
    response = await state.ask(state.on_consume_status.group_status, listed)
    assert decode_consume_stats(response.body).queues.keys() == set(ORDERS)


@pytest.mark.parametrize(("is_order", "lag"), [("false", 6 + 10), ("true", 0)])
async def test_the_consume_status_of_all_groups_is_returned(state: State, is_order: str, lag: int) -> None:
    state.groups.find("h")
    state.offsets.commit("g", "Orders", 0, 4)
    state.offsets.note_pull("g", "Orders", 0, 5)
    state.offsets.commit("h", "Orders", 0, 0)
    response = await state.ask(
        state.on_consume_status.broker_status, Request(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": is_order})
    )
    told = json.loads(quote_object_keys(response.body))
    assert (told["brokerAddr"], told["totalDiff"]) == ("127.0.0.1:10911", lag)
    assert told["totalInflightDiff"] == (1 if lag else 0)
    assert {name for entry in told["consumeStatsList"] for name in entry} == set(state.groups.all())


async def test_the_consume_time_spans_of_a_topic_are_returned(state: State) -> None:
    state.offsets.commit("g", "Orders", 0, 4)
    request = Request(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "Orders", "group": "g"})
    response = await state.ask(state.on_consume_status.time_spans, request)
    first, second = json.loads(response.body)["consumeTimeSpanSet"]
    start = began_ms(state)
    assert first == {
        "messageQueue": {"brokerName": BROKER, "queueId": 0, "topic": "Orders"},
        "minTimeStamp": start,
        "maxTimeStamp": start + 9000,
        "consumeTimeStamp": start + 3000,
        "delayTime": 6000,
    }
    assert (second["minTimeStamp"], second["maxTimeStamp"], second["delayTime"]) == (-1, -1, 0)
    missing = Request(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "Unknown", "group": "g"})
    assert (await state.ask(state.on_consume_status.time_spans, missing)).code == ResponseCode.TOPIC_NOT_EXIST


# ------------------------------------------------------------------------------------------------------------- moving


async def test_a_reset_to_a_time_sets_all_queues(state: State) -> None:
    order = encode_reset_order("Orders", "g", began_ms(state) + 2500)
    response = await state.ask(state.on_consume_status.reset, order)
    assert decode_reset_offsets(response.body) == {ORDERS[0]: 3, ORDERS[1]: 0}
    assert state.offsets.take_reset("g", "Orders", 0) == 3
    assert "Orders@g" in (state.folder / "config/consumerOffset.json").read_text()


async def test_a_reset_to_the_end_sets_the_max_offset(state: State) -> None:
    response = await state.ask(state.on_consume_status.reset, encode_reset_order("Orders", "g", END))
    assert decode_reset_offsets(response.body) == {ORDERS[0]: 10, ORDERS[1]: 0}


async def test_a_reset_to_an_offset_sets_one_queue(state: State) -> None:
    response = await state.ask(
        state.on_consume_status.reset, encode_reset_order("Orders", "g", END, queue_id=0, offset=7)
    )
    assert decode_reset_offsets(response.body) == {ORDERS[0]: 7}
    assert state.offsets.get("g", "Orders", 1) is None
    response = await state.ask(
        state.on_consume_status.reset, encode_reset_order("Orders", "g", END, queue_id=0, offset=99)
    )
    assert (response.code, response.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "Target offset 99 not in consume queue range [0-10]",
    )


@pytest.mark.parametrize(
    ("topic", "group", "code", "remark"),
    [
        ("Unknown", "g", ResponseCode.TOPIC_NOT_EXIST, "Topic Unknown does not exist"),
        ("Orders", "unknown", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group unknown does not exist"),
        ("Closed", "g", ResponseCode.SYSTEM_ERROR, "No queues to reset."),
    ],
)
async def test_a_reset_requires_an_existing_group_and_a_topic_with_queues(
    state: State, topic: str, group: str, code: int, remark: str
) -> None:
    state.topics.put(TopicConfig("Closed", 0, 1))
    response = await state.ask(state.on_consume_status.reset, encode_reset_order(topic, group, END))
    assert (response.code, response.remark) == (code, remark)


async def test_a_reset_of_an_impossible_queue_is_refused(state: State) -> None:
    order = encode_reset_order("Orders", "g", END, queue_id=1 << 30)
    assert (await state.ask(state.on_consume_status.reset, order)).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("queue_id", [0, 1])
@pytest.mark.parametrize("offset", [-3, 0, 1, 2, 10, 11, 12])
async def test_a_reset_accepts_offsets_up_to_one_after_the_end(state: State, queue_id: int, offset: int) -> None:
    order = encode_reset_order("Orders", "g", END, queue_id=queue_id, offset=offset)
    end = 10 if queue_id == 0 else 0
    assert ((await state.ask(state.on_consume_status.reset, order)).code == ResponseCode.SUCCESS) == (
        0 <= offset <= end + 1
    )


# ------------------------------------------------------------------------------------------------------ the old way


@pytest.fixture
def old(state: State) -> State:
    state.config = settings(server_side_offset_reset=False)
    return state


async def test_without_server_side_reset_members_are_notified_at_once(old: State) -> None:
    peer, line = a_peer(7)
    old.clients.beat(peer, a_beat("c", a_consumer("g", "Orders")), "JAVA", 479, 0)
    for queue_id in range(2):
        old.offsets.commit("g", "Orders", queue_id, 4)
    response = await old.ask(old.on_consume_status.reset, encode_reset_order("Orders", "g", END))
    assert decode_reset_offsets(response.body) == {ORDERS[0]: 10, ORDERS[1]: 0}
    (told,) = line.told
    assert told.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
    assert decode_offset_reset(told).offsets == {ORDERS[0]: 10, ORDERS[1]: 0}
    assert old.offsets.take_reset("g", "Orders", 0) is None


async def test_without_force_no_offset_is_moved_forward(old: State) -> None:
    old.clients.beat(old.peer, a_beat("c", a_consumer("g", "Orders")), "JAVA", 479, 0)
    for queue_id in range(2):
        old.offsets.commit("g", "Orders", queue_id, 4)
    response = await old.ask(old.on_consume_status.reset, encode_reset_order("Orders", "g", END, force=False))
    assert decode_reset_offsets(response.body) == {ORDERS[0]: 4, ORDERS[1]: 0}


async def test_without_server_side_reset_members_must_support_it(old: State) -> None:
    response = await old.ask(old.on_consume_status.reset, encode_reset_order("Orders", "g", END))
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "THe consumer group <g> not exist")
    for queue_id in range(2):
        old.offsets.commit("g", "Orders", queue_id, 4)
    response = await old.ask(old.on_consume_status.reset, encode_reset_order("Orders", "g", END))
    assert response.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert "Consumer not online" in (response.remark or "")
    old.clients.beat(old.peer, a_beat("c", a_consumer("g", "Orders")), "JAVA", 20, 0)
    response = await old.ask(old.on_consume_status.reset, encode_reset_order("Orders", "g", END))
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert "the client does not support this feature" in (response.remark or "")
    response = await old.ask(old.on_consume_status.reset, encode_reset_order("Unknown", "g", END))
    assert response.code == ResponseCode.TOPIC_NOT_EXIST
