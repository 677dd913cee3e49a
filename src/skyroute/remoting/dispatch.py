"""Passes each request to the handler of its code."""

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
    """The other end of an accepted connection."""

    connection: int
    """Number of the connection, unique in this process."""
    address: str
    """The peer's address, for logs; behind a proxy, the client's. Changed with `set_address`."""
    refusals: int = 0
    """Number of its requests that were refused."""
    gone: bool = False
    """Whether the connection has ended: it cannot hold a registration any more."""
    certificate_names: tuple[str, ...] = ()
    """Subject and alternative names of its client certificate, if the server has verified one."""
    user: str = ""
    """The user of its last request that access control has allowed; empty if none was needed."""
    caller: Caller | None = field(default=None, repr=False, compare=False)
    source: str = field(init=False, repr=False, compare=False)
    """The peer's IP address, without the port; behind a proxy, the client's."""

    def __post_init__(self) -> None:
        self.set_address(self.address)

    def set_address(self, address: str) -> None:
        """Set the address, once it is known."""
        self.address, self.source = address, address.rpartition(":")[0].strip("[]")

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
        """Count a refusal; return whether to log it: the 1st, 2nd, 4th, 8th …, so that a peer cannot flood the log."""
        self.refusals += 1
        return self.refusals.bit_count() == 1


@dataclass(frozen=True, slots=True)
class OrderedResponse:
    """A response that takes a while; later requests of the same connection wait for it.

    If the connection ends, work on a request in `wire.codes.CANCELLABLE_CODES` is cancelled; other work is finished.
    See `remoting/stepwise.py` for long work in steps.
    """

    work: Awaitable[Response]


class DeferredResponse:
    """A response that is given later, exactly once. It needs no task, so a connection may have very many."""

    __slots__ = ("_receive", "_response")

    def __init__(self) -> None:
        self._receive: Callable[[Response], None] | None = None
        self._response: Response | None = None

    def give(self, response: Response) -> None:
        """Set the response. This may happen before `then`."""
        if self._receive is None:
            self._response = response
        else:
            self._receive(response)

    def then(self, receive: Callable[[Response], None]) -> None:
        """Set the receiver of the response."""
        self._receive = receive
        if self._response is not None:
            receive(self._response)


async def wait_for_response(answer: "Response | DeferredResponse") -> Response:
    """Wait for a response that may be given later."""
    if isinstance(answer, Response):
        return answer
    given: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    answer.then(lambda response: None if given.done() else given.set_result(response))
    return await given


Answer = Response | OrderedResponse | DeferredResponse | Awaitable[Response]
Handler = Callable[[Request, Peer], Answer]
"""Handles one kind of request. A plain function runs to its end before anything else runs."""


class Checker(Protocol):
    """Decides about requests before their handlers run."""

    @property
    def is_reusable(self) -> bool:
        """Whether a request with the same bytes as the last one may get its response without a check."""

    def check(self, request: Request, peer: Peer) -> Response | None:
        """Return the response that refuses a request; None if its handler may run."""


class Dispatcher:
    """Calls the handler of a request's code; turns exceptions into responses.

    Args:
        handlers: The handler of each request code.
        fast_path: Fast paths. With a checker, direct decoders must keep the fields of a signature.
        checker: Decides about requests; None: all are allowed.
    """

    __slots__ = ("_checker", "_draining", "_handlers", "fast_path", "read_at")

    def __init__(
        self, handlers: Mapping[int, Handler], fast_path: FastPath | None = None, checker: Checker | None = None
    ) -> None:
        self._handlers = dict(handlers)
        self._checker = checker
        self._draining = False
        self.read_at = 0.0
        """When the current requests were read. Reading the clock for each request would be expensive."""
        self.fast_path = fast_path or FastPath()
        """Cached responses, which the handlers' owner makes it forget after a change, and direct decoders."""

    def set_handlers(self, handlers: Mapping[int, Handler]) -> None:
        """Replace the handlers, for a server whose handlers need its address."""
        self._handlers = dict(handlers)

    def drain(self) -> None:
        """Prepare to stop: respond GO_AWAY to peers that understand it, and serve the others."""
        self._draining = True
        self.fast_path.forget()

    def keep(self, frame: bytes, request: Request, response: Response) -> None:
        """Cache a response for equal requests."""
        if not self._draining and (self._checker is None or self._checker.is_reusable):
            self.fast_path.remember(frame, request, response)

    def answer(self, request: Request, peer: Peer) -> Answer:
        """Process a request."""
        if self._draining and request.version > V5_3_1:
            return _GO_AWAY
        if self._checker is not None:  # before the handler is looked up: a stranger does not learn which codes exist
            try:
                refusal = self._checker.check(request, peer)
            except Exception as error:  # noqa: BLE001 - a check that fails must refuse
                return failure(error, request, peer)
            if refusal is not None:
                return refusal
        handler = self._handlers.get(request.code)
        if handler is None:
            # Apache's text begins with a blank as well.
            return Response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {request.code} not supported")
        try:
            return handler(request, peer)
        except Exception as error:  # noqa: BLE001 - one peer's request must not end the others' service
            return failure(error, request, peer)


def failure(error: Exception, request: Request, peer: Peer) -> Response:
    """Return the response for an exception. Other exceptions than `SkyrouteError` are logged with a traceback."""
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
