"""From a request to its answer: what is answered later, by whom, and what becomes of handlers that raise."""

import asyncio

import pytest

from skyroute.remoting.dispatch import DeferredResponse, Dispatcher, Peer, wait_for_response
from skyroute.remoting.errors import ConnectionLostError, RefusedError
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import FieldError

YES = Response(body=b"yes")


@pytest.mark.parametrize("given_first", [False, True])
def test_a_deferred_response_reaches_its_receiver_in_either_order(given_first: bool) -> None:
    answer, heard = DeferredResponse(), list[Response]()
    if given_first:
        answer.give(YES)
    answer.then(heard.append)
    if not given_first:
        answer.give(YES)
    assert heard == [YES]


async def test_a_deferred_response_can_be_awaited() -> None:
    assert await wait_for_response(YES) is YES
    early, late = DeferredResponse(), DeferredResponse()
    early.give(YES)
    assert await wait_for_response(early) is YES
    waiting = asyncio.ensure_future(wait_for_response(late))
    await asyncio.sleep(0)
    assert not waiting.done()
    late.give(YES)
    assert await waiting is YES


async def test_a_response_after_the_wait_was_cancelled_is_no_error() -> None:
    answer = DeferredResponse()
    waiting = asyncio.ensure_future(wait_for_response(answer))
    await asyncio.sleep(0)
    waiting.cancel()
    answer.give(YES)
    with pytest.raises(asyncio.CancelledError):
        await waiting


class Line:
    """Remembers what a peer is told and asked."""

    def __init__(self) -> None:
        self.told: list[Request] = []

    def send_oneway(self, request: Request) -> None:
        self.told.append(request)

    async def call(self, request: Request, timeout_s: float) -> Response:
        self.told.append(request)
        return Response(body=b"%d" % timeout_s)


async def test_requests_reach_a_peer_until_its_connection_ends() -> None:
    line = Line()
    peer = Peer(1, "10.0.0.9:1", caller=line)
    peer.send_oneway(Request(40))
    assert (await peer.call(Request(39), 3)).body == b"3"
    assert [request.code for request in line.told] == [40, 39]
    peer.gone = True
    peer.send_oneway(Request(40))
    with pytest.raises(ConnectionLostError, match=r"10\.0\.0\.9:1 is gone"):
        await peer.call(Request(39), 3)
    assert len(line.told) == 2


async def test_a_peer_without_a_connection_cannot_be_called() -> None:
    peer = Peer(1, "10.0.0.9:1")
    peer.send_oneway(Request(40))
    with pytest.raises(ConnectionLostError):
        await peer.call(Request(39), 3)


@pytest.mark.parametrize(
    ("error", "response"),
    [
        (RefusedError(17, "no such topic"), Response(17, "no such topic")),
        (FieldError("topic is required"), Response(1, "topic is required")),
        (ZeroDivisionError("ours"), Response(1, "ZeroDivisionError: ours")),
    ],
)
def test_exceptions_of_handlers_become_responses(error: Exception, response: Response) -> None:
    def fail(_request: Request, _peer: Peer) -> Response:
        raise error

    assert Dispatcher({1: fail}).answer(Request(1), Peer(1, "?")) == response


def test_handlers_can_be_set_later() -> None:
    dispatcher = Dispatcher({})
    peer = Peer(1, "?")
    assert dispatcher.answer(Request(7), peer) == Response(3, " request type 7 not supported")
    dispatcher.set_handlers({7: lambda _request, _peer: YES})
    assert dispatcher.answer(Request(7), peer) is YES


def test_repeated_failures_of_a_handler_do_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_request: Request, _peer: Peer) -> Response:
        raise ValueError("embedded null byte")

    peer = Peer(1, "10.0.0.1:1")
    dispatcher = Dispatcher({1: fail})
    answers = [dispatcher.answer(Request(1), peer) for _ in range(1_000)]
    assert {answer.remark for answer in answers if isinstance(answer, Response)} == {"ValueError: embedded null byte"}
    assert len(caplog.records) == 10  # the 1st, 2nd, 4th … 512th


def test_a_refusal_is_answered_with_its_code_reason_and_fields() -> None:
    fields = {"MSG_REGION": "here"}

    def refuse(request: Request, peer: Peer) -> Response:
        raise RefusedError(ResponseCode.NO_PERMISSION, "not here", fields)

    response = Dispatcher({7: refuse}).answer(Request(7), Peer(1, "10.0.0.9:1"))
    assert response == Response(ResponseCode.NO_PERMISSION, "not here", fields)
