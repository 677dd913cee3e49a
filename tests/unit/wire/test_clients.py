import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.stepwise import run_through
from skyroute.wire.calls.clients import (
    GROUPS_MAX,
    TAGS_MAX,
    ClientCheck,
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
    StartFrom,
    Subscription,
    Unregistration,
    decode_client_check,
    decode_consumer_group,
    decode_heartbeat,
    decode_locked,
    decode_locking,
    decode_members,
    decode_unregistration,
    encode_client_check,
    encode_heartbeat,
    encode_heartbeat_answer,
    encode_lock,
    encode_member_query,
    encode_members,
    encode_members_changed,
    encode_unlock,
    encode_unregistration,
    locked_parts,
)
from skyroute.wire.calls.consumers import (
    RunningConsumer,
    decode_consumer_offsets,
    decode_direct_outcome,
    decode_offset_reset,
    decode_running_consumer,
    encode_running_consumer,
)
from skyroute.wire.command import Request
from skyroute.wire.errors import BodyError, FieldError, WireError
from tests.unit.wire.golden import golden_line

HEADERS = json.loads(golden_line("client/headers.json"))
QUEUE = QueueRef("TopicTest", "broker-a", 0)
SECOND_QUEUE = QueueRef("TopicTest", "broker-a", 1)
TAGS = Subscription("TopicTest", "TagA || TagB", "TAG", 1700000000000, ("TagA", "TagB"), (2598919, 2598920))
CONSUMER = ConsumerData("CG", ConsumeType.PUSH, MessageModel.CLUSTERING, StartFrom.LAST_OFFSET, (TAGS,))
SQL = Subscription("TopicTest", "a > 5 AND b = 'x/中'", "SQL92", 1700000000000)


def heartbeat_of(body: bytes | str) -> Heartbeat:
    return decode_heartbeat(Request(34, body=body.encode() if isinstance(body, str) else body))


def test_a_heartbeat_is_javas_to_the_letter() -> None:
    request = encode_heartbeat("10.0.0.1@1#2", ["PG"], [CONSUMER])
    assert (request.code, request.fields, request.body) == (34, {}, golden_line("client/heartbeat.txt"))


def test_a_heartbeat_is_the_one_of_the_specification() -> None:
    text = (
        '{"clientID":"10.0.0.1@1#2","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","groupName":"CG","messageModel":"CLUSTERING","subscriptionDataSet":'
        '[{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB",'
        '"subVersion":1700000000000,"tagsSet":["TagA","TagB"],"topic":"TopicTest"}],"unitMode":false}],'
        '"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"PG"}],"withoutSub":false}'
    )
    assert encode_heartbeat("10.0.0.1@1#2", ["PG"], [CONSUMER]).body.decode() == text


@pytest.mark.parametrize("release", ["", "-4.9.7"])
def test_javas_heartbeats_are_read(release: str) -> None:
    assert heartbeat_of(golden_line(f"client/heartbeat{release}.txt")) == Heartbeat(
        "10.0.0.1@1#2", ("PG",), (CONSUMER,)
    )


def test_a_heartbeat_of_go_has_its_codes_as_text_and_nanoseconds() -> None:
    heartbeat = heartbeat_of(
        '{"clientID":"c@1","producerDataSet":[],"consumerDataSet":[{"groupName":"CG","consumeType":"CONSUME_PASSIVELY",'
        '"messageModel":"Clustering","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":'
        '[{"classFilterMode":false,"topic":"TopicTest","subString":"TagA","tagsSet":["TagA"],"codeSet":["2598919"],'
        '"subVersion":1700000000000000000,"expressionType":"TAG"}],"unitMode":false}]}'
    )
    subscription = Subscription("TopicTest", "TagA", "TAG", 1700000000000000000, ("TagA",), (2598919,))
    consumer = ConsumerData("CG", ConsumeType.PUSH, MessageModel.CLUSTERING, StartFrom.FIRST_OFFSET, (subscription,))
    assert heartbeat == Heartbeat("c@1", (), (consumer,))


def test_a_heartbeat_of_cpp_has_enum_indexes_and_nulls() -> None:
    heartbeat = heartbeat_of(
        '{"clientID":"c@1","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"CG","messageModel":0,'
        '"subscriptionDataSet":null}],"producerDataSet":null}\n'
    )
    consumer = ConsumerData("CG", ConsumeType.PUSH, MessageModel.BROADCASTING, StartFrom.FIRST_OFFSET)
    assert heartbeat == Heartbeat("c@1", (), (consumer,))


def test_the_second_version_of_heartbeats_is_read_and_written() -> None:
    consumer = ConsumerData("CG", ConsumeType.PULL, MessageModel.CLUSTERING, StartFrom.TIMESTAMP, unit_mode=True)
    request = encode_heartbeat("c@1", [], [consumer], fingerprint=-7, without_subscriptions=True)
    heartbeat = Heartbeat("c@1", (), (consumer,), fingerprint=-7, without_subscriptions=True)
    assert decode_heartbeat(request) == heartbeat


@pytest.mark.parametrize(("wants_whole", "said"), [(True, "true"), (False, "false")])
def test_the_response_to_a_heartbeat_requests_subscriptions_or_not(wants_whole: bool, said: str) -> None:
    fields = encode_heartbeat_answer(wants_whole=wants_whole).fields
    assert fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": said}


@pytest.mark.parametrize(
    ("said", "meant"),
    [("null", StartFrom.LAST_OFFSET), ("5", StartFrom.TIMESTAMP), ('"consume_from_max_offset"', StartFrom.MAX_OFFSET)],
)
def test_consume_from_where_may_be_a_name_an_index_or_absent(said: str, meant: StartFrom) -> None:
    text = f'{{"clientID":"c","consumerDataSet":[{{"groupName":"g","consumeFromWhere":{said}}}]}}'
    assert heartbeat_of(text).consumers[0].start_from is meant


HOSTILE_BODIES = [
    b"",
    b"null",
    b"[]",
    b"7",
    b"\xff\xfe",
    b'{"clientID":',
    b"{" * 100_000,
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"a":[' * 50_000,
]


@pytest.mark.parametrize(
    "body",
    [
        *HOSTILE_BODIES,
        b"{}",
        b'{"clientID":null}',
        b'{"clientID":""}',
        b'{"clientID":"a\\nb"}',
        b'{"clientID":["c"]}',
        b'{"clientID":"c","producerDataSet":[{}]}',
        b'{"clientID":"c","producerDataSet":[{"groupName":""}]}',
        b'{"clientID":"c","consumerDataSet":{}}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":"ALL"}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":2}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":-1}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"\\u0000"}]}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T","codeSet":["x"]}]}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T","codeSet":[1e30]}]}]}',
        b'{"clientID":"c","producerDataSet":[' + b'{"groupName":"g"},' * GROUPS_MAX + b'{"groupName":"g"}]}',
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T","tagsSet":["t"'
        + b',"t"' * TAGS_MAX
        + b"]}]}]}",
    ],
)
def test_a_heartbeat_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        heartbeat_of(body)


def test_leaving_a_group_has_javas_fields() -> None:
    request = encode_unregistration("cid", consumer_group="CG")
    assert (request.code, request.fields) == (35, HEADERS["unregistration"])
    assert decode_unregistration(request) == Unregistration("cid", consumer_group="CG")
    assert decode_unregistration(encode_unregistration("cid", producer_group="PG")) == Unregistration("cid", "PG")


@pytest.mark.parametrize("fields", [{}, {"clientID": ""}, {"clientID": "c", "producerGroup": "\0"}])
def test_leaving_without_a_name_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(FieldError):
        decode_unregistration(Request(35, fields))


@pytest.mark.parametrize(("encode", "code"), [(encode_member_query, 38), (encode_members_changed, 40)])
def test_requests_and_notices_of_members_have_the_group(encode: Callable[[str], Request], code: int) -> None:
    request = encode("CG")
    assert (request.code, request.fields) == (code, {"consumerGroup": "CG"})
    assert decode_consumer_group(request) == "CG"


def test_members_of_no_group_are_refused() -> None:
    with pytest.raises(FieldError, match="consumerGroup"):
        decode_consumer_group(Request(38))


def test_members_are_written_as_java_writes_them() -> None:
    members = ["10.0.0.1@1#2", "10.0.0.2@3#4"]
    assert encode_members(members) == golden_line("client/members.txt")
    assert decode_members(golden_line("client/members.txt")) == members


@pytest.mark.parametrize("body", [b"{}", b'{"consumerIdList":null}', b'{"consumerIdList":[]}'])
def test_a_group_may_have_no_members(body: bytes) -> None:
    assert decode_members(body) == []


def test_locking_is_javas_to_the_letter() -> None:
    lock, unlock = encode_lock("cid", "CG", [QUEUE]), encode_unlock("cid", "CG", [QUEUE])
    assert (lock.code, unlock.code) == (41, 42)
    assert lock.body == unlock.body == golden_line("client/lock.txt")
    assert decode_locking(lock) == decode_locking(unlock)
    assert [queue.value() for queue in decode_locking(lock).queues] == [QUEUE]


def test_locked_queues_are_javas_to_the_letter() -> None:
    assert "".join(locked_parts([QUEUE])).encode() == golden_line("client/locked.txt")
    assert decode_locked(golden_line("client/locked.txt")) == {QUEUE}
    assert decode_locked(b"{}") == frozenset()


def test_a_check_of_a_subscription_is_javas_to_the_letter() -> None:
    request = encode_client_check("cid", "CG", SQL, "ns")
    assert (request.code, request.body) == (46, golden_line("client/client-check.txt"))
    assert decode_client_check(request) == ClientCheck("cid", "CG", SQL, "ns")


def test_a_check_without_namespace_has_no_namespace_field() -> None:
    request = encode_client_check("cid", "CG", SQL)
    assert b"namespace" not in request.body
    assert decode_client_check(request).namespace is None


def test_letters_that_no_encoding_has_are_replaced() -> None:
    subscription = Subscription("TopicTest", "\ud800")
    consumer = ConsumerData("CG", ConsumeType.PUSH, MessageModel.CLUSTERING, StartFrom.LAST_OFFSET, (subscription,))
    assert decode_heartbeat(encode_heartbeat("c", [], [consumer])).consumers[0].subscriptions[0].expression == "?"
    assert decode_running_consumer(encode_running_consumer(RunningConsumer(stacks="\ud800"))).stacks == "?"


READERS: list[Callable[[bytes], Any]] = [
    heartbeat_of,
    decode_members,
    lambda body: decode_locking(Request(41, body=body)),
    decode_locked,
    lambda body: decode_client_check(Request(46, body=body)),
    decode_running_consumer,
    decode_direct_outcome,
    lambda body: run_through(decode_consumer_offsets(body)),
    lambda body: decode_offset_reset(Request(220, HEADERS["offset-reset"], body=body)),
]
CAPTURED = [
    golden_line(f"client/{name}.txt")
    for name in (
        "heartbeat",
        "members",
        "lock",
        "locked",
        "client-check",
        "running-consumer",
        "direct-outcome",
        "consumer-offsets",
        "offset-reset",
    )
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("body", [body for body in HOSTILE_BODIES if body])
def test_a_body_that_cannot_be_read_is_refused(read: Callable[[bytes], Any], body: bytes) -> None:
    with pytest.raises(BodyError):
        read(body)


@pytest.mark.parametrize(("read", "whole"), list(zip(READERS, CAPTURED, strict=True)))
def test_every_truncation_is_refused(read: Callable[[bytes], Any], whole: bytes) -> None:
    read(whole)
    for length in range(1, len(whole)):
        with pytest.raises(BodyError):
            read(whole[:length])


@pytest.mark.parametrize(
    "body",
    [
        b'{"mqSet":[{}],"clientId":"c","consumerGroup":"g"}',
        b'{"mqSet":[{"topic":"T","queueId":0.5}],"clientId":"c","consumerGroup":"g"}',
        b'{"mqSet":[{"topic":"","queueId":0}],"clientId":"c","consumerGroup":"g"}',
        b'{"mqSet":[],"clientId":"","consumerGroup":"g"}',
        b'{"mqSet":[],"clientId":"c","consumerGroup":"\\u0007"}',
        b'{"mqSet":[]}',
    ],
)
def test_a_lock_of_nothing_that_has_a_name_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        [queue.value() for queue in decode_locking(Request(41, body=body)).queues]


@given(st.sampled_from(CAPTURED), st.data())
def test_any_body_is_read_or_a_wire_error(captured: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(captured)))
    splice = data.draw(
        st.sampled_from([b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"null", b"1e9"]) | st.binary(max_size=4)
    )
    body = captured[:at] + splice + captured[at + data.draw(st.integers(0, 8)) :]
    for read in READERS:
        with suppress(WireError):
            assert read(body) is not None
