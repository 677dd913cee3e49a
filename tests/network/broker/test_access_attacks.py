"""Attacks on a broker with access control, by a user without rights, or with rights on one topic."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest

from skyroute.message.layout import HEAD_BYTES
from skyroute.message.message import StoredMessage
from skyroute.message.positions import LogPosition, QueueOffset
from skyroute.message.properties import encode_properties
from skyroute.message.record import body_crc, encode_record
from tests.network.broker.calls import batch_body
from tests.network.broker.clusters import Cluster
from tests.network.broker.pops import got, later, pop
from tests.network.broker.test_access import GUARDED, NO_PERMISSION, pulled
from tests.support.connections import AsyncConnection
from tests.support.disks import HERE
from tests.support.raw import Request
from tests.support.signing import ALICE, BOB, ROOT, Key, allow, create_user
from tests.support.waiting import eventually

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


@pytest.mark.parametrize("exempt", ["34", "34,310"])
async def test_a_check_of_a_transaction_is_not_sent_to_strangers_that_may_only_send_heartbeats(
    empty_cluster: Cluster, exempt: str
) -> None:
    await empty_cluster.start(**GUARDED, authentication_exempt=exempt)
    await empty_cluster.add_topic("secrets")
    spy, owner = await empty_cluster.line(), await empty_cluster.line()
    half = send(ROOT, "secrets", b"half", {"TRAN_MSG": "true", "PGROUP": "payments", "UNIQ_KEY": "u1"})
    assert (await owner.call(half)).code == 0
    unsigned = json.dumps({"clientID": "spy", "producerDataSet": [{"groupName": "payments"}]}).encode()
    assert (await spy.call(Request(34, {}, unsigned))).code == 0
    empty_cluster.clock.advance(31)
    await empty_cluster.broker.components.transactions.send_checks()
    assert await is_silent(spy) == (exempt == "34")


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


async def test_a_reply_needs_the_right_to_the_reply_topic(guarded: Cluster) -> None:
    """It is pushed to any client that it names."""
    victim, spy = await guarded.line(), await guarded.line()
    assert (await victim.call(heartbeat(ALICE, VICTIM["client"], "payments"))).code == 0
    text = f"REPLY_TO_CLIENT\x01{VICTIM['client']}\x02CORRELATION_ID\x01c\x02"
    short = FIELDS | {"b": "orders", "i": text}
    long = {"producerGroup": "p", "topic": "orders", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"}
    long |= {"queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "properties": text}
    for request in (Request(325, short, b"forged"), Request(324, long, b"forged")):
        refused = await spy.call(BOB.sign(request))
        assert (refused.code, "Topic:DefaultCluster_REPLY_TOPIC" in str(refused.remark)) == (NO_PERMISSION, True)
    assert await is_silent(victim)
    await spy.call(allow(BOB, "Topic:DefaultCluster_REPLY_TOPIC", "Pub"))
    pushing = asyncio.create_task(spy.call(BOB.sign(Request(325, short, b"a reply"))))
    assert (await victim.receive()).code == 326
    pushing.cancel()


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


async def test_properties_of_messages_in_a_batch_do_not_redirect_them(guarded: Cluster) -> None:
    line = await guarded.line()
    texts = [
        "REAL_TOPIC\x01secrets\x02REAL_QID\x010\x02",
        "REAL_TOPIC\x01secrets\x02REAL_QID\x010\x02DELAY\x011\x02",
        "TRAN_MSG\x01true\x02PGROUP\x01p\x02REAL_TOPIC\x01secrets\x02",
        "INNER_MULTI_DISPATCH\x01secrets,%LMQ%secrets\x02INNER_MULTI_QUEUE_OFFSET\x010,0\x02",
        "TIMER_DEL_UNIQKEY\x01secrets+u1\x02TIMER_DELAY_MS\x01100\x02",
    ]
    body = batch_body([(b"mine", text) for text in texts])
    batch = BOB.sign(Request(320, FIELDS | {"b": "orders", "g": str(NOW_MS), "m": "true"}, body))
    assert (await line.call(batch)).code == 0
    components = guarded.broker.components
    for _ in range(30):
        guarded.clock.advance(1)
        now_ms = int(guarded.clock.wall() * 1000)
        while components.timers.step(now_ms) == now_ms:
            pass
        components.delays.deliver_due(now_ms)
    await components.transactions.send_checks()
    assert guarded.stored("secrets") == []
    assert guarded.stored("orders") == [b"mine"] * len(texts)


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


def forged(topic: str, position: int, properties: dict[str, str]) -> bytes:
    """A record at a position of the log, as bytes for a body."""
    body, raw = b"forged", encode_properties(properties)
    place = LogPosition(position)
    return encode_record(
        StoredMessage(
            *(topic, 0, QueueOffset(0), place, body, raw, 0, 0, NOW_MS, HERE, NOW_MS, HERE, 0, LogPosition(0)),
            *(body_crc(body), 0, ""),
        )
    )


async def send_forged(guarded: Cluster, line: AsyncConnection, topic: str, **properties: str) -> int:
    """Have Bob send a body that is a record; return the position at which it is in the log."""
    store = guarded.broker.components.store
    start = store.max_position
    position = start + HEAD_BYTES  # where the body begins
    assert (await line.call(send(BOB, "orders", forged(topic, position, properties)))).code == 0
    record = store.record_at(start)
    assert record is not None
    assert store.record_at(position) is not None, "the body is not where this test expects it"
    return position


@pytest.mark.parametrize("code", [10, 310, 17, 11])
async def test_a_field_that_is_there_twice_in_binary_is_the_same_for_the_check_and_the_handler(
    guarded: Cluster, code: int
) -> None:
    name = "b" if code == 310 else "topic"
    names = {"a": "producerGroup", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId", "f": "sysFlag"}
    names |= {"g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes"}
    fields = {
        10: {names[short]: value for short, value in FIELDS.items() if short in names} | {"topic": "orders"},
        310: FIELDS,
        17: {"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6"}
        | {"topicFilterType": "SINGLE_TAG", "order": "false"},
        11: dict(pulled("orders").fields),
    }[code]
    line = await guarded.line(form="binary")
    await line.call(allow(BOB, "Topic:orders", "Pub", "Sub", "Create"))
    for first, last in (("orders", "secrets"), ("secrets", "orders")):
        signed = BOB.sign(Request(code, fields | {name: last}, b"x" if code in (10, 310) else b""))
        pairs = [(name, first), *signed.fields.items()]
        raw_fields = b"".join(
            len(key).to_bytes(2, "big") + key.encode() + len(value.encode()).to_bytes(4, "big") + value.encode()
            for key, value in pairs
        )
        header = struct.pack(">hBhiiii", code, 0, 479, 7, 0, 0, len(raw_fields)) + raw_fields
        frame = (1 << 24 | len(header)).to_bytes(4, "big") + header + signed.body
        await line.write(len(frame).to_bytes(4, "big") + frame)
        answer = await line.receive()
        assert (answer.code == NO_PERMISSION) == (last == "secrets"), answer
    assert guarded.stored("secrets") == []


async def test_bytes_in_a_body_are_no_message(guarded: Cluster) -> None:
    """The topic in them is the choice of the sender, and so is all that the broker would do with them."""
    line = await guarded.line()
    await line.call(allow(BOB, "Topic:orders", "Pub", "Sub", "Get"))
    assert (await line.call(ROOT.sign(Request(200, {}, b'{"groupName":"g"}')))).code == 0
    position = await send_forged(guarded, line, "orders")
    answer = await line.call(BOB.call(33, offset=str(position), topic="orders"))
    assert (answer.code, answer.body) == (1, b"")
    for key in (BOB, ROOT):
        answer = await line.call(key.call(36, offset=str(position), group="g", delayLevel="0", originTopic="orders"))
        assert (answer.code, "look message by offset failed" in str(answer.remark)) == (1, True)


async def test_bytes_in_a_body_are_no_half_message(guarded: Cluster) -> None:
    line = await guarded.line()
    half = send(BOB, "orders", b"open", {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "u1"})
    assert (await line.call(half)).code == 0
    forged_half = {"REAL_TOPIC": "secrets", "REAL_QID": "0", "PGROUP": "p", "TRAN_MSG": "true", "UNIQ_KEY": "u1"}
    position = await send_forged(guarded, line, "RMQ_SYS_TRANS_HALF_TOPIC", **forged_half)
    fields = {"producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": str(position)}
    fields |= {"commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "u1"}
    for key, more in ((BOB, {"topic": "orders"}), (BOB, {}), (ROOT, {})):
        answer = await line.call(key.sign(Request(37, fields | more)))
        assert (answer.code, answer.remark) == (1, "Find prepared transaction message failed")
    assert guarded.stored("secrets") == []


async def test_transactions_of_other_topics_cannot_be_ended(guarded: Cluster) -> None:
    line = await guarded.line()
    position = guarded.broker.components.store.max_position
    half = send(ALICE, "secrets", b"half", {"TRAN_MSG": "true", "PGROUP": "payments", "UNIQ_KEY": "u1"})
    assert (await line.call(half)).code == 0
    fields = {"producerGroup": "payments", "tranStateTableOffset": "0", "commitLogOffset": str(position)}
    fields |= {"commitOrRollback": "8", "fromTransactionCheck": "false", "msgId": "u1"}
    for more in ({"topic": "orders"}, {}):
        assert (await line.call(BOB.sign(Request(37, fields | more)))).code == NO_PERMISSION
    assert guarded.stored("secrets") == []
    assert (await line.call(ALICE.sign(Request(37, fields)))).code == 0
    assert guarded.stored("secrets") == [b"half"]


async def test_a_message_is_viewed_by_the_right_to_its_own_topic_whatever_the_request_names(guarded: Cluster) -> None:
    line = await guarded.line()
    store = guarded.broker.components.store
    positions = []
    for topic in ("secrets", "orders"):
        positions.append(str(store.max_position))
        assert (await line.call(send(ROOT, topic))).code == 0
    theirs, mine = positions
    await line.call(allow(BOB, "Cluster:DefaultCluster", "Get"))
    await line.call(allow(BOB, "Topic:orders", "Get"))
    for named in ({}, {"topic": "orders"}, {"topic": ""}):
        assert (await line.call(BOB.sign(Request(33, {"offset": theirs, **named})))).code == NO_PERMISSION
        assert (await line.call(BOB.sign(Request(33, {"offset": mine, **named})))).code == 0


async def test_dead_letters_are_open_to_the_group_and_not_to_all_topics(guarded: Cluster) -> None:
    line = await guarded.line()
    for topic in ("%DLQ%g", "%DLQ%payments"):
        await guarded.add_topic(topic)
    own, theirs = BOB.sign(pulled("%DLQ%g")), BOB.sign(pulled("%DLQ%payments"))
    for resource in ("Topic:*", "Topic:%*", "*"):
        await line.call(allow(BOB, resource, "Pub", "Sub", "Get"))
        await line.call(allow(BOB, "Group:payments", "All", decision="Deny"))
        assert (await line.call(theirs)).code == NO_PERMISSION, resource
        assert (await line.call(send(BOB, "%DLQ%payments"))).code == NO_PERMISSION, resource
        assert (await line.call(BOB.call(30, topic="%DLQ%payments", queueId="0"))).code == NO_PERMISSION
        assert (await line.call(own)).code != NO_PERMISSION
    await line.call(allow(BOB, "Topic:%DLQ%payments", "Sub"))
    assert (await line.call(theirs)).code != NO_PERMISSION
    await line.call(allow(BOB, "Topic:%DLQ%g", "Sub", decision="Deny"))
    assert (await line.call(own)).code == NO_PERMISSION


@pytest.mark.parametrize("kind", ["pull", "waiting pull", "pop", "peek", "query"])
async def test_the_right_to_a_group_opens_no_retries_of_another_group_in_a_topic_of_the_same_name(
    guarded: Cluster, kind: str
) -> None:
    """`%RETRY%g_secrets` is the retry topic of group `g_secrets`, and the POP retry topic of group `g`."""
    spy, owner = await guarded.line(), await guarded.line()
    for group in ("g", "g_secrets"):
        assert (await owner.call(ROOT.sign(Request(200, {}, json.dumps({"groupName": group}).encode())))).code == 0
    await owner.call(allow(BOB, "Group:g_*", "Sub"))
    await owner.call(allow(BOB, "Group:g", "Sub", decision="Deny"))
    shared = "%RETRY%g_secrets"
    await guarded.add_topic(shared)
    popping = pop(shared, consumerGroup="g_secrets")
    request = {
        "pull": pulled(shared, group="g_secrets"),
        "waiting pull": pulled(shared, group="g_secrets", suspend_ms=15_000),
        "pop": popping,
        "peek": Request(200052, popping.fields),
        "query": Request(
            12, {"topic": shared, "key": "k", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": f"{1 << 50}"}
        ),
    }[kind]
    waiting = await spy.send(BOB.sign(request)) if kind == "waiting pull" else None
    assert (await owner.call(send(ROOT, "secrets", b"of secrets", {"KEYS": "k"}))).code == 0
    assert (await owner.call(ROOT.sign(pop("secrets", invisibleTime=10_000)))).code == 0
    for _ in range(40):
        later(guarded, 1)
    assert guarded.stored(shared) == [b"of secrets"]
    answer = await spy.call(BOB.sign(request)) if waiting is None else await spy.answer(waiting)
    assert (answer.code == NO_PERMISSION, b"of secrets" in answer.body) == (False, False)
    whole = Request(request.code, {**request.fields, "consumerGroup": "g"})  # for the other group, it was passed over
    assert b"of secrets" in (await owner.call(ROOT.sign(whole))).body


async def test_a_member_of_a_group_acknowledges_retried_messages(guarded: Cluster) -> None:
    line = await guarded.line()
    await line.call(ROOT.sign(Request(200, {}, b'{"groupName":"g"}')))
    assert (await line.call(send(ROOT, "orders", b"again"))).code == 0
    (first,) = got(await line.call(BOB.sign(pop("orders", invisibleTime=10_000))), "orders")
    components = guarded.broker.components
    for _ in range(40):
        guarded.clock.advance(1)
        now_ms = int(guarded.clock.wall() * 1000)
        components.revival.step(now_ms)
        while components.timers.step(now_ms) == now_ms:
            pass
    (again,) = got(await line.call(BOB.sign(pop("orders", invisibleTime=10_000))), "orders")
    assert (again.body, again.topic) == (first.body, "%RETRY%g_orders")
    changed = await line.call(BOB.sign(Request(200053, again.fields(invisibleTime="20000"))))
    assert changed.code == 0, changed
    times = {"popTime": changed.fields["popTime"], "invisibleTime": changed.fields["invisibleTime"]}
    parts = again.receipt.split(" ")
    parts[0], parts[1], parts[2] = parts[7], times["popTime"], times["invisibleTime"]
    acked = await line.call(BOB.sign(Request(200051, again.fields(extraInfo=" ".join(parts)))))
    assert acked.code == 0, acked
    assert components.acknowledgements.acked == 1
    back = {"offset": str(again.message.log_position), "group": "g", "delayLevel": "0", "originTopic": "orders"}
    sent_back = await line.call(BOB.sign(Request(36, back)))
    assert sent_back.code == 0, sent_back
    await line.call(allow(BOB, "Group:g_orders", "Sub", decision="Deny"))  # another group, of which this name speaks
    for group in ("payments", "g_orders"):
        refused = await line.call(BOB.sign(Request(200051, again.fields(consumerGroup=group))))
        assert refused.code == NO_PERMISSION


@pytest.mark.parametrize("code", [11, 200050, 200054])
async def test_long_requests_that_wait_are_counted_because_their_signature_is_checked_again(
    guarded: Cluster, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr("skyroute.broker.delivery.long_polling.SUSPENDED_CHARS_MAX", 2_500_000)
    monkeypatch.setattr("skyroute.broker.pop.long_polling.WAITING_CHARS_MAX", 2_500_000)
    components = guarded.broker.components
    table = components.long_polling if code == 11 else components.pop_polling
    line = await guarded.line()
    fields = pulled("orders", suspend_ms=15_000).fields if code == 11 else pop("orders").fields
    request = Request(code, {**fields, "pollTime": "15000", "more": "x" * 500_000}, b"x" * 500_000)
    for _ in range(2):
        await line.send(BOB.sign(request))
    await eventually(lambda: len(table) == 2)
    assert 2_000_000 < table._chars < 2_010_000
    answer = await line.call(BOB.sign(request))
    assert answer.code == {11: 19, 200050: 209, 200054: 0}[code]
    await line.close()
    await eventually(lambda: table._chars == 0)
