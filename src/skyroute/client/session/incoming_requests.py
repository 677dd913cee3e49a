"""Requests that brokers send to this client, such as transaction checks, and their handlers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from skyroute.errors import SkyrouteError
from skyroute.remoting.client import Channel
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 1_000
"""Maximum number of requests that are handled at once; more are refused."""

GROUP_REQUESTS: Final = frozenset(
    {
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
    }
)
"""Requests about a group. A client without the group refuses them, but supports their codes."""

RequestHandler = Callable[[Request, str], Awaitable[Response | None]]
"""Handles a request of the broker at an address; returns None if the request is about another group."""


class Spawn(Protocol):
    """Runs a coroutine in the background."""

    def __call__(self, coroutine: Coroutine[Any, Any, Any], *, name: str) -> "asyncio.Task[Any]": ...


class IncomingRequests:
    """The handlers of requests, by request code."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self.handlers: dict[int, list[RequestHandler]] = {}
        self.running = 0

    def add(self, code: int, handler: RequestHandler) -> None:
        """Add a handler. The first handler of a code that returns a response wins."""
        self.handlers.setdefault(code, []).append(handler)

    def remove(self, code: int, handler: RequestHandler) -> None:
        """Remove a handler."""
        self.handlers[code].remove(handler)

    def receive(self, request: Request, channel: Channel) -> None:
        """Handle a request in the background, and send the response."""
        if self.running >= REQUESTS_MAX:
            remark = f"this client handles {REQUESTS_MAX} requests already: try again later"
            channel.answer(request, Response.error(remark, ResponseCode.SYSTEM_BUSY))
            return
        self.running += 1
        task = self._spawn(self._handle(request, channel), name=f"request {request.code}")
        task.add_done_callback(self._handled)

    def _handled(self, _: "asyncio.Task[None]") -> None:
        self.running -= 1

    async def _handle(self, request: Request, channel: Channel) -> None:
        try:
            for handler in tuple(self.handlers.get(request.code, ())):
                response = await handler(request, channel.address)
                if response is not None:
                    channel.answer(request, response)
                    return
            if request.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
                # The replier has sent its reply: that the requester timed out is not an error of the replier.
                log.info("late reply dropped peer=%s", channel.address)
                channel.answer(request, Response())
            elif request.code in self.handlers or request.code in GROUP_REQUESTS:
                channel.answer(request, Response.error("this client has no producer or consumer of that group"))
            else:
                remark = f" request type {request.code} not supported"
                channel.answer(request, Response.error(remark, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
        except SkyrouteError as error:
            log.warning("request refused code=%d peer=%s reason=%s", request.code, channel.address, error)
            channel.answer(request, Response.error(str(error)))
        except Exception as error:
            log.exception("request failed code=%d peer=%s", request.code, channel.address)
            channel.answer(request, Response.error(f"{type(error).__name__}: {error}"))
