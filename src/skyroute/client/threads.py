"""Daemon threads for the application's plain functions, which would block the event loop.

`concurrent.futures` joins its threads when the process exits, so a handler that never returns would keep the process
alive. These threads do not.
"""

import asyncio
import contextvars
import itertools
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple


class ExitError(RuntimeError):
    """A function in a thread raised SystemExit or the like, which is the cause of this error.

    A future cannot hold SystemExit itself: the event loop would end.
    """


class _Job(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    context: contextvars.Context


class Threads:
    """A bounded number of threads, each started when it is first needed. Used from one event loop."""

    def __init__(self, count_max: int, name: str) -> None:
        self._count_max = count_max
        self._name = name
        self._numbers = itertools.count(1)
        self._started = 0
        self._busy = 0
        """Jobs that are not finished."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a thread and return its result. A cancellation ends the wait, not the thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._busy += 1
        if self._busy > self._started < self._count_max:
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{next(self._numbers)}", daemon=True).start()
        self._jobs.put(_Job(function, arguments, future, loop, contextvars.copy_context()))
        return await future

    def stop(self) -> None:
        """Let each thread end after its current job."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            result, error = None, None
            try:
                result = job.context.run(job.function, *job.arguments)
            except Exception as raised:  # noqa: BLE001 - the caller gets it
                error = raised
            except BaseException as raised:  # noqa: BLE001 - sys.exit() must not end the thread
                error = ExitError(f"the function raised {type(raised).__name__}: {raised}")
                error.__cause__ = raised
            if isinstance(error, StopIteration):
                error = _with_cause("the function raised StopIteration, which a future cannot hold", error)
            with suppress(RuntimeError):  # the loop may be closed by now
                job.loop.call_soon_threadsafe(self._deliver, job.future, result, error)
            del job, result, error  # so that no large message stays in memory until the next job

    def _deliver(self, future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
        self._busy -= 1
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def _with_cause(text: str, cause: BaseException) -> RuntimeError:
    error = RuntimeError(text)
    error.__cause__ = cause  # with the traceback of the handler
    return error
