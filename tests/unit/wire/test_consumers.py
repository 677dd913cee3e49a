import json

import pytest

from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.stepwise import run_through
from skyroute.wire.calls import consumers
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.consumers import (
    ConsumePace,
    ConsumeResult,
    DirectConsumption,
    DirectOutcome,
    HeldQueue,
    OffsetReset,
    OffsetsQuery,
    RunningConsumer,
    RunningQuery,
    decode_consumer_offsets,
    decode_direct_consumption,
    decode_direct_outcome,
    decode_offset_reset,
    decode_offsets_query,
    decode_running_consumer,
    decode_running_query,
    encode_consumer_offsets,
    encode_direct_consumption,
    encode_direct_outcome,
    encode_offset_reset,
    encode_offsets_query,
    encode_running_consumer,
    encode_running_query,
)
from skyroute.wire.command import Request
from skyroute.wire.errors import BodyError
from skyroute.wire.queue_maps import encode_queue_map
from tests.unit.wire.golden import golden_line

HEADERS = json.loads(golden_line("client/headers.json"))
QUEUE = QueueRef("TopicTest", "broker-a", 0)
SECOND_QUEUE = QueueRef("TopicTest", "broker-a", 1)
RUNNING = RunningConsumer(
    properties={
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CONSUMER_START_TIMESTAMP": "1700000000000",
        "pullInterval": "0",
    },
    subscriptions=(Subscription("TopicTest", version=1700000000000),),
    queues={
        QUEUE: HeldQueue(
            cached_count=8,
            cached_max_offset=19,
            cached_min_offset=12,
            cached_mib=1,
            commit_offset=12,
            dropped=True,
            last_consume_ms=1700000000003,
            last_lock_ms=1700000000001,
            last_pull_ms=1700000000002,
            locked=True,
            handled_count=3,
            handled_max_offset=11,
            handled_min_offset=9,
            try_unlock_times=2,
        ),
        SECOND_QUEUE: HeldQueue(),
    },
    paces={
        "TopicTest": ConsumePace(
            failed_an_hour=7,
            failed_a_second=0.0001,
            consumed_a_second=100.0,
            consume_ms=0.125,
            pull_ms=1.5,
            pulled_a_second=2.25,
        )
    },
    notes={"k": "v"},
    stacks='main\n\tat "x"',
)


def test_the_state_of_a_consumer_is_encoded_as_by_java() -> None:
    # Java spells one ten-thousandth differently, and means the same.
    assert encode_running_consumer(RUNNING).replace(b":0.0001,", b":1.0E-4,") == golden_line(
        "client/running-consumer.txt"
    )


@pytest.mark.parametrize(("release", "notes"), [("", {"k": "v"}), ("-4.9.7", {})])
def test_the_state_of_a_java_consumer_is_decoded(release: str, notes: dict[str, str]) -> None:
    told = decode_running_consumer(golden_line(f"client/running-consumer{release}.txt"))
    assert told.notes == notes
    assert (told.queues, told.paces, told.stacks) == (RUNNING.queues, RUNNING.paces, RUNNING.stacks)
    assert (told.properties, told.subscriptions) == (RUNNING.properties, RUNNING.subscriptions)


def test_the_state_of_an_idle_consumer_is_encoded() -> None:
    body = encode_running_consumer(RunningConsumer())
    assert json.loads(body) == {
        "mqPopTable": {},
        "mqTable": {},
        "properties": {},
        "statusTable": {},
        "subscriptionSet": [],
        "userConsumerInfo": {},
    }
    assert decode_running_consumer(body) == RunningConsumer()


def test_a_property_that_is_no_text_is_read_as_text() -> None:
    assert decode_running_consumer(b'{"properties":{"a":1,"b":true,"c":"x"}}').properties == {
        "a": "1",
        "b": "true",
        "c": "x",
    }


def test_asking_a_running_consumer_has_javas_fields() -> None:
    request = encode_running_query(RunningQuery("CG", "cid", with_stacks=True))
    assert (request.code, request.fields) == (307, HEADERS["running-query"])
    assert decode_running_query(request) == RunningQuery("CG", "cid", with_stacks=True)
    assert decode_running_query(Request(307, {"consumerGroup": "CG", "clientId": "c"})).with_stacks is False


def test_handling_a_message_directly_has_javas_fields() -> None:
    consumption = DirectConsumption("CG", "cid", b"record", "MID", "TopicTest", "broker-a")
    request = encode_direct_consumption(consumption)
    assert (request.code, request.fields, request.body) == (309, HEADERS["direct-consumption"], b"record")
    assert decode_direct_consumption(request) == consumption


def test_handling_a_message_directly_needs_a_group_only() -> None:
    consumption = DirectConsumption("CG", None, b"")
    assert encode_direct_consumption(consumption).fields == {"consumerGroup": "CG"}
    assert decode_direct_consumption(encode_direct_consumption(consumption)) == consumption


def test_the_outcome_of_a_message_is_javas_to_the_letter() -> None:
    outcome = DirectOutcome(ConsumeResult.RAISED, 12, 'no\n"x"', ordered=True)
    assert encode_direct_outcome(outcome) == golden_line("client/direct-outcome.txt")
    assert decode_direct_outcome(golden_line("client/direct-outcome.txt")) == outcome


@pytest.mark.parametrize("result", list(ConsumeResult))
def test_every_outcome_is_read_as_it_was_written(result: ConsumeResult) -> None:
    outcome = DirectOutcome(result, 0, auto_commit=False)
    assert decode_direct_outcome(encode_direct_outcome(outcome)) == outcome


def test_an_offset_reset_has_javas_fields_and_body() -> None:
    reset = OffsetReset("TopicTest", "CG", {QUEUE: 12, SECOND_QUEUE: 9007199254740993}, 1700000000000)
    request = encode_offset_reset("TopicTest", "CG", 1700000000000, encode_queue_map("offsetTable", reset.offsets))
    # Java's header has a queue too, -1 for all; a client does not look at it.
    assert {**request.fields, "queueId": "-1"} == HEADERS["offset-reset"]
    assert (request.code, request.body) == (220, golden_line("client/offset-reset.txt"))
    assert decode_offset_reset(request) == reset


def test_an_offset_reset_for_cpp_clients_has_a_list() -> None:
    request = Request(220, HEADERS["offset-reset"], body=golden_line("client/offset-reset-for-c.txt"))
    assert decode_offset_reset(request).offsets == {QUEUE: 12}


@pytest.mark.parametrize("body", [b"", b"{}", b'{"offsetTable":null}', b'{"offsetTable":{}}', b'{"offsetTable":[]}'])
def test_an_offset_reset_may_be_empty(body: bytes) -> None:
    assert decode_offset_reset(Request(220, HEADERS["offset-reset"], body=body)).offsets == {}


def test_a_request_for_a_consumers_offsets_has_javas_fields() -> None:
    request = encode_offsets_query(OffsetsQuery("TopicTest", "CG"))
    assert (request.code, request.fields) == (221, HEADERS["offsets-query"])
    assert decode_offsets_query(request) == OffsetsQuery("TopicTest", "CG")
    to_one = OffsetsQuery("TopicTest", "CG", "10.0.0.1:5")
    assert decode_offsets_query(encode_offsets_query(to_one)) == to_one


def test_a_consumers_offsets_are_decoded_from_java_and_from_us() -> None:
    for body in (golden_line("client/consumer-offsets.txt"), encode_consumer_offsets({QUEUE: 12})):
        assert run_through(decode_consumer_offsets(body)) == {QUEUE: 12}


def test_offsets_of_too_many_queues_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "COLONS_MAX", 4 * 3 + 1)
    body = encode_consumer_offsets({QueueRef("T", "b", number): 1 for number in range(3)})
    assert len(run_through(decode_consumer_offsets(body))) == 3
    for longer in (
        encode_consumer_offsets({QueueRef("T", "b", number): 1 for number in range(4)}),
        b'{"messageQueueTable":{' + b",".join(b'"%d":1' % number for number in range(14)) + b"}}",
    ):
        with pytest.raises(BodyError, match="more than"):
            run_through(decode_consumer_offsets(longer))


def test_line_breaks_that_go_leaves_as_they_are() -> None:
    """Go's client 2.1.2 writes its stacks into JSON by hand."""
    running = decode_running_consumer(b'{"jstack":"goroutine 1\n\tmain.go:3\n","properties":{"a":"b"}}')
    assert running.stacks == "goroutine 1\n\tmain.go:3\n"
    assert running.properties == {"a": "b"}


def test_an_empty_consumer_state_is_refused() -> None:
    with pytest.raises(BodyError, match="response is empty"):
        decode_running_consumer(b"")
