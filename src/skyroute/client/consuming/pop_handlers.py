"""Calls a handler with the messages of a simple consumer, acknowledges them, and renews those of slow handlers."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final, Protocol

from skyroute.client.threads import Threads
from skyroute.errors import SkyrouteError
from skyroute.message.message import StoredMessage
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.wire.calls.pop import POP_COUNT_MAX

log = logging.getLogger(__name__)

RETRY_DELAYS_S: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""How long a message whose handler failed stays invisible, by the number of its retries; as in Java's client."""

FAILED_RECEIVE_S: Final = 1.0
"""Pause after a failed request."""

_CALLER: "Final[ContextVar[HandlerCalls | None]]" = ContextVar("_CALLER", default=None)
"""Whose handler runs in this context."""

Handler = Callable[[StoredMessage], Awaitable[object] | object]


class Receiver(Protocol):
    """What a simple consumer does for `HandlerCalls`."""

    async def receive(
        self, count_max: int = ..., *, wait_s: float = ..., invisible_s: float = ...
    ) -> list[StoredMessage]:
        """Return messages that are invisible to others for a while."""
        ...

    async def ack(self, *messages: StoredMessage) -> None:
        """Acknowledge messages."""
        ...

    async def change_invisible_time(self, message: StoredMessage, invisible_s: float) -> StoredMessage:
        """Return the message with its new receipt."""
        ...

    async def make_dead_letter(self, message: StoredMessage) -> None:
        """Copy a message to the dead-letter queue."""
        ...


class HandlerCalls:
    """The running handlers of one call of `SimpleConsumer.run`."""

    def __init__(
        self,
        receiver: Receiver,
        group: str,
        handler: Handler,
        monotonic: Callable[[], float],
        *,
        concurrency: int,
        invisible_s: float,
        retries_max: int,
        ordered: bool,
    ) -> None:
        self._receiver = receiver
        self._group = group
        self._handler = handler
        self._monotonic = monotonic
        self._concurrency = concurrency
        self._free = asyncio.Semaphore(concurrency)
        self._invisible_s = invisible_s
        self._retries_max = retries_max
        self._ordered = ordered
        self._threads = Threads(concurrency, f"simple-consumer-{group}")
        self._failures = LogBackoff()
        self._receiving: asyncio.Task[list[StoredMessage]] | None = None
        self._stopping = False
        self._task: asyncio.Task[Any] | None = None
        self._ended = asyncio.Event()

    @property
    def is_calling(self) -> bool:
        """Whether the current task or thread runs in the handler."""
        return _CALLER.get() is self

    async def run(self) -> None:
        """Receive and handle messages until `stop`, or until cancelled."""
        self._task = asyncio.current_task()
        try:
            async with asyncio.TaskGroup() as tasks:
                while not self._stopping:
                    async with self._free:
                        pass  # receive only when a handler can be called
                    for batch in self._batches(await self._receive()):
                        tasks.create_task(self._handle_batch(_Kept(self._receiver, batch, self._invisible_s)))
        finally:
            self._threads.stop()
            self._ended.set()

    async def stop(self, timeout_s: float) -> None:
        """Receive no more, and wait for running handlers; after `timeout_s` they are cancelled."""
        self._stopping = True
        if self._receiving is not None:
            self._receiving.cancel()
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            log.warning("handlers cancelled group=%s", self._group)
            if self._task is not None:
                self._task.cancel()

    async def _receive(self) -> list[StoredMessage]:
        count = min(self._concurrency, POP_COUNT_MAX)
        if self._stopping:
            return []
        self._receiving = asyncio.ensure_future(self._receiver.receive(count, invisible_s=self._invisible_s))
        try:
            await asyncio.wait({self._receiving})
            return [] if self._receiving.cancelled() else self._receiving.result()
        except SkyrouteError as error:
            if not self._stopping:
                suppressed = self._failures.suppressed(self._group, self._monotonic())
                if suppressed is not None:
                    log.warning("receive failed group=%s reason=%s suppressed=%d", self._group, error, suppressed)
                await asyncio.sleep(FAILED_RECEIVE_S)
            return []
        finally:
            self._receiving.cancel()
            self._receiving = None

    def _batches(self, messages: Iterable[StoredMessage]) -> list[list[StoredMessage]]:
        """Return messages that are handled one after the other: those of a queue if ordered, else single ones."""
        if not self._ordered:
            return [[message] for message in messages]
        by_queue: dict[tuple[str, str, int], list[StoredMessage]] = {}
        for message in messages:
            by_queue.setdefault((message.topic, message.broker_name, message.queue_id), []).append(message)
        return [sorted(batch, key=lambda message: message.queue_offset) for batch in by_queue.values()]

    async def _handle_batch(self, kept: "_Kept") -> None:
        # Messages that wait for a free handler are renewed too.
        renewal = asyncio.ensure_future(kept.renew())
        try:
            async with self._free:
                for at in range(len(kept.messages)):
                    if not await self._handle(kept, at):
                        return
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)

    async def _handle(self, kept: "_Kept", at: int) -> bool:
        """Call the handler with one message of a batch; return whether the messages behind it may follow."""
        message = kept.messages[at]
        try:
            await self._call(message)
        except Exception:
            log.warning("handler failed group=%s message=%s", self._group, message.message_id, exc_info=True)
            if message.reconsume_times < self._retries_max or not await self._make_dead_letter(message):
                delay_s = RETRY_DELAYS_S[min(message.reconsume_times, len(RETRY_DELAYS_S) - 1)]
                for later in await kept.release(at, len(kept.messages)):
                    await self._note("message not delayed", self._receiver.change_invisible_time(later, delay_s), later)
                return False
        for done in await kept.release(at, at + 1):
            await self._note("message not acknowledged", self._receiver.ack(done), done)
        return True

    async def _call(self, message: StoredMessage) -> None:
        _CALLER.set(self)  # in the context of this batch's task
        if inspect.iscoroutinefunction(self._handler):
            await self._handler(message)
            return
        result = await self._threads.run(self._handler, message)
        if inspect.isawaitable(result):
            await result

    async def _make_dead_letter(self, message: StoredMessage) -> bool:
        """Return whether a broker has moved a copy of a message to the dead-letter queue."""
        try:
            await self._receiver.make_dead_letter(message)
        except SkyrouteError as error:
            log.warning("no dead letter group=%s message=%s reason=%s", self._group, message.message_id, error)
            return False
        return True

    async def _note(self, failed: str, call: Awaitable[object], message: StoredMessage) -> None:
        """Log a failed request: the message comes again when it becomes visible."""
        try:
            await call
        except SkyrouteError as error:
            log.warning("%s group=%s message=%s reason=%s", failed, self._group, message.message_id, error)


class _Kept:
    """Messages that are being handled, and the renewal of their invisible time."""

    def __init__(self, receiver: Receiver, messages: list[StoredMessage], invisible_s: float) -> None:
        self._receiver = receiver
        self._invisible_s = invisible_s
        self.messages = messages
        """With their newest receipts."""
        self._done = 0
        """Number of messages that were handled."""
        self._renewing = asyncio.Lock()

    async def release(self, start: int, stop: int) -> list[StoredMessage]:
        """Return messages with receipts that stay the newest: they are not renewed any more."""
        async with self._renewing:  # an acknowledgement with the receipt before a renewal would have no effect
            self._done = stop
            return self.messages[start:stop]

    async def renew(self) -> None:
        """Renew the invisible time at half of it, until cancelled."""
        while True:
            await asyncio.sleep(self._invisible_s / 2)
            for at in range(self._done, len(self.messages)):
                async with self._renewing:
                    if at >= self._done:
                        await self._renew(at)

    async def _renew(self, at: int) -> None:
        message = self.messages[at]
        try:
            self.messages[at] = await self._receiver.change_invisible_time(message, self._invisible_s)
        except SkyrouteError as error:
            log.warning("invisible time not renewed message=%s reason=%s", message.message_id, error)
