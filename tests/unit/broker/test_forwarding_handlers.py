"""Requests that a broker forwards to consumers."""

import json

import pytest

from skyroute.broker.handlers import forwarding
from skyroute.broker.handlers.forwarding import ForwardingHandlers
from skyroute.message.message_id import encode_offset_id
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.errors import ConnectionLostError
from skyroute.wire.calls.consumers import (
    DirectConsumption,
    RunningQuery,
    encode_consumer_offsets,
    encode_direct_consumption,
    encode_running_query,
)
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.queue_maps import quote_object_keys
from tests.unit.broker.clients import RecordingLine, a_beat, a_consumer, a_peer
from tests.unit.broker.state import BROKER, HOST, State


@pytest.fixture
def on(state: State) -> ForwardingHandlers:
    return ForwardingHandlers(state.clients, state.store, state.topics, state.groups, state.identity, state.step_runner)


def join(state: State, connection: int, client_id: str, version: int = 479) -> RecordingLine:
    peer, line = a_peer(connection)
    state.clients.beat(peer, a_beat(client_id, a_consumer("g", "T")), "JAVA", version, 0.0)
    return line


RUNNING = encode_running_query(RunningQuery("g", "c1"))


async def test_running_info_of_a_consumer_is_forwarded_unchanged(state: State, on: ForwardingHandlers) -> None:
    line = join(state, 1, "c1")
    line.answer = Response(0, "remark", {"a": "b"}, b"body")
    answer = await state.ask(on.running_info, RUNNING)
    assert (answer.code, answer.remark, answer.fields, answer.body) == (
        ResponseCode.SUCCESS,
        "remark",
        {"a": "b"},
        b"body",
    )
    ((request, timeout_s),) = line.calls
    assert (request.code, request.fields) == (RequestCode.GET_CONSUMER_RUNNING_INFO, RUNNING.fields)
    assert timeout_s == 10


async def test_a_request_to_a_consumer_that_is_offline_or_too_old_is_refused(
    state: State, on: ForwardingHandlers
) -> None:
    assert (await state.ask(on.running_info, RUNNING)).remark == "The Consumer <g> <c1> not online"
    join(state, 1, "c2")
    assert (await state.ask(on.running_info, RUNNING)).code == ResponseCode.SYSTEM_ERROR
    join(state, 2, "c1", version=61)
    answer = await state.ask(on.running_info, RUNNING)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert "too low" in answer.remark


async def test_a_consumer_that_does_not_respond_times_out(state: State, on: ForwardingHandlers) -> None:
    join(state, 1, "c1")
    assert (await state.ask(on.running_info, RUNNING)).code == ResponseCode.CONSUME_MSG_TIMEOUT


async def test_a_consumer_that_disconnects_during_a_request_is_reported(state: State, on: ForwardingHandlers) -> None:
    class Cut(RecordingLine):
        async def call(self, request: Request, timeout_s: float) -> Response:
            raise ConnectionLostError(f"cut {request.code} {timeout_s}")

    peer, _ = a_peer(1)
    peer.caller = Cut()
    state.clients.beat(peer, a_beat("c1", a_consumer("g", "T")), "JAVA", 479, 0.0)
    answer = await state.ask(on.running_info, RUNNING)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark is not None
    assert answer.remark.startswith("invoke consumer <g> <c1>")


async def test_a_direct_consumption_carries_the_message(state: State, on: ForwardingHandlers) -> None:
    line = join(state, 1, "c1")
    line.answer = Response(body=b"{}")
    state.topics.put(TopicConfig("T", 1, 1, sys_flag=3))
    state.groups.find("g")
    state.write("T")
    record = state.store.record_at(0)
    assert record is not None
    wanted = DirectConsumption("g", "c1", b"", encode_offset_id(HOST, 0), "T")
    answer = await state.ask(on.consume_directly, encode_direct_consumption(wanted))
    assert answer.body == b"{}"
    ((request, _),) = line.calls
    assert request.body == record
    assert request.fields["brokerName"] == BROKER
    assert (request.fields["topicSysFlag"], request.fields["groupSysFlag"]) == ("3", "0")


@pytest.mark.parametrize("message_id", ["", "nonsense", encode_offset_id(HOST, 1 << 30)])
async def test_a_direct_consumption_of_a_missing_message_is_refused(
    state: State, on: ForwardingHandlers, message_id: str
) -> None:
    join(state, 1, "c1")
    wanted = DirectConsumption("g", "c1", b"", message_id, "T")
    assert (await state.ask(on.consume_directly, encode_direct_consumption(wanted))).code == ResponseCode.SYSTEM_ERROR


async def test_the_offsets_of_all_members_are_returned(state: State, on: ForwardingHandlers) -> None:
    queue = QueueRef("T", BROKER, 0)
    join(state, 1, "c1").answer = Response(body=encode_consumer_offsets({queue: 7}))
    join(state, 2, "c2").answer = Response(body=b"not JSON")
    join(state, 3, "c3")
    join(state, 4, "c4").answer = Response.error("no")
    asked = Request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g"})
    answer = await state.ask(on.consumer_offsets, asked)
    assert answer.code == ResponseCode.SUCCESS
    assert answer.body == b'{"consumerTable":{"c1":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:7}}}'
    assert b'"c1"' in quote_object_keys(answer.body)
    asked.fields["clientAddr"] = "c3"
    assert (await state.ask(on.consumer_offsets, asked)).body == b'{"consumerTable":{}}'
    asked.fields["group"] = "nobody"
    assert (
        await state.ask(on.consumer_offsets, asked)
    ).remark == "No Any Consumer online in the consumer group: [nobody]"


async def test_many_offsets_of_a_member_are_decoded_and_written_in_steps(state: State, on: ForwardingHandlers) -> None:
    offsets = {QueueRef("T", BROKER, queue_id): queue_id for queue_id in range(20_000)}
    join(state, 1, "c1").answer = Response(body=encode_consumer_offsets(offsets))
    asked = Request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g"})
    answer = await state.ask(on.consumer_offsets, asked)
    (table,) = json.loads(quote_object_keys(answer.body))["consumerTable"].values()
    assert len(table) == 20_000
    assert state.step_runner.steps >= 50


async def test_members_cannot_fill_the_memory_with_their_offsets(
    state: State, on: ForwardingHandlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "OFFSETS_BYTES_MAX", 100)
    asked = Request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "T", "group": "g"})
    for connection in (1, 2):
        line = join(state, connection, f"c{connection}")
        line.answer = Response(body=encode_consumer_offsets({QueueRef("T", BROKER, 0): 7}))
    answer = await state.ask(on.consumer_offsets, asked)
    assert answer.remark == (
        "the offsets of group g have more than 100 bytes: request those of one member (clientAddr)"
    )
    asked.fields["clientAddr"] = "c2"
    assert (await state.ask(on.consumer_offsets, asked)).body.startswith(b'{"consumerTable":{"c2":')
