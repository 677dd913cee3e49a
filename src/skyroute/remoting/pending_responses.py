"""The responses of one connection that handlers give later."""

import asyncio
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Final, Protocol, cast

from skyroute.remoting.dispatch import Answer, DeferredResponse, OrderedResponse, Peer, failure
from skyroute.remoting.fair_queue import Share
from skyroute.remoting.lane import CLIENT
from skyroute.remoting.response_writer import ResponseWriter
from skyroute.remoting.server_context import ServerContext
from skyroute.wire.codes import CANCELLABLE_CODES
from skyroute.wire.command import Request, Response

TASKS_MAX: Final = 1024
"""Maximum number of responses of one connection under work before reading stops."""

DEFERRED_MAX: Final = 100_000
"""Maximum number of `DeferredResponse`s of one connection, such as long polls, before reading stops."""


class Responder(Protocol):
    """A connection, as its pending responses know it."""

    context: ServerContext
    peer: Peer
    share: Share
    writer: ResponseWriter

    def count_bytes(self) -> None:
        """Count the buffered bytes again."""

    def resume(self) -> None:
        """Process waiting requests, if they need not wait any longer."""

    def close(self, reason: str | None = None) -> None:
        """End the connection once its responses are sent. A reason is logged as the peer's fault."""


class PendingResponses:
    """Counts them, and writes each when it is there."""

    __slots__ = ("_deferred", "_is_cancellable", "_ordered_task", "frame_bytes", "has_hung_up", "is_full", "tasks")

    def __init__(self) -> None:
        self.tasks = 0
        """Number of responses that a handler works on."""
        self._deferred = 0
        self.frame_bytes = 0
        """Bytes of the requests under work."""
        self._ordered_task: asyncio.Task[None] | None = None
        """Work on a response that all later requests wait for."""
        self._is_cancellable = False
        self.has_hung_up = False
        """Whether the peer reads no more responses. What it sent before is still carried out."""
        self.is_full = False
        """Whether the next request must wait. A plain attribute, since it is read for every request."""

    def _update_full(self) -> None:
        self.is_full = self._ordered_task is not None or self.tasks >= TASKS_MAX or self._deferred >= DEFERRED_MAX

    @property
    def has_cancellable_work(self) -> bool:
        """Whether later requests wait for work that is cancelled if the peer hangs up."""
        return self._ordered_task is not None and self._is_cancellable

    def hang_up(self) -> None:
        """Note that the peer has hung up: cancel work that only served to respond. Other work is finished."""
        self.has_hung_up = True
        if self._ordered_task is not None and self._is_cancellable:
            self._ordered_task.cancel()

    def add(self, connection: Responder, request: Request, frame_bytes: int, answer: Answer) -> None:
        """Write a handler's response once it is there."""
        if isinstance(answer, DeferredResponse):
            self._deferred += 1
            if self._deferred >= DEFERRED_MAX:
                self.is_full = True
            # Only the id is kept: the request may be large, and the response may take long.
            request_id = None if request.is_oneway else request.request_id
            answer.then(partial(self._end_deferred, connection, request_id, request.form))
            return
        self.tasks += 1
        self.frame_bytes += frame_bytes
        connection.count_bytes()
        is_ordered = isinstance(answer, OrderedResponse)
        work = cast("Awaitable[Response]", answer.work if isinstance(answer, OrderedResponse) else answer)
        task = connection.context.spawn(self._finish(connection, request, work))
        task.add_done_callback(partial(self._end_task, connection, work, frame_bytes))
        if is_ordered:
            self._ordered_task = task
            self._is_cancellable = request.code in CANCELLABLE_CODES
        self._update_full()

    def _end_deferred(self, connection: Responder, request_id: int | None, form: int, response: Response) -> None:
        self._deferred -= 1
        had_no_room = self._deferred == DEFERRED_MAX - 1
        if had_no_room:
            self._update_full()
        if connection.writer.is_closing:
            return
        if request_id is not None:
            connection.writer.respond(response, request_id, form)
        if had_no_room:
            connection.resume()

    async def _finish(self, connection: Responder, request: Request, work: Awaitable[Response]) -> None:
        CLIENT.set(connection.share.client.key or connection.peer.address)
        try:
            response = await work
        except Exception as error:  # noqa: BLE001 - one peer's request must not end the others' service
            response = failure(error, request, connection.peer)
        if not connection.writer.is_closing and not request.is_oneway:
            connection.writer.respond(response, request.request_id, request.form)

    def _end_task(
        self, connection: Responder, work: Awaitable[Response], frame_bytes: int, task: "asyncio.Task[None]"
    ) -> None:
        if isinstance(work, Coroutine):
            work.close()  # avoids a warning for a coroutine that was cancelled before it started
        self.tasks -= 1
        self.frame_bytes -= frame_bytes
        if self._ordered_task is task:
            self._ordered_task = None
        self._update_full()
        connection.count_bytes()
        connection.resume()
