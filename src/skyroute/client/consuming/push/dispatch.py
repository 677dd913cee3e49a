"""Dispatches buffered messages to handlers: up to `concurrency` at once, or each queue strictly in order.

A fixed number of workers takes from the queues with waiting messages, each queue in turn. There is no task and no
future for a single message: a worker whose handler does not block continues with the next message at once.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from skyroute.client.consuming.push.handler_runner import FindHandler, HandlerRunner, Worker
from skyroute.client.consuming.push.handlers import RetryLater
from skyroute.client.consuming.push.process_queue import ProcessQueue
from skyroute.client.consuming.push.redelivery import TIMED_OUT_LEVEL, Redelivery
from skyroute.client.consuming.push.retries import Retries
from skyroute.client.consuming.push.settings import ConsumerSettings
from skyroute.client.session.session import Session
from skyroute.client.threads import ExitError, Threads
from skyroute.client.trace.tracer import Tracer
from skyroute.message.message import StoredMessage

log = logging.getLogger(__name__)

SLICE_S: Final = 0.005
"""How long one worker runs before it yields to other tasks."""

_CALLER: "Final[ContextVar[Dispatcher | None]]" = ContextVar("_CALLER", default=None)
"""The dispatcher whose handler runs in this context."""

CANCELLED_S: Final = 1.0
"""How long `stop` waits for cancelled handlers."""

OnExit = Callable[[BaseException], None]
"""Called when a handler calls sys.exit(), or raises KeyboardInterrupt or GeneratorExit."""


class Dispatcher:
    """The workers of one consumer, and the queues with messages for them."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        redelivery: Redelivery,
        find_handler: FindHandler,
        tracer: Tracer | None = None,
        *,
        on_exit: OnExit,
    ) -> None:
        self._session = session
        self._on_exit = on_exit
        self._settings = settings
        self._find_handler = find_handler
        self._monotonic = session.clock.monotonic
        self._ready: deque[ProcessQueue] = deque()
        """Queues with waiting messages, each at most once."""
        self._idle: deque[asyncio.Future[None]] = deque()
        """Waiting workers."""
        self._wake_is_due = False
        self._workers: list[Worker] = []
        self._has_started = False
        self._stopping = False
        self.threads = Threads(settings.concurrency, f"consumer-{settings.group}")
        self._runner = HandlerRunner(
            session, settings.group, find_handler, self.threads, tracer, on_exit=self.exit_with
        )
        self._retries = Retries(settings, redelivery, offer=self.offer)

    # ----------------------------------------------------------------------------------------------- start and stop

    def start(self) -> None:
        """Start the workers, once."""
        if self._has_started or self._stopping:
            return
        self._has_started = True
        for number in range(self._settings.concurrency):
            worker = Worker()
            worker.task = self._session.spawn(self._work(worker), name=f"consumer worker {number}")
            self._workers.append(worker)

    def watch(self, worker: Worker) -> None:
        """Apply `consume_timeout_s` to a worker that has no task here, such as an `async for` loop."""
        self._workers.append(worker)

    def close(self) -> None:
        """Start no more handlers."""
        self._stopping = True
        self._ready.clear()
        while self._idle:
            self._wake_one()

    @property
    def is_calling(self) -> bool:
        """Whether the current task or thread runs in a handler of this consumer."""
        return _CALLER.get() is self

    async def stop(self, timeout_s: float) -> None:
        """After `close`, wait for running handlers. After the timeout async ones are cancelled, threads left behind."""
        tasks = [worker.task for worker in self._workers if worker.task is not None]
        try:
            await _finished(tasks, timeout_s)
        finally:
            running = [task for task in tasks if not task.done()]
            for task in running:
                task.cancel()
            self.threads.stop()
        if running:
            log.warning("handlers cancelled group=%s count=%d", self._settings.group, len(running))
            await _finished(running, CANCELLED_S)
            if ignored := sum(not task.done() for task in running):
                log.warning("handlers ignore their cancellation group=%s count=%d", self._settings.group, ignored)

    def exit_with(self, error: BaseException) -> None:
        """Start no more handlers, because one called sys.exit() or the like, and report that exception."""
        raised = error.__cause__ if isinstance(error, ExitError) else None
        self.close()
        self._on_exit(raised or error)

    def abandon(self) -> None:
        """Cancel what `stop` has not finished."""
        self.close()
        for worker in self._workers:
            if worker.task is not None:
                worker.task.cancel()

    # ------------------------------------------------------------------------------------------------- ready queues

    def offer(self, queue: ProcessQueue) -> None:
        """Make the waiting messages of a queue available to the workers."""
        if queue.is_offered or queue.is_suspended or self._stopping or not queue.buffer.has_waiting:
            return
        queue.is_offered = True
        self._ready.append(queue)
        self._wake_soon()

    def _wake_soon(self) -> None:
        # A busy worker often takes the messages before this runs, and then no idle worker has to wake.
        if not self._wake_is_due:
            self._wake_is_due = True
            asyncio.get_running_loop().call_soon(self._wake_if_ready)

    def _wake_if_ready(self) -> None:
        self._wake_is_due = False
        if self._ready:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._idle:
            idle = self._idle.popleft()
            if not idle.done():
                idle.set_result(None)
                return

    async def take(self) -> tuple[ProcessQueue, list[StoredMessage]] | None:
        """Wait for the next messages to handle and return them; None after `close`."""
        while (taken := self._take_now()) is None:
            if self._stopping:
                return None
            idle: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle.append(idle)
            try:
                await idle
            except asyncio.CancelledError:
                if idle.done() and not idle.cancelled():
                    self._wake_one()  # this worker was woken: pass the work on
                raise
        return taken

    def _take_now(self) -> tuple[ProcessQueue, list[StoredMessage]] | None:
        ready, settings = self._ready, self._settings
        while ready:
            queue = ready.popleft()
            if settings.locks and not queue.is_locked(self._monotonic()):
                queue.is_offered = False  # the lock renewal offers it again
                continue
            messages = queue.buffer.take(settings.batch_size)
            if not settings.ordered and queue.buffer.has_waiting:
                ready.append(queue)
            elif not settings.ordered or not messages:
                queue.is_offered = False
            if messages:
                if ready and self._idle:
                    self._wake_soon()
                return queue, messages
        return None

    # ------------------------------------------------------------------------------------------------------ workers

    async def _work(self, worker: Worker) -> None:
        _CALLER.set(self)
        slice_start = self._monotonic()
        while (taken := self._take_now() or await self.take()) is not None:
            queue, messages = taken
            self.begin(worker, queue, messages)
            try:
                await self.complete(worker, messages, await self._runner.run(worker, messages))
            except Exception:
                log.exception("messages not completed group=%s queue=%s", self._settings.group, queue.ref)
            finally:
                self.end(queue)
            if queue.consumed_at - slice_start > SLICE_S:
                await asyncio.sleep(0)
                slice_start = self._monotonic()

    def begin(self, worker: Worker, queue: ProcessQueue, messages: list[StoredMessage]) -> None:
        """Record that a worker handles messages that were taken."""
        worker.queue, worker.messages, worker.since = queue, messages, self._monotonic()
        queue.running += 1

    async def complete(self, worker: Worker, messages: list[StoredMessage], retry: RetryLater | None) -> None:
        """Finish messages, or retry them as the handler demands. After a timeout this does nothing."""
        queue = worker.queue
        if worker.messages is not messages or queue is None:
            return
        worker.messages = []
        queue.consumed_at = now = self._monotonic()
        statistics = queue.statistics
        statistics.handlings += 1
        statistics.handled_s += now - worker.since
        if retry is None:
            statistics.consumed += len(messages)
            queue.buffer.finish(messages)
            return
        from_index = min(max(retry.from_index, 0), len(messages))
        statistics.consumed += from_index
        queue.buffer.finish(messages[:from_index])
        await self._retries.retry(queue, messages[from_index:], retry.delay_level)

    def end(self, queue: ProcessQueue) -> None:
        """Record that a worker has completed messages of a queue."""
        queue.running -= 1
        if self._settings.ordered:
            queue.is_offered = False
            self.offer(queue)
        queue.changed()

    # ----------------------------------------------------------------------------------------------------- timeouts

    async def stop_late_handlers(self, now: float) -> None:
        """Cancel handlers that run longer than `consume_timeout_s`, and retry their messages."""
        late = [w for w in self._workers if w.messages and now - w.since > self._settings.consume_timeout_s]
        await asyncio.gather(*map(self._stop_late_handler, late))

    async def _stop_late_handler(self, worker: Worker) -> None:
        queue, messages = worker.queue, worker.messages
        if queue is None or not messages:
            return
        log.warning(
            "handler timed out group=%s topic=%s message=%s timeout_s=%g",
            self._settings.group,
            messages[0].topic,
            messages[0].message_id,
            self._settings.consume_timeout_s,
        )
        handler = self._find_handler(messages[0].topic)
        cancels = worker.task is not None and (handler is None or handler.is_async)
        if cancels and worker.task is not None:
            worker.has_timed_out = True
            worker.task.cancel()
        if self._settings.ordered:
            # No other message may overtake it: an async handler is cancelled and retried, a thread has to finish.
            if not cancels:
                worker.since = self._monotonic()
            return
        worker.messages = []
        await self._retries.retry(queue, messages, TIMED_OUT_LEVEL)
        queue.changed()  # there is room in the buffer, even if the thread never returns


async def _finished(tasks: list[asyncio.Task[Any]], timeout_s: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s)
