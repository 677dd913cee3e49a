"""Attacks on a broker with access control, by a user without rights, or with rights on one topic."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.network.broker.clusters import Cluster
from tests.network.broker.test_access import GUARDED, NO_PERMISSION, pulled
from tests.support.connections import AsyncConnection
from tests.support.raw import Request
from tests.support.signing import ALICE, BOB, ROOT, Key, allow, create_user

VICTIM = {"topic": "secrets", "group": "payments", "client": "10.0.0.1@1234"}
FIELDS = {"a": "p", "b": "orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0"}
SILENCE_S = 0.3
NOW_MS = 1_758_275_140_000
"""When the clock of the broker starts."""


@pytest.fixture
async def guarded(empty_cluster: Cluster) -> Cluster:
    await empty_cluster.start(**GUARDED)
    line = await empty_cluster.line()
    rights = (create_user(ALICE), allow(ALICE, "Topic:secrets", "Pub", "Sub"), create_user(BOB))
    for request in (*rights, allow(BOB, "Topic:orders", "Pub", "Sub"), allow(BOB, "Group:g", "Sub")):
        assert (await line.call(request)).code == 0
    for topic in ("orders", "secrets"):
        await empty_cluster.add_topic(topic)
    return empty_cluster


def send(key: Key, topic: str, body: bytes = b"hello", properties: dict[str, str] | None = None) -> Request:
    text = "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items())
    is_half = "4" if "TRAN_MSG" in text else "0"
    return key.sign(Request(310, FIELDS | {"b": topic, "f": is_half, "g": str(NOW_MS), "i": text}, body))


def heartbeat(key: Key, client: str, *producer_groups: str) -> Request:
    beat: dict[str, Any] = {"clientID": client, "consumerDataSet": []}
    beat["producerDataSet"] = [{"groupName": name} for name in producer_groups]
    return key.sign(Request(34, {}, json.dumps(beat).encode()))


async def is_silent(line: AsyncConnection) -> bool:
    """Whether the broker sends nothing to a connection."""
    try:
        await asyncio.wait_for(line.receive(), SILENCE_S)
    except TimeoutError:
        return True
    return False


async def test_a_check_of_a_transaction_is_sent_to_producers_that_may_send_to_its_topic_only(guarded: Cluster) -> None:
    """A heartbeat needs no right to a producer group; the check contains the message."""
    spy, owner = await guarded.line(), await guarded.line()
    half = send(ALICE, "secrets", b"half", {"TRAN_MSG": "true", "PGROUP": "payments", "UNIQ_KEY": "u1"})
    assert (await owner.call(half)).code == 0
    assert (await spy.call(heartbeat(BOB, "spy", "payments"))).code == 0
    guarded.clock.advance(31)
    await guarded.broker.components.transactions.send_checks()
    assert await is_silent(spy)
    assert (await owner.call(heartbeat(ALICE, "owner", "payments"))).code == 0
    for _ in range(3):  # in turns, if both were allowed
        guarded.clock.advance(31)
        await guarded.broker.components.transactions.send_checks()
        assert (await owner.receive()).code == 39
    assert await is_silent(spy)


async def test_replies_cannot_be_taken_over_with_a_client_id(guarded: Cluster) -> None:
    victim, spy, server = await guarded.line(), await guarded.line(), await guarded.line()
    assert (await victim.call(heartbeat(ALICE, VICTIM["client"], "payments"))).code == 0
    for group in ("payments", "other"):
        refused = await spy.call(heartbeat(BOB, VICTIM["client"], group))
        assert refused.code == NO_PERMISSION
        assert refused.remark is not None
        assert "belongs to a producer of another user" in refused.remark
    text = f"REPLY_TO_CLIENT\x01{VICTIM['client']}\x02CORRELATION_ID\x01c\x02"
    reply = ROOT.sign(Request(325, FIELDS | {"b": "secrets", "i": text}, b"the answer"))
    answer = asyncio.create_task(server.call(reply))
    assert (await victim.receive()).code == 326
    assert await is_silent(spy)
    answer.cancel()
    # The same user may reconnect before the broker notices that its old connection is dead.
    again = await guarded.line()
    assert (await again.call(heartbeat(ALICE, VICTIM["client"], "payments"))).code == 0


async def test_a_timer_message_is_recalled_through_its_own_topic_only(guarded: Cluster) -> None:
    line = await guarded.line()
    due_ms = int(guarded.clock.wall() * 1000) + 10_000
    due = {"TIMER_DELIVER_MS": str(due_ms)}
    assert (await line.call(send(ALICE, "secrets", b"later", due | {"UNIQ_KEY": "u1"}))).code == 0
    mark = send(BOB, "orders", b"0", due | {"UNIQ_KEY": "u2", "TIMER_DEL_UNIQKEY": "secrets+u1"})
    assert (await line.call(mark)).code == 0
    assert (await line.call(send(ALICE, "secrets", b"recalled", due | {"UNIQ_KEY": "u3"}))).code == 0
    own_mark = send(ALICE, "secrets", b"0", due | {"UNIQ_KEY": "u4", "TIMER_DEL_UNIQKEY": "secrets+u3"})
    assert (await line.call(own_mark)).code == 0
    timers = guarded.broker.components.timers
    for _ in range(30):
        guarded.clock.advance(1)
        now_ms = int(guarded.clock.wall() * 1000)
        while timers.step(now_ms) == now_ms:
            pass
    assert guarded.stored("secrets") == [b"later"]


@pytest.mark.parametrize(
    "properties",
    [
        {"REAL_TOPIC": "secrets", "REAL_QID": "0"},
        {"REAL_TOPIC": "secrets", "REAL_QID": "0", "DELAY": "1"},
        {"REAL_TOPIC": "secrets", "REAL_QID": "0", "TIMER_DELAY_SEC": "1"},
        {"RETRY_TOPIC": "secrets", "ORIGIN_MESSAGE_ID": "1"},
    ],
)
async def test_properties_do_not_redirect_a_message(guarded: Cluster, properties: dict[str, str]) -> None:
    line = await guarded.line()
    assert (await line.call(send(BOB, "orders", b"mine", properties))).code == 0
    components = guarded.broker.components
    for _ in range(30):
        guarded.clock.advance(1)
        now_ms = int(guarded.clock.wall() * 1000)
        while components.timers.step(now_ms) == now_ms:
            pass
        components.delays.deliver_due(now_ms)
    assert guarded.stored("secrets") == []


INTERNAL = ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_REVIVE_LOG_C"]


@pytest.mark.parametrize("topic", INTERNAL)
async def test_a_right_to_all_topics_does_not_lead_around_a_denial_through_topics_of_the_broker(
    guarded: Cluster, topic: str
) -> None:
    """They hold messages of other topics, which the broker moves by their properties."""
    line = await guarded.line()
    for resource in ("Topic:*", "Topic:rmq*", "Topic:S*", "*"):
        await line.call(allow(BOB, resource, "Pub", "Sub"))
    await line.call(allow(BOB, "Topic:secrets", "Pub", "Sub", decision="Deny"))
    moved = send(BOB, topic, b"x", {"REAL_TOPIC": "secrets", "REAL_QID": "0"})
    for request in (moved, BOB.sign(pulled(topic))):
        answer = await line.call(request)
        assert (answer.code, "no matched policies" in str(answer.remark)) == (NO_PERMISSION, True)
    assert (await line.call(send(BOB, "RMQ_SYS_TRACE_TOPIC", b"a trace"))).code == 0


async def test_one_way_requests_are_checked(guarded: Cluster) -> None:
    line = await guarded.line()
    for request in (Request(310, FIELDS | {"b": "secrets"}, b"x"), send(BOB, "secrets", b"x")):
        await line.send_oneway(310, dict(request.fields), request.body)
    await line.send_oneway(215, {"topic": "secrets"})
    await line.send_oneway(215, dict(BOB.call(215, topic="secrets").fields))
    assert (await line.call(send(BOB, "orders"))).code == 0  # all of them were read before
    assert guarded.stored("secrets") == []
    assert guarded.broker.components.topics.get("secrets") is not None


@pytest.mark.parametrize(
    "request_",
    [
        Request(36, {"offset": "0", "group": "g", "delayLevel": "0", "originTopic": "orders"}),
        Request(15, {"topic": "orders", "consumerGroup": "payments", "queueId": "0", "commitOffset": "9"}),
        Request(310, FIELDS | {"a": "g", "b": "%RETRY%payments"}),
        Request(310, FIELDS | {"b": "%DLQ%payments"}),
        Request(320, FIELDS | {"b": "secrets", "m": "true"}),
        Request(324, {"topic": "secrets", "producerGroup": "g"}),
        Request(41, {}, b'{"consumerGroup":"g","mqSet":[{"topic":"secrets","brokerName":"b","queueId":0}]}'),
        Request(11, {"topic": "%RETRY%payments", "consumerGroup": "g"}),
        Request(370, {"topic": "secrets", "recallHandle": "x"}),
        Request(400, {}, b'{"consumerGroup":"g","topic":"secrets"}'),
        Request(200151, {}, b'{"brokerName":"b","acks":[{"c":"g","t":"secrets"}]}'),
    ],
    ids=lambda request: f"{request.code}",
)
async def test_a_right_to_one_name_opens_no_other(guarded: Cluster, request_: Request) -> None:
    line = await guarded.line()
    await line.call(send(ALICE, "secrets", b"first in the log"))
    answer = await line.call(BOB.sign(request_))
    assert answer.code == NO_PERMISSION, (answer.code, answer.remark)


async def test_a_field_that_is_there_twice_is_the_same_for_the_check_and_the_handler(guarded: Cluster) -> None:
    line = await guarded.line()
    signed = send(BOB, "orders")
    for first, last in (("orders", "secrets"), ("secrets", "orders")):
        header = json.dumps({"code": 310, "opaque": 7, "flag": 0, "language": "JAVA", "version": 479})
        fields = json.dumps(dict(signed.fields) | {"b": last})
        doubled = header[:-1] + ',"extFields":{"b":"' + first + '",' + fields[1:] + "}"
        raw = doubled.encode()
        frame = len(raw).to_bytes(4, "big") + raw + signed.body
        await line.write(len(frame).to_bytes(4, "big") + frame)
        assert (await line.receive()).code == (0 if last == "orders" else NO_PERMISSION)
    assert guarded.stored("secrets") == []
