"""Requests that a server sends to the peer of an accepted connection."""

import asyncio
import logging
from typing import Final, TypeAlias

from skyroute.remoting.dispatch import Peer
from skyroute.remoting.errors import CallTimeoutError, ConnectionLostError
from skyroute.remoting.response_writer import ResponseWriter
from skyroute.wire.command import Request, Response
from skyroute.wire.conversation import Conversation
from skyroute.wire.header import as_response

log = logging.getLogger(__name__)

CALLS_MAX: Final = 1024
"""Maximum number of open calls to one peer."""

STALL_GRACE_S: Final = 1.0
"""Maximum extra time to wait for a response if this process was late to check for it."""

SERVER_LANGUAGE: Final = "JAVA"
"""The language that all peers expect of a server."""

PeerConversation: TypeAlias = "Conversation[asyncio.Future[Response]]"


class PeerCalls:
    """Sends requests over an accepted connection."""

    __slots__ = ("_conversation", "_peer", "_writer")

    def __init__(self, peer: Peer, conversation: PeerConversation, writer: ResponseWriter) -> None:
        self._peer = peer
        self._conversation = conversation
        self._writer = writer

    def send_oneway(self, request: Request) -> None:
        """Send a request that has no response. It is dropped if the peer does not read."""
        if not self._writer.is_blocked and not self._writer.is_closing:
            self._writer.put([self._conversation.encode_oneway(request, SERVER_LANGUAGE)], len(request.body))

    def deliver(self, response: Request) -> None:
        """Give a response of the peer to the call that waits for it, if one still does."""
        call = self._conversation.match(response)
        if call is None:
            log.debug("response dropped peer=%s request=%d", self._peer.address, response.request_id)
        elif not call.waiter.done():
            call.waiter.set_result(as_response(response))

    def end(self, reason: str) -> None:
        """Fail all open calls: the connection has ended."""
        for call in self._conversation.end():
            if not call.waiter.done():
                call.waiter.set_exception(ConnectionLostError(f"{self._peer.address} closed the connection: {reason}"))

    async def call(self, request: Request, timeout_s: float) -> Response:
        """Send a request and wait for its response.

        Raises:
            CallTimeoutError: there was no response in time, or too many calls are open.
            ConnectionLostError: the connection ended first.
        """
        conversation = self._conversation
        if self._writer.is_closing:
            raise ConnectionLostError(f"{self._peer.address} is gone")
        if self._writer.is_blocked or len(conversation.calls) >= CALLS_MAX:
            raise CallTimeoutError(
                f"{self._peer.address} has too many open calls: {len(conversation.calls)}, or does not read"
            )
        loop = asyncio.get_running_loop()
        response: asyncio.Future[Response] = loop.create_future()
        call = conversation.begin(request, response, loop.time(), timeout_s, SERVER_LANGUAGE)
        try:
            self._writer.put([call.frame], len(request.body))
            call.frame = b""
            await asyncio.wait({response}, timeout=timeout_s)
            if not response.done():
                # If this process stood still, the response may be received and not read yet.
                await asyncio.wait({response}, timeout=min(max(0.0, loop.time() - call.deadline), STALL_GRACE_S))
            if not response.done():
                raise CallTimeoutError(
                    f"{self._peer.address} did not respond to request {request.code} in {timeout_s:.3g} s"
                )
            return response.result()
        finally:
            conversation.forget(call)
            response.cancel()
