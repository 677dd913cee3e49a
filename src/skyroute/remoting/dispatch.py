"""From a request to the function that answers it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from skyroute.errors import SkyrouteError
from skyroute.remoting.errors import ConnectionLostError, RefusedError
from skyroute.wire.codes import V5_3_1, ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.fast_path import FastPath

log = logging.getLogger(__name__)

_GO_AWAY: Final = Response(ResponseCode.GO_AWAY, "please go away")


class Caller(Protocol):
    """Sends requests to a peer."""

    def send_oneway(self, request: Request) -> None: ...

    async def call(self, request: Request, timeout_s: float) -> Response: ...


@dataclass(slots=True)
class Peer:
    """Who is asking."""

    connection: int
    """A number no other connection of this process ever has."""
    address: str
    """For people: where the peer says it is."""
    refusals: int = 0
    """How many of its requests were refused."""
    gone: bool = False
    """The connection has ended: nobody may be registered through it any more."""
    caller: Caller | None = field(default=None, repr=False, compare=False)

    def send_oneway(self, request: Request) -> None:
        """Send a request that has no response. Does nothing if the connection has ended."""
        if self.caller is not None and not self.gone:
            self.caller.send_oneway(request)

    async def call(self, request: Request, timeout_s: float) -> Response:
        """Send a request and wait for its response.

        Raises:
            CallTimeoutError: there was no response in time.
            ConnectionLostError: the connection ended first.
        """
        if self.caller is None or self.gone:
            raise ConnectionLostError(f"{self.address} is gone")
        return await self.caller.call(request, timeout_s)

    def count_refusal(self) -> bool:
        """Count a refusal; true for the 1st, 2nd, 4th, 8th …, so that one peer cannot flood the log."""
        self.refusals += 1
        return self.refusals.bit_count() == 1


@dataclass(frozen=True, slots=True)
class OrderedResponse:
    """A response that takes a while; later requests of the same connection wait for it.

    If the connection ends, work on a request in `wire.codes.CANCELLABLE_CODES` is cancelled, and all other work is finished.
    See `remoting/stepwise.py` for long work in steps.
    """

    work: Awaitable[Response]


class DeferredResponse:
    """An answer that somebody gives later, exactly once. It costs no task, so a great many may be waited for."""

    __slots__ = ("_receive", "_response")

    def __init__(self) -> None:
        self._receive: Callable[[Response], None] | None = None
        self._response: Response | None = None

    def give(self, response: Response) -> None:
        """Answer, also before the connection knows that it has to wait."""
        if self._receive is None:
            self._response = response
        else:
            self._receive(response)

    def then(self, receive: Callable[[Response], None]) -> None:
        """Say who wants the answer."""
        self._receive = receive
        if self._response is not None:
            receive(self._response)


async def wait_for_response(answer: "Response | DeferredResponse") -> Response:
    """Wait for an answer that may be given later."""
    if isinstance(answer, Response):
        return answer
    given: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    answer.then(lambda response: None if given.done() else given.set_result(response))
    return await given


Answer = Response | OrderedResponse | DeferredResponse | Awaitable[Response]
Handler = Callable[[Request, Peer], Answer]
"""Answers one kind of request. A plain function runs whole before anything else does."""


class Dispatcher:
    """Answers requests by their code; turns whatever a handler raises into an answer."""

    __slots__ = ("_draining", "_handlers", "fast_path", "read_at")

    def __init__(self, handlers: Mapping[int, Handler], fast_path: FastPath | None = None) -> None:
        self._handlers = dict(handlers)
        self._draining = False
        self.read_at = 0.0
        """When the requests that are about to be answered were read: asking the clock for each would be dear."""
        self.fast_path = fast_path or FastPath()
        """Cached responses, which the handlers' owner makes it forget after a change, and direct decoders."""

    def set_handlers(self, handlers: Mapping[int, Handler]) -> None:
        """Say who answers what, for a server whose handlers need to know where it listens."""
        self._handlers = dict(handlers)

    def drain(self) -> None:
        """Be about to stop: send away peers that understand it, and still serve the others."""
        self._draining = True
        self.fast_path.forget()

    def keep(self, frame: bytes, request: Request, response: Response) -> None:
        """Cache a response for equal requests."""
        if not self._draining:
            self.fast_path.remember(frame, request, response)

    def answer(self, request: Request, peer: Peer) -> Answer:
        """Carry out a request."""
        if self._draining and request.version > V5_3_1:
            return _GO_AWAY
        handler = self._handlers.get(request.code)
        if handler is None:
            # The blank before the text is the protocol's.
            return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
        try:
            return handler(request, peer)
        except Exception as error:  # noqa: BLE001 - one peer's request must not end the others' service
            return failure(error, request, peer)


def failure(error: Exception, request: Request, peer: Peer) -> Response:
    """Answer for a handler that raised: the peer's fault with its reason, ours with a log line of its own."""
    if isinstance(error, SkyrouteError):
        if peer.count_refusal():
            log.log(
                logging.INFO if isinstance(error, RefusedError) else logging.WARNING,
                "request refused code=%d peer=%s refusals=%d reason=%s",
                request.code,
                peer.address,
                peer.refusals,
                error,
            )
        if isinstance(error, RefusedError):
            return Response(error.code, str(error), None if error.fields is None else dict(error.fields))
        return Response.error(str(error))
    if peer.count_refusal():  # rate-limited: a traceback is long, and a peer can repeat the request
        log.error(
            "request failed code=%d peer=%s refusals=%d", request.code, peer.address, peer.refusals, exc_info=error
        )
    return Response.error(f"{type(error).__name__}: {error}")
