"""Request ids, open calls, deadlines, events and the outbox of one connection."""

import math

import pytest

from skyroute.wire.command import FLAG_ONEWAY, FLAG_RESPONSE, Request
from skyroute.wire.conversation import Conversation
from skyroute.wire.header import decode_command, encode_request

ECHO = 3


def response(request_id: int, body: bytes = b"") -> bytes:
    return encode_request(Request(0, flag=FLAG_RESPONSE, body=body), request_id)


@pytest.fixture
def talk() -> Conversation[str]:
    return Conversation()


def test_each_request_gets_the_next_id(talk: Conversation[str]) -> None:
    first, second = (talk.begin(Request(ECHO), name, 0.0, 3.0) for name in ("a", "b"))
    oneway = decode_command(talk.encode_oneway(Request(ECHO)))
    assert [first.request_id, second.request_id, oneway.request_id] == [1, 2, 3]
    assert decode_command(second.frame).request_id == 2
    assert list(talk.calls) == [1, 2], "a one-way request opens no call"


def test_request_ids_stay_positive_in_32_bits(talk: Conversation[str]) -> None:
    talk._last_id = 0x7FFFFFFE
    ids = [talk.begin(Request(ECHO), "", 0.0, 3.0).request_id for _ in range(3)]
    assert ids == [0x7FFFFFFF, 0, 1]


def test_a_oneway_request_is_encoded_without_changing_it(talk: Conversation[str]) -> None:
    request = Request(ECHO)
    assert decode_command(talk.encode_oneway(request)).flag == FLAG_ONEWAY
    assert request.flag == 0


def test_responses_are_matched_to_calls_in_any_order(talk: Conversation[str]) -> None:
    talk.begin(Request(ECHO), "a", 0.0, 3.0)
    talk.begin(Request(ECHO), "b", 0.0, 3.0)
    events = talk.receive(response(2, b"2") + response(1, b"1"))
    assert [(call and call.waiter, command.body) for call, command in events] == [("b", b"2"), ("a", b"1")]
    assert not talk.calls


def test_a_response_to_no_open_call_is_no_event(talk: Conversation[str]) -> None:
    call = talk.begin(Request(ECHO), "a", 0.0, 3.0)
    talk.forget(call)
    assert talk.receive(response(call.request_id)) == []
    assert talk.failure is None


def test_requests_of_the_peer_are_events_without_a_call(talk: Conversation[str]) -> None:
    ((call, command),) = talk.receive(encode_request(Request(40, {"topic": "T"}), 9))
    assert (call, command.code, command.request_id, command.fields) == (None, 40, 9, {"topic": "T"})


def test_bytes_may_come_one_at_a_time(talk: Conversation[str]) -> None:
    talk.begin(Request(ECHO), "a", 0.0, 3.0)
    data = response(1, b"body")
    events = [event for at in range(len(data)) for event in talk.receive(data[at : at + 1])]
    assert [command.body for _, command in events] == [b"body"]
    assert talk.reads == len(data)


@pytest.mark.parametrize("broken", [bytes(100), b"\0\0\0\x08\0\0\0\x04nope"], ids=["length", "header"])
def test_events_before_a_broken_frame_are_returned(talk: Conversation[str], broken: bytes) -> None:
    talk.begin(Request(ECHO), "a", 0.0, 3.0)
    events = talk.receive(response(1) + broken)
    assert len(events) == 1
    assert talk.failure is not None


def test_calls_expire_at_their_deadline(talk: Conversation[str]) -> None:
    assert talk.next_deadline == math.inf
    talk.begin(Request(ECHO), "late", 10.0, 3.0)
    talk.begin(Request(ECHO), "soon", 10.0, 1.0)
    assert talk.next_deadline == 11.0
    assert [call.waiter for call in talk.expire(10.9)] == []
    assert [call.waiter for call in talk.expire(11.0)] == ["soon"]
    assert talk.next_deadline == 13.0
    assert [call.waiter for call in talk.expire(20.0)] == ["late"]
    assert talk.next_deadline == math.inf


def test_a_call_knows_whether_the_peer_sent_anything_since(talk: Conversation[str]) -> None:
    talk.receive(b"\0")
    call = talk.begin(Request(ECHO), "a", 0.0, 3.0)
    assert call.reads_before == talk.reads
    talk.receive(b"\0")
    assert call.reads_before < talk.reads


def test_the_outbox_collects_pieces(talk: Conversation[str]) -> None:
    assert talk.put([b"a", b"bc"], 3)
    assert not talk.put([memoryview(b"d")], 1)
    assert talk.outbox_bytes == 4
    assert b"".join(talk.take_outbox()) == b"abcd"
    assert (talk.take_outbox(), talk.outbox_bytes) == ([], 0)
    assert talk.put([b"e"], 1), "the first since it was taken"


def test_the_end_closes_all_calls_and_frees_input_and_output(talk: Conversation[str]) -> None:
    talk.begin(Request(ECHO), "a", 0.0, 3.0)
    talk.put([b"unsent"], 6)
    talk.receive(response(1, bytes(1000))[:-1])
    assert [call.waiter for call in talk.end()] == ["a"]
    assert (talk.calls, talk.take_outbox(), talk.decoder.held_bytes) == ({}, [], 0)
