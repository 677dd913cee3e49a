"""POP: messages, acknowledgements and requests that must not block, fill or grow anything."""

import base64
import json

import pytest

from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import found, send
from tests.network.broker.clusters import Cluster
from tests.network.broker.pops import Got, ack, later, pop, popped
from tests.support.connections import AsyncConnection
from tests.support.waiting import eventually


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    await cluster.add_topic("T", 2)
    await eventually(lambda: not cluster.broker.components.revive_log.is_loading)
    return cluster


async def fill(line: AsyncConnection, count: int, topic: str = "T", **properties: str) -> None:
    for at in range(count):
        answer = await line.call(send(topic, f"{at}".encode(), queue_id=0, properties=properties))
        assert answer.code == ResponseCode.SUCCESS, answer


async def renewed(line: AsyncConnection, message: Got, **more: object) -> Got:
    """Change the invisible time, and return the message with its new receipt."""
    answer = await line.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, message.fields(**more))
    assert answer.code == 0, answer
    times = " ".join(answer.fields[name] for name in ("popTime", "invisibleTime", "reviveQid"))
    *_, flag, broker, queue, offset = message.receipt.split(" ")
    return Got(message.message, f"{offset} {times} {flag} {broker} {queue} {offset}", message.topic)


@pytest.mark.parametrize("length", [32_200, 32_600, 32_650])
async def test_a_retried_message_without_room_for_its_receipt_is_delivered_once(
    cluster: Cluster, line: AsyncConnection, length: int
) -> None:
    await fill(line, 1, big="x" * length)
    (first,) = await popped(line)
    await fill(line, 1)
    later(cluster, 60)
    answer = await line.call(pop())
    assert answer.code == 0, answer
    again = {message.body: message for message in found(answer)}
    assert again[b"0"].properties.keys()
    assert len(found(answer)) == 2
    assert cluster.broker.components.in_flight.message_count == 2
    assert await popped(line) == []
    retries = [message for message in found(answer) if "big" in message.properties]
    assert len(retries) == 1
    receipt = retries[0].properties.get("POP_CK")
    if receipt is None:  # clients make it: the record has the topic that is in `startOffsetInfo`
        assert retries[0].topic == "%RETRY%g_T"
        assert "1 0 0" in answer.fields["startOffsetInfo"].split(";")
        times = " ".join(answer.fields[name] for name in ("popTime", "invisibleTime", "reviveQid"))
        receipt = f"0 {times} 1 broker-a 0 0"
    await ack(line, Got(retries[0], receipt, "%RETRY%g_T"))
    assert cluster.broker.components.in_flight.message_count == 1
    assert first.body == b"0"


async def test_a_message_with_the_name_of_another_group_and_no_room_for_its_own_is_retried(
    cluster: Cluster, line: AsyncConnection
) -> None:
    await fill(line, 1, ORIGIN_GROUP="o", big="x" * 32_635)
    (first,) = await popped(line, consumerGroup="g_1")
    later(cluster, 60)
    answer = await line.call(pop(consumerGroup="g_1"))
    assert [message.body for message in found(answer)] == [first.body]


async def test_repeated_and_lying_acks_write_nothing(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 4)
    messages = await popped(line, maxMsgNums=3)
    later(cluster, 4)
    await ack(line, messages[0])
    revive_log = cluster.broker.components.revive_log
    assert revive_log.acks_written == 1
    start, popped_at, invisible, revive, *_ = messages[0].receipt.split(" ")
    end = cluster.broker.components.store.max_position
    bits = base64.b64encode(bytes([0b1001])).decode()
    entry = {"c": "g", "t": "T", "r": "0", "so": int(start), "q": 0, "rq": int(revive), "b": bits}
    batch = json.dumps({"acks": [{**entry, "pt": int(popped_at), "it": int(invisible)}]}).encode()
    for _ in range(3):
        await ack(line, messages[0])  # again
        await ack(line, messages[1], offset=3)  # not of its batch
        assert (await line.call(RequestCode.BATCH_ACK_MESSAGE, body=batch)).code == 0
    assert cluster.broker.components.store.max_position == end
    bits = base64.b64encode(bytes([0b1111])).decode()
    batch = json.dumps({"acks": [{**entry, "b": bits, "pt": int(popped_at), "it": int(invisible)}]}).encode()
    assert (await line.call(RequestCode.BATCH_ACK_MESSAGE, body=batch)).code == 0
    assert revive_log.acks_written == 2


async def test_renewed_messages_take_no_more_memory(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 8)
    head, other, *_ = await popped(line)
    table = cluster.broker.components.in_flight
    for _ in range(40):
        head = await renewed(line, head, invisibleTime=1_500)
        other = await renewed(line, other, invisibleTime=1_500)
        later(cluster, 1)
    queue = table.held_queue("g", "T", 0)
    assert queue is None or len(queue.held) < 10
    assert cluster.broker.components.offsets.get("g", "T", 0) == 8


async def test_groups_with_one_retry_topic_get_only_their_own_messages(cluster: Cluster, line: AsyncConnection) -> None:
    for topic in ("b_c", "c"):
        await cluster.add_topic(topic, 1)
        assert (await line.call(send(topic, topic.encode()))).code == 0
    for group, topic in (("a", "b_c"), ("a_b", "c")):
        assert [message.body for message in await popped(line, topic, consumerGroup=group)] == [topic.encode()]
    later(cluster, 60)
    for group, topic in (("a", "b_c"), ("a_b", "c")):
        (message,) = await popped(line, topic, consumerGroup=group)
        assert (message.body, message.message.topic) == (topic.encode(), topic)
        await ack(line, message, consumerGroup=group)
    later(cluster, 100)
    for group, topic in (("a", "b_c"), ("a_b", "c")):
        assert await popped(line, topic, consumerGroup=group) == []


async def test_acks_before_the_end_of_the_load_are_written_once(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(line, 3)
    messages = await popped(line)
    later(cluster, 4)
    revive_log = cluster.broker.components.revive_log
    revive_log.reset()
    for _ in range(3):
        await ack(line, messages[0])
    changes = [
        await line.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, messages[1].fields(invisibleTime=70_000))
        for _ in range(3)
    ]
    assert [answer.code for answer in changes] == [0, ResponseCode.NO_MESSAGE, ResponseCode.NO_MESSAGE]
    assert (revive_log.acks_written, revive_log.check_points_written) == (2, 2)
    monkeypatch.setattr("skyroute.broker.pop.revive_log.CLAIMED_MAX", 2)
    assert (await line.call(RequestCode.ACK_MESSAGE, messages[2].fields())).code == ResponseCode.SYSTEM_BUSY
    for _ in revive_log.load():
        pass
    assert cluster.broker.components.in_flight.message_count == 2
    later(cluster, 60)
    assert [message.body for message in await popped(line)] == [b"2"]


async def test_a_group_cannot_take_the_room_of_others(cluster: Cluster, line: AsyncConnection) -> None:
    table = cluster.broker.components.in_flight
    table._group_batches_max, table._batches_max = 2, 3
    await fill(line, 9)
    first = await popped(line, maxMsgNums=2)
    await popped(line, maxMsgNums=2)
    full = await line.call(pop())
    assert (full.code, "group g" in (full.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    change = await line.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, first[0].fields(invisibleTime=1_000))
    assert change.code == ResponseCode.SYSTEM_BUSY  # the batch would become two
    assert len(await popped(line, consumerGroup="h", maxMsgNums=1)) == 1
    full = await line.call(pop(consumerGroup="h"))
    assert (full.code, "all groups" in (full.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    await ack(line, *first)
    assert len(await popped(line, maxMsgNums=2)) == 2


async def test_finished_check_points_are_forgotten_behind_one_that_is_not(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    revive_log = cluster.broker.components.revive_log
    revive_log._live_max = [4] * 8
    monkeypatch.setattr("skyroute.broker.pop.revive_log._LIVE_MIN", 4)
    await fill(line, 1)
    (message,) = await popped(line, invisibleTime=3_600_000)
    later(cluster, 4)
    await fill(line, 1)
    (message,) = await popped(line)
    later(cluster, 4)
    for _ in range(40):
        message = await renewed(line, message, invisibleTime=1_500)
        later(cluster, 1)
    assert max(map(len, revive_log._live)) < 8
    assert cluster.broker.components.in_flight.written == 2


def batch_of(*messages: Got, **more: object) -> bytes:
    """The body of an acknowledgement with one entry for each message."""
    entries = []
    for message in messages:
        start, popped_at, invisible, revive, _, _, queue, offset = message.receipt.split(" ")
        bits = 1 << (int(offset) - int(start))
        entry = {"c": "g", "t": "T", "r": "0", "so": int(start), "q": int(queue), "rq": int(revive)}
        text = base64.b64encode(bits.to_bytes(16, "little")).decode()
        entries.append({**entry, "pt": int(popped_at), "it": int(invisible), "b": text, **more})
    return json.dumps({"acks": entries}).encode()


async def test_many_acks_of_one_request_take_several_steps(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyroute.broker.handlers.pop.STEP_COST", 4)
    await fill(line, 30)
    messages, components, other = await popped(line), cluster.broker.components, await cluster.line()
    async with components.prompt_runner._lane.turn():  # blocks all but the first step of each request
        long = [await line.send(RequestCode.BATCH_ACK_MESSAGE, body=batch_of(*messages)) for _ in range(3)]
        asked = {"consumerGroup": "g", "topic": "T", "queueId": "-1"}
        assert (await other.call(RequestCode.POLLING_INFO, asked)).code == 0
        assert components.in_flight.message_count == 30
        (server, *_) = cluster.broker._servers
        assert (
            sum(each._processor.pending.tasks for each in server._connections.values()) == 1
        )  # not one for each request
    assert [(await line.answer(each)).code for each in long] == [0, 0, 0]
    assert components.in_flight.message_count == 0


@pytest.mark.parametrize("change", [{"r": "7"}, {"pt": -1}, {"b": "no"}, {"c": ""}, {"b": "/" * 65_536}])
async def test_a_batch_with_a_bad_entry_acknowledges_nothing(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    monkeypatch.setattr("skyroute.broker.handlers.pop.STEP_COST", 4)
    await fill(line, 9)
    messages = await popped(line)
    good, bad = json.loads(batch_of(*messages)), json.loads(batch_of(messages[0], **change))
    body = json.dumps({"acks": good["acks"] + bad["acks"]}).encode()
    assert (await line.call(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == ResponseCode.SYSTEM_ERROR
    assert cluster.broker.components.in_flight.message_count == 9


async def test_bit_sets_of_what_was_not_popped_change_nothing(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, 3)
    messages = await popped(line, maxMsgNums=1)
    bits = base64.b64encode(b"\0" * 100 + b"\xff" + b"\0" * 100_000 + b"\x80").decode()
    lies = batch_of(messages[0], b=bits), batch_of(messages[0], q=2**31 - 1), batch_of(messages[0], so=2**61)
    for body in lies:
        assert (await line.call(RequestCode.BATCH_ACK_MESSAGE, body=body)).code == 0
    assert cluster.broker.components.in_flight.message_count == 1


async def test_waiting_pops_of_a_group_leave_room_for_others(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyroute.broker.pop.long_polling.WAITING_A_GROUP_MAX", 3)
    monkeypatch.setattr("skyroute.broker.pop.long_polling.WAITING_CHARS_MAX", 100)
    polling, other = cluster.broker.components.pop_polling, await cluster.line()
    await cluster.add_topic("U", 1)
    waiting = [await line.send(pop(queueId=queue_id, pollTime=15_000)) for queue_id in (-1, 0, 1)]
    await eventually(lambda: len(polling) == 3)
    assert (await other.call(pop("U", pollTime=15_000))).code == ResponseCode.POLLING_FULL
    long = pop(consumerGroup="h", pollTime=15_000, exp="a" * 100)
    assert (await other.call(long)).code == ResponseCode.POLLING_FULL
    of_other = await line.send(pop(consumerGroup="h", pollTime=15_000, exp="0"))
    await eventually(lambda: len(polling) == 4)
    await fill(other, 2)  # the pops of queue 0 and of all queues get one each, at most
    later(cluster, 16)
    assert {(await line.answer(each)).code for each in waiting} == {0, ResponseCode.POLLING_TIMEOUT}
    assert (await line.answer(of_other)).code == ResponseCode.POLLING_TIMEOUT
    assert (len(polling), polling._keys, polling._groups, polling._chars) == (0, {}, {}, 0)


async def test_a_client_with_all_waiting_pops_gives_way_to_others(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyroute.broker.pop.long_polling.WAITING_MAX", 3)
    monkeypatch.setattr("skyroute.broker.delivery.long_polling.GIVEN_UP_AT_ONCE", 1)
    polling, greedy = cluster.broker.components.pop_polling, await cluster.line(source="127.0.0.2")
    waiting = [await greedy.send(pop(pollTime=15_000)) for _ in range(3)]
    await eventually(lambda: len(polling) == 3)
    assert (await greedy.call(pop(pollTime=15_000))).code == ResponseCode.POLLING_FULL
    polite = await line.send(pop(pollTime=15_000))
    assert (await greedy.answer(waiting[0])).code == ResponseCode.POLLING_TIMEOUT
    await eventually(lambda: len(polling) == 3)
    await fill(line, 3)
    assert (await line.answer(polite)).code == 0


async def test_waiting_pops_of_closed_connections_leave_nothing(cluster: Cluster, line: AsyncConnection) -> None:
    polling = cluster.broker.components.pop_polling
    for queue_id in (-1, 0, 1):
        await line.send(pop(queueId=queue_id, pollTime=15_000))
        fields = {"consumerGroup": "h", "topic": "T", "queueId": str(queue_id), "pollTime": "15000", "bornTime": "0"}
        await line.send(RequestCode.NOTIFICATION, fields)
    await eventually(lambda: len(polling) == 6)
    await line.close()
    await eventually(lambda: len(polling) == 0)
    assert (polling._keys, polling._groups, polling._chars) == ({}, {}, 0)


async def test_ordered_pops_of_a_group_leave_room_for_others(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyroute.broker.pop.ordered_queues.GROUP_QUEUES_MAX", 1)
    await fill(line, 1)
    assert (await line.call(send("T", b"1", queue_id=1))).code == 0
    (first,) = await popped(line, order="true", queueId=0)
    assert (await line.call(pop(order="true", queueId=1))).code == ResponseCode.SYSTEM_BUSY
    assert len(await popped(line, order="true", queueId=1, consumerGroup="h")) == 1
    assert len(await popped(line, order="true", queueId=0, attemptId="")) == 0  # it is blocked, not refused
    await ack(line, first)
    refused = await line.call(pop(order="true", attemptId="a" * 1_025))
    assert (refused.code, "attemptId" in (refused.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


@pytest.mark.usefixtures("expects_errors")  # such messages are discarded with a line in the log
@pytest.mark.parametrize("queue_id", ["x", "-1", "9" * 5_000, "99"])
async def test_forged_timer_messages_do_not_stop_redelivery_at_the_start(
    cluster: Cluster, line: AsyncConnection, queue_id: str
) -> None:
    await fill(line, 1)
    await popped(line)
    later(cluster, 4)
    forged = {"REAL_TOPIC": "rmq_sys_REVIVE_LOG_DefaultCluster", "REAL_QID": queue_id, "TAGS": "ck"}
    await line.call(send("rmq_sys_wheel_timer", b"{}", queue_id=0, properties=forged))
    await cluster.kill()
    await cluster.start()
    await eventually(lambda: not cluster.broker.components.revive_log.is_loading)
    line = await cluster.line()
    assert await popped(line) == []
    later(cluster, 60)
    assert [message.body for message in await popped(line)] == [b"0"]


async def test_an_error_with_one_queue_keeps_what_was_popped_of_others(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyroute.broker.pop.ordered_queues.GROUP_QUEUES_MAX", 1)
    await fill(line, 1)
    assert (await line.call(send("T", b"0", queue_id=1))).code == 0
    assert [message.body for message in await popped(line, order="true")] == [b"0"]


async def test_a_pop_whose_search_takes_long_leaves_the_other_queues_to_the_next_one(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyroute.broker.handlers.pop.SEARCH_S", 0.0)
    await cluster.add_topic("Wide", 8)
    for queue_id in range(8):
        assert (await line.call(send("Wide", b"x", queue_id=queue_id, properties={"TAGS": "other"}))).code == 0
    offsets = cluster.broker.components.offsets
    for kind, expression in (("TAG", "wanted"), ("SQL92", "TAGS = 'wanted'")):
        group = {"consumerGroup": kind, "exp": expression, "expType": kind}
        for searched in range(1, 4):
            answer = await line.call(pop("Wide", pollTime=15_000, **group))  # responds at once
            assert answer.code == ResponseCode.POLLING_TIMEOUT
            assert len(offsets.of(kind, "Wide")) <= searched
        assert set(offsets.of(kind, "Wide").values()) == {1}


async def test_a_pop_after_a_reset_writes_some_check_points_only(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skyroute.broker.pop.popping.CHECK_POINTS_A_POP", 2)
    await fill(line, 6)
    for _ in range(5):
        assert len(await popped(line, queueId=0, maxMsgNums=1)) == 1
    revive_log = cluster.broker.components.revive_log
    reset = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
    assert (await line.call(RequestCode.UPDATE_CONSUMER_OFFSET, reset)).code == 0
    cluster.clock.advance(1)
    for written in (2, 4):
        assert (await line.call(pop(queueId=0, pollTime=15_000))).code == ResponseCode.POLLING_TIMEOUT
        assert revive_log.check_points_written == written
    assert [message.body for message in await popped(line, queueId=0)] == [b"1", b"2", b"3", b"4", b"5"]
    assert revive_log.check_points_written == 5
    assert cluster.broker.components.in_flight.message_count == 10
