"""POP: receipts, acknowledgements, redelivery, long polling, filters and resets."""

import base64
import json

import pytest

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.groups import PopProgress, decode_consume_stats
from skyroute.wire.calls.settings import decode_broker_stats
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import send
from tests.network.broker.clusters import Cluster
from tests.network.broker.pops import Got, ack, got, later, pop, popped
from tests.support.connections import AsyncConnection
from tests.support.waiting import eventually

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    await cluster.add_topic("T", 2)
    await eventually(lambda: not cluster.broker.components.revive_log.is_loading)
    return cluster


async def fill(line: AsyncConnection, count: int, *, topic: str = "T", queue_id: int = 0, **properties: str) -> None:
    for at in range(count):
        answer = await line.call(send(topic, f"{queue_id}:{at}".encode(), queue_id=queue_id, properties=properties))
        assert answer.code == ResponseCode.SUCCESS


def committed(cluster: Cluster, queue_id: int = 0, topic: str = "T") -> int | None:
    return cluster.broker.components.offsets.get("g", topic, queue_id)


def log_end(cluster: Cluster) -> int:
    return cluster.broker.components.store.max_position


async def test_popped_messages_are_acknowledged_and_write_nothing(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 3)
    await fill(line, 2, queue_id=1)
    end = log_end(cluster)
    messages = await popped(line)
    assert sorted(message.body for message in messages) == [b"0:0", b"0:1", b"0:2", b"1:0", b"1:1"]
    assert committed(cluster) == 0
    assert cluster.broker.components.in_flight.message_count == 5
    assert await popped(line) == []
    await ack(line, *messages)
    assert (committed(cluster), committed(cluster, 1)) == (3, 2)
    assert len(cluster.broker.components.in_flight) == 0
    later(cluster, 100)
    assert log_end(cluster) == end


async def test_a_message_comes_again_after_its_invisible_time(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 2, KEYS="k")
    first, second = await popped(line)
    await ack(line, second)
    popped_at = first.receipt.split(" ")[1]
    later(cluster, 59)
    assert await popped(line) == []
    later(cluster, 1)
    (again,) = await popped(line)
    assert (again.body, again.message.topic, again.message.reconsume_times) == (first.body, "T", 1)
    properties = again.message.properties
    assert (properties["1ST_POP_TIME"], properties["ORIGIN_GROUP"], properties["KEYS"]) == (popped_at, "g", "k")
    assert again.receipt.split(" ")[4] == "1"
    await cluster.broker.components.revival.announce_changed()
    assert cluster.has_route("%RETRY%g_T")
    later(cluster, 60)
    (third,) = await popped(line)
    assert (third.message.reconsume_times, third.message.properties["1ST_POP_TIME"]) == (2, popped_at)
    await ack(line, third)
    later(cluster, 100)
    assert await popped(line) == []


async def test_check_points_of_slow_consumers_are_written_in_apaches_format(
    cluster: Cluster, line: AsyncConnection
) -> None:
    await fill(line, 3)
    messages = await popped(line)
    await ack(line, messages[0])
    assert committed(cluster) == 0
    later(cluster, 4)
    assert committed(cluster) == 3
    await ack(line, messages[1])
    later(cluster, 60)
    records = [json.loads(body) for queue in range(8) for body in cluster.stored(REVIVE_TOPIC, queue)]
    popped_at = int(messages[0].receipt.split(" ")[1])
    assert records[0] == {
        **{"bm": 0, "bn": "broker-a", "c": "g", "d": [1, 2], "it": 60000, "n": 2, "pt": popped_at, "q": 0},
        **{"reviveTime": popped_at + 60000, "ro": 0, "so": 0, "sp": False, "t": "T"},
    }
    assert records[1] == {"ao": 1, "bn": "broker-a", "c": "g", "pt": popped_at, "q": 0, "so": 0, "t": "T"}
    (again,) = await popped(line)
    assert again.body == messages[2].body


async def test_messages_in_flight_survive_a_kill(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 40)
    old, young = await popped(line), []
    await ack(line, *old[:10])
    later(cluster, 4)
    await ack(line, *old[10:20])
    young = await popped(line)
    assert len(young) == 8
    await cluster.broker.components.offsets.table_file.save()
    await cluster.kill()
    await cluster.start()
    await eventually(lambda: not cluster.broker.components.revive_log.is_loading)
    line = await cluster.line()
    at_once = await popped(line)
    assert [message.body for message in at_once] == [message.body for message in young]
    await ack(line, *at_once)
    later(cluster, 70)
    again = await popped(line)
    assert sorted(message.body for message in again) == sorted(message.body for message in old[20:])
    assert {message.message.reconsume_times for message in again} == {1}


async def killed(cluster: Cluster) -> AsyncConnection:
    """Kill the broker, start it again, and return a connection to it."""
    await cluster.kill()
    await cluster.start()
    await eventually(lambda: not cluster.broker.components.revive_log.is_loading)
    return await cluster.line()


async def all_popped(line: AsyncConnection, expression: str = "*") -> list[bytes]:
    """The bodies of all messages that can be popped now."""
    bodies: list[bytes] = []
    while messages := await popped(line, exp=expression):
        bodies += [message.body for message in messages]
    return sorted(bodies)


@pytest.mark.parametrize("expression", ["*", "a"])
@pytest.mark.parametrize("is_saved", [False, True])
async def test_acknowledged_messages_do_not_come_again_after_a_kill(
    cluster: Cluster, line: AsyncConnection, expression: str, is_saved: bool
) -> None:
    for at in range(40):
        tag = "b" if expression == "a" and at % 3 == 0 else "a"
        assert (await line.call(send("T", f"{at:02}".encode(), queue_id=0, properties={"TAGS": tag}))).code == 0
    first = await popped(line, exp=expression, maxMsgNums=16)
    second = await popped(line, exp=expression)
    changed = await line.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, first[5].fields(invisibleTime=90_000))
    assert changed.code == 0
    await ack(line, *first[6:9], *second[:3])
    if is_saved:
        await cluster.broker.components.save_offsets()
    await ack(line, *first[11:], *second[5:])
    left = sorted(message.body for message in (*first[:6], *first[9:11], *second[3:5]))
    for _ in range(2):  # the second start reads what the first one kept
        line = await killed(cluster)
        assert await all_popped(line, expression) == left
    await cluster.stop()
    assert not list(cluster.folder.rglob("popTaken*"))


async def test_messages_with_a_check_point_come_once_after_a_kill(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 4)
    await popped(line)
    later(cluster, 4)
    line = await killed(cluster)
    assert await all_popped(line) == []
    later(cluster, 70)
    assert await all_popped(line) == [b"0:0", b"0:1", b"0:2", b"0:3"]


async def test_messages_can_be_popped_after_a_reset_and_a_kill(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 4)
    messages = await popped(line)
    await ack(line, *messages[1:])
    cluster.broker.components.offsets.reset("g", "T", 0, 1)
    await cluster.broker.components.offsets.table_file.save()
    line = await killed(cluster)
    assert await all_popped(line) == [b"0:1", b"0:2", b"0:3"]


async def test_messages_in_flight_survive_a_clean_restart(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 4)
    messages = await popped(line)
    await cluster.stop()
    await cluster.start()
    line = await cluster.line()
    await ack(line, messages[0])
    assert await popped(line) == []
    await eventually(lambda: not cluster.broker.components.revive_log.is_loading)
    await ack(line, messages[1])
    later(cluster, 70)
    assert [message.body for message in await popped(line)] == [message.body for message in messages[2:]]


@pytest.mark.parametrize("age_s", [0, 4])
async def test_the_invisible_time_can_be_changed(cluster: Cluster, line: AsyncConnection, age_s: int) -> None:
    await fill(line, 2)
    first, second = await popped(line)
    later(cluster, age_s)
    answer = await line.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, first.fields(invisibleTime=10_000))
    assert (answer.code, answer.fields["invisibleTime"]) == (0, "10000")
    again = await line.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, first.fields(invisibleTime=10_000))
    assert again.code == ResponseCode.NO_MESSAGE
    renewed = (
        f"{first.message.queue_offset} {answer.fields['popTime']} 10000 {answer.fields['reviveQid']} 0 broker-a 0 0"
    )
    longer = await line.call(
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        Got(first.message, renewed, "T").fields(invisibleTime=20_000, suspend="true"),
    )
    assert longer.code == 0
    later(cluster, 19)
    assert await popped(line) == []
    later(cluster, 1.1)
    (back,) = await popped(line)
    assert (back.body, back.message.reconsume_times) == (first.body, 0)  # suspended: the attempt does not count
    await ack(line, second, back)
    later(cluster, 100)
    assert await popped(line) == []
    assert committed(cluster) == 2


async def test_batch_acks_use_bit_sets(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 5)
    messages = await popped(line)
    start, popped_at, invisible, revive, *_ = messages[0].receipt.split(" ")
    bits = base64.b64encode(bytes([0b10111])).decode()
    entry = {"c": "g", "t": "T", "r": "0", "so": int(start), "q": 0, "rq": int(revive), "b": bits}
    body = {"brokerName": "broker-a", "acks": [{**entry, "pt": int(popped_at), "it": int(invisible)}]}
    assert (await line.call(RequestCode.BATCH_ACK_MESSAGE, body=json.dumps(body).encode())).code == 0
    later(cluster, 60)
    assert [message.body for message in await popped(line)] == [b"0:3"]
    empty = await line.call(RequestCode.BATCH_ACK_MESSAGE, body=b'{"acks":[]}')
    assert empty.code == ResponseCode.NO_MESSAGE


async def test_filters_skip_messages_and_keep_their_offsets(cluster: Cluster, line: AsyncConnection) -> None:
    for tag in ("a", "b", "a", "c", "b"):
        await fill(line, 1, TAGS=tag)
    answer = await line.call(pop(exp="b || c"))
    assert answer.fields["msgOffsetInfo"] == "0 0 1,3,4"
    messages = got(answer)
    await ack(line, messages[1])
    later(cluster, 60)
    assert [message.message.properties["TAGS"] for message in await popped(line, exp="b || c")] == ["b", "b"]
    assert (await line.call(pop(expType="SQL92", exp="a >"))).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_a_pop_waits_for_a_message(cluster: Cluster, line: AsyncConnection) -> None:
    waiting, polling = await cluster.line(), cluster.broker.components.pop_polling
    first = await waiting.send(pop(pollTime=15_000))
    second = await waiting.send(pop(pollTime=15_000, queueId=1))
    await eventually(lambda: len(polling) == 2)
    info = {"consumerGroup": "g", "topic": "T", "queueId": "-1"}
    assert (await line.call(RequestCode.POLLING_INFO, info)).fields == {"pollingNum": "1"}
    await fill(line, 1)
    assert [message.body for message in got(await waiting.answer(first))] == [b"0:0"]
    later(cluster, 16)
    assert (await waiting.answer(second)).code == ResponseCode.POLLING_TIMEOUT
    assert len(polling) == 0


async def test_a_redelivered_message_wakes_a_waiting_pop(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 1)
    await popped(line, invisibleTime=5_000)
    waiting = await line.send(pop(pollTime=15_000))
    await eventually(lambda: len(cluster.broker.components.pop_polling) == 1)
    later(cluster, 5)
    (again,) = got(await line.answer(waiting))
    assert again.message.reconsume_times == 1


async def test_a_notification_is_sent_for_a_message(cluster: Cluster, line: AsyncConnection) -> None:
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "-1", "pollTime": "15000", "bornTime": "0"}
    waiting = await line.send(RequestCode.NOTIFICATION, fields)
    await eventually(lambda: len(cluster.broker.components.pop_polling) == 1)
    await fill(await cluster.line(), 1)
    assert (await line.answer(waiting)).fields == {"hasMsg": "true", "pollingFull": "false"}
    await popped(line)
    late = await line.call(RequestCode.NOTIFICATION, {**fields, "pollTime": "0"})
    assert late.fields["hasMsg"] == "false"


async def test_peek_returns_messages_without_popping_them(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 2)
    fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "maxMsgNums": "8"}
    for _ in range(2):
        answer = await line.call(RequestCode.PEEK_MESSAGE, fields)
        assert answer.fields["msgOffsetInfo"] == "0 0 0,1"
    assert len(await popped(line)) == 2


async def test_a_group_starts_where_the_init_mode_says(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 3)
    cluster.broker.components.popping._young_bytes = -1  # as if the first message were not in memory
    last = await popped(line, initMode=1, consumerGroup="new")
    assert [message.body for message in last] == [b"0:2"]
    assert len(await popped(line, initMode=0)) == 3


async def test_an_offset_reset_keeps_messages_in_flight(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 4)
    messages = await popped(line)
    cluster.broker.components.offsets.reset("g", "T", 0, 3)
    (again,) = await popped(line)
    assert again.body == b"0:3"
    assert committed(cluster) == 3
    await ack(line, again, *messages[1:])
    assert committed(cluster) == 4
    later(cluster, 60)
    assert [message.body for message in await popped(line)] == [b"0:0"]


async def test_messages_popped_before_a_reset_are_not_shown_as_in_flight(
    cluster: Cluster, line: AsyncConnection
) -> None:
    await fill(line, 4)
    await popped(line)
    later(cluster, 4)  # the check point is written, and the offset committed
    cluster.broker.components.offsets.reset("g", "T", 0, 1)
    stats = decode_consume_stats((await line.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"})).body)
    progress = stats.queues[QueueRef("T", "broker-a", 0)]
    assert (progress.consumer_offset, progress.pull_offset) == (1, 1)


async def test_redelivered_messages_are_counted_for_the_retry_topic(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 3)
    await popped(line)
    later(cluster, 64)
    assert len(await popped(line)) == 3
    for key in ("T@g", "%RETRY%g_T@g"):
        fields = {"statsName": "GROUP_GET_NUMS", "statsKey": key}
        answer = await line.call(RequestCode.VIEW_BROKER_STATS_DATA, fields)
        assert decode_broker_stats(answer.body).day.sum == 3


@pytest.mark.parametrize(
    ("kind", "expression", "tags"), [("TAG", "", []), ("TAG", "a||b", ["a", "b"]), ("SQL92", "i > 1", [])]
)
async def test_the_subscription_of_a_pop_is_shown_without_heartbeats(
    cluster: Cluster, line: AsyncConnection, kind: str, expression: str, tags: list[str]
) -> None:
    await fill(line, 1)
    query = {"topic": "T", "queueId": "0", "index": "0", "count": "1", "consumerGroup": "g"}
    assert "subscriptionData" not in (await line.call(RequestCode.QUERY_CONSUME_QUEUE, query)).value
    await popped(line, exp="other")
    await popped(line, exp=expression, expType=kind)
    shown = (await line.call(RequestCode.QUERY_CONSUME_QUEUE, query)).value["subscriptionData"]
    assert (shown["topic"], shown["subString"], shown["expressionType"]) == ("T", expression or "*", kind)
    assert sorted(shown["tagsSet"]) == tags
    for retry in ("%RETRY%g_T", "%RETRY%g+T"):
        of_retries = cluster.broker.components.pop_subscriptions.get("g", retry)
        assert of_retries is not None
        assert (of_retries.topic, of_retries.expression, of_retries.tags) == (retry, "*", ())


async def test_messages_of_a_deleted_topic_are_dropped(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 3)
    await popped(line)
    assert (await line.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
    later(cluster, 60)
    assert (len(cluster.broker.components.in_flight), cluster.broker.components.revival.dropped) == (0, 3)


async def test_many_messages_that_expire_at_once_come_back(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 640)
    taken = 0
    while messages := await popped(line):
        taken += len(messages)
    assert taken == 640
    later(cluster, 4)
    later(cluster, 56)
    bodies = []
    while messages := await popped(line):
        bodies += [message.body for message in messages]
        await ack(line, *messages)
    assert sorted(bodies) == sorted(f"0:{at}".encode() for at in range(640))


BAD_RECEIPTS = [
    ({"extraInfo": "nonsense"}, ResponseCode.SYSTEM_ERROR, "receipt"),
    ({"extraInfo": "0 9223372036854775807 9223372036854775807 0 0 broker-a 0 0"}, ResponseCode.SYSTEM_ERROR, "receipt"),
    ({"extraInfo": "0 1 2 3 0 broker-z 0 0"}, ResponseCode.INVALID_PARAMETER, "broker-z"),
    ({"topic": "Gone"}, ResponseCode.TOPIC_NOT_EXIST, "Gone"),
    ({"queueId": "7"}, ResponseCode.MESSAGE_ILLEGAL, "queueId"),
    ({"offset": "99"}, ResponseCode.NO_MESSAGE, "offset"),
    ({"offset": "-1"}, ResponseCode.NO_MESSAGE, "offset"),
]


@pytest.mark.parametrize(("change", "code", "said"), BAD_RECEIPTS)
async def test_bad_receipts_are_refused(
    cluster: Cluster, line: AsyncConnection, change: dict[str, str], code: int, said: str
) -> None:
    await fill(line, 1)
    (message,) = await popped(line)
    for request in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME):
        answer = await line.call(request, {**message.fields(invisibleTime=1000), **change})
        assert answer.code == code, answer
        assert said in (answer.remark or "")
    assert cluster.broker.components.in_flight.message_count == 1


async def test_receipts_that_are_too_late_or_forged_change_nothing(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 1)
    (message,) = await popped(line)
    forged = message.receipt.replace(message.receipt.split(" ")[1], "12345")
    await ack(line, message, extraInfo=forged)
    assert cluster.broker.components.in_flight.message_count == 1
    later(cluster, 60)
    await ack(line, message)
    assert len(await popped(line)) == 1


BAD_POPS = [
    ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
    ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
    ({"invisibleTime": (1 << 63) - 1}, ResponseCode.INVALID_PARAMETER),
    ({"invisibleTime": -1}, ResponseCode.INVALID_PARAMETER),
    ({"topic": "Gone"}, ResponseCode.TOPIC_NOT_EXIST),
    ({"queueId": 1_000_000}, ResponseCode.INVALID_PARAMETER),
    ({"bornTime": 1}, ResponseCode.POLLING_TIMEOUT),
]


@pytest.mark.parametrize(("change", "code"), BAD_POPS)
async def test_bad_pops_are_refused_and_leave_nothing(
    cluster: Cluster, line: AsyncConnection, change: dict[str, object], code: int
) -> None:
    await fill(line, 1)
    assert (await line.call(pop(**change))).code == code  # type: ignore[arg-type]  # wrong values on purpose
    assert cluster.broker.components.offsets.topics_of("g") == []


# ------------------------------------------------------------------------------------------------------------- ordered


async def test_an_ordered_queue_is_blocked_until_its_messages_are_acknowledged(
    cluster: Cluster, line: AsyncConnection
) -> None:
    await fill(line, 4)
    first = await popped(line, order="true", maxMsgNums=2, attemptId="a1")
    assert [message.body for message in first] == [b"0:0", b"0:1"]
    assert first[0].receipt.split(" ")[3] == "999"
    assert await popped(line, order="true", maxMsgNums=2, attemptId="a2") == []
    repeated = await popped(line, order="true", maxMsgNums=2, attemptId="a1")
    assert [message.body for message in repeated] == [b"0:0", b"0:1"]
    waiting = await line.send(pop(order="true", maxMsgNums=2, pollTime=15_000))
    await eventually(lambda: len(cluster.broker.components.pop_polling) == 1)
    other = await cluster.line()
    await ack(other, repeated[0])
    assert committed(cluster) == 1
    await ack(other, repeated[1])
    assert [message.body for message in got(await line.answer(waiting))] == [b"0:2", b"0:3"]
    assert committed(cluster) == 2


async def test_ordered_messages_come_again_with_their_count(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 2)
    first, _ = await popped(line, order="true")
    changed = await line.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, first.fields(invisibleTime=70_000))
    assert changed.code == 0
    later(cluster, 69)
    waiting = await line.send(pop(order="true", pollTime=15_000))
    await eventually(lambda: len(cluster.broker.components.pop_polling) == 1)
    later(cluster, 1)
    answer = await line.answer(waiting)
    assert answer.fields["orderCountInfo"] == "0 qo0%0 1;0 qo0%1 1;0 0 1"


async def test_an_ordered_queue_is_free_when_the_last_message_left_is_visible(
    cluster: Cluster, line: AsyncConnection
) -> None:
    await fill(line, 4)
    first, second, third = await popped(line, order="true", maxMsgNums=3)
    await ack(line, first)
    changed = await line.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, second.fields(invisibleTime=3_000))
    assert changed.code == 0
    await ack(line, third)
    waiting = await line.send(pop(order="true", pollTime=15_000))
    await eventually(lambda: len(cluster.broker.components.pop_polling) == 1)
    later(cluster, 3)
    again = got(await line.answer(waiting))
    assert [message.body for message in again] == [b"0:1", b"0:2", b"0:3"]


async def test_ordered_queues_that_are_free_at_once_are_woken_in_steps(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyroute.broker.pop.ordered_queues.WOKEN_MAX", 1)
    await fill(line, 1)
    await fill(line, 1, queue_id=1)
    assert len(await popped(line, order="true")) == 2
    waiting = [await line.send(pop(order="true", queueId=at, pollTime=15_000)) for at in (0, 1)]
    await eventually(lambda: len(cluster.broker.components.pop_polling) == 2)
    cluster.clock.advance(60)
    ordered, now_ms = cluster.broker.components.ordered_queues, int(cluster.clock.wall() * 1000)
    assert ordered.wake_unblocked(now_ms) == now_ms
    assert ordered.wake_unblocked(now_ms) is None
    assert [len(got(await line.answer(number))) for number in waiting] == [1, 1]


async def test_ordered_state_survives_a_restart(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 2)
    messages = await popped(line, order="true")
    await cluster.stop()
    stored = json.loads((cluster.folder / "broker-a" / "config" / "consumerOrderInfo.json").read_text())
    (state,) = stored["table"]["T@g"].values()
    assert (state["o"], state["i"]) == ([0, 1], 60000)
    await cluster.start()
    line = await cluster.line()
    assert await popped(line, order="true") == []
    await ack(line, *messages)
    assert committed(cluster) == 2


async def test_the_broker_status_has_messages_in_flight(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 3)
    await popped(line)
    status = json.loads((await line.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    shown = {name: status[name] for name in ("popInFlightMessages", "popInFlightBatches", "popWaiting")}
    assert shown == {"popInFlightMessages": "3", "popInFlightBatches": "1", "popWaiting": "0"}


@pytest.mark.parametrize("order", ["false", "true"])
async def test_the_progress_of_a_group_has_messages_in_flight_and_waiting_pops(
    cluster: Cluster, line: AsyncConnection, order: str
) -> None:
    await fill(line, 3)
    query = {"consumerGroup": "g"}
    assert b"popTable" not in (await line.call(RequestCode.GET_CONSUME_STATS, query)).body
    messages = await popped(line, order=order)
    later(cluster, 4)
    await (await cluster.line()).send(pop(order=order, pollTime=15_000))
    await eventually(lambda: len(cluster.broker.components.pop_polling) == 1)
    stats = decode_consume_stats((await line.call(RequestCode.GET_CONSUME_STATS, query)).body)
    assert stats.pops == {"T": PopProgress(3, 1)}
    await ack(line, *messages)
    stats = decode_consume_stats((await line.call(RequestCode.GET_CONSUME_STATS, query)).body)
    assert stats.pops == {"T": PopProgress(0, 1)}
