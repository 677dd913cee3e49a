"""Calls the application's handler with messages, and turns its outcome into None or a `RetryLater`."""

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from skyroute.client.consuming.push.handlers import ConsumeResult, HandlerCall, RetryLater
from skyroute.client.consuming.push.process_queue import ProcessQueue
from skyroute.client.session.session import Session
from skyroute.client.threads import ExitError, Threads
from skyroute.client.trace.records import TracedReturn
from skyroute.client.trace.tracer import Tracer
from skyroute.message.message import StoredMessage

log = logging.getLogger(__name__)

FindHandler = Callable[[str], HandlerCall | None]
"""Returns the handler of a topic, by the topic's name in the application."""


class Worker:
    """A task that calls handlers, and the messages it is handling."""

    __slots__ = ("has_raised", "has_timed_out", "messages", "queue", "since", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.queue: ProcessQueue | None = None
        self.messages: list[StoredMessage] = []
        """The messages that the handler has now; empty after it returned, or after a timeout."""
        self.since = 0.0
        self.has_timed_out = False
        self.has_raised = False
        """Whether the handler raised something other than `RetryLater`."""


class HandlerRunner:
    """Calls handlers for all workers of one consumer."""

    def __init__(
        self,
        session: Session,
        group: str,
        find_handler: FindHandler,
        threads: Threads,
        tracer: Tracer | None,
        *,
        on_exit: Callable[[BaseException], None],
    ) -> None:
        """Prepare. `on_exit` gets the SystemExit, KeyboardInterrupt or GeneratorExit that a handler raised."""
        self._clock = session.clock
        self._group = group
        self._find_handler = find_handler
        self._threads = threads
        self._tracer = tracer
        self._on_exit = on_exit

    def run(self, worker: Worker, messages: list[StoredMessage]) -> Coroutine[Any, Any, RetryLater | None]:
        """Call the handler; the result is None if the messages are consumed, else how to retry them."""
        if self._tracer is not None:
            return self._run_traced(worker, messages, self._tracer)
        return self._run(worker, messages)

    async def _run(self, worker: Worker, messages: list[StoredMessage]) -> RetryLater | None:
        first = messages[0]
        try:
            handler = self._find_handler(first.topic)
            if handler is None:
                log.warning("no handler group=%s topic=%s message=%s", self._group, first.topic, first.message_id)
                return RetryLater()
            if await handler.run(messages, self._threads) is ConsumeResult.RETRY:
                return RetryLater()
        except RetryLater as retry:
            return retry
        except (SystemExit, KeyboardInterrupt, GeneratorExit, ExitError) as error:
            if isinstance(error, GeneratorExit) and not _is_current(worker.task):
                raise  # the event loop is closed, and Python is deleting our task
            worker.messages = []  # neither consumed nor failed: the next owner of the queue gets them again
            worker.has_raised = True
            self._on_exit(error)
        except asyncio.CancelledError:
            if not worker.has_timed_out and (worker.task is None or worker.task.cancelling()):
                worker.messages = []
                raise
            worker.has_raised = not worker.has_timed_out
            return RetryLater()  # also if the handler awaited another task that was cancelled
        except Exception:
            worker.has_raised = True
            log.warning(
                "handler failed group=%s topic=%s queue=%d offset=%d message=%s reconsume_times=%d",
                *(self._group, first.topic, first.queue_id, first.queue_offset, first.message_id),
                first.reconsume_times,
                exc_info=True,
            )
            return RetryLater()
        finally:
            if worker.has_timed_out and worker.task is not None:
                worker.has_timed_out = False
                worker.task.uncancel()
        return None

    async def _run_traced(self, worker: Worker, messages: list[StoredMessage], tracer: Tracer) -> RetryLater | None:
        request_id = uuid.uuid4().hex
        at_ms = int(self._clock.wall() * 1_000)
        started = tracer.consume_started(self._group, messages, request_id=request_id, at_ms=at_ms)
        worker.has_raised = False
        retry = await self._run(worker, messages)
        returned = TracedReturn.SUCCESS if retry is None else TracedReturn.FAILED
        if worker.has_raised:
            returned = TracedReturn.RAISED
        elif worker.messages is not messages:
            returned = TracedReturn.TIMED_OUT
        success = retry is None and not worker.has_raised
        tracer.consume_ended(started, at_ms=int(self._clock.wall() * 1_000), success=success, returned=returned)
        return retry


def _is_current(task: "asyncio.Task[None] | None") -> bool:
    try:
        return task is asyncio.current_task()
    except RuntimeError:
        return False
