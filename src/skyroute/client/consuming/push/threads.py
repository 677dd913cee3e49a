"""Threads for what would block the event loop.

`concurrent.futures` waits for its threads when the process ends, so one handler that never returns would keep the
process from ever ending. These threads are left behind instead.
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
    """A function was left as one leaves a program, by sys.exit() or the like, which is its cause.

    No future can hold that: the event loop would be left as well.
    """


class _Job(NamedTuple):
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop
    context: contextvars.Context


class Threads:
    """So many threads at most, each started when there is work for it. Used from one event loop."""

    def __init__(self, count_max: int, name: str) -> None:
        self._count_max = count_max
        self._name = name
        self._numbers = itertools.count(1)
        self._started = 0
        self._busy = 0
        """Jobs that no thread has done yet."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a thread and return what it returns. Cancelled, it no longer waits; the thread goes on."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._busy += 1
        if self._busy > self._started < self._count_max:
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{next(self._numbers)}", daemon=True).start()
        self._jobs.put(_Job(function, arguments, future, loop, contextvars.copy_context()))
        return await future

    def stop(self) -> None:
        """Let the threads end once they are done with what they do now."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            result, error = None, None
            try:
                result = job.context.run(job.function, *job.arguments)
            except Exception as raised:  # noqa: BLE001 - whoever waits for the result gets it
                error = raised
            except BaseException as raised:  # noqa: BLE001 - a handler that calls sys.exit() must not end our thread
                error = ExitError(f"it ended with {type(raised).__name__}: {raised}")
                error.__cause__ = raised
            if isinstance(error, StopIteration):
                error = _with_cause("it raised StopIteration, which no future can hold", error)
            with suppress(RuntimeError):  # the loop may be gone by now
                job.loop.call_soon_threadsafe(self._deliver, job.future, result, error)
            del job, result, error  # the next job may be long in coming, and a message may be large

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
    error.__cause__ = cause  # where in the handler it came from
    return error
