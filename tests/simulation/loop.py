"""An asyncio event loop with virtual time. The same seed gives the same order of callbacks."""

from __future__ import annotations

import asyncio
import contextvars
import random
from asyncio.base_events import BaseEventLoop
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from contextvars import ContextVar
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

EPOCH: Final = 1_758_275_140.0
"""Wall clock time at the start of every simulation."""
JOB_S: Final = (0.00005, 0.001)
"""How long a job of an executor takes, without its disk calls."""
TURNS_MAX: Final = 200_000
"""Turns of the loop at one virtual instant. More means that code polls for a time that cannot pass."""

HOST: Final[ContextVar[str]] = ContextVar("HOST", default="")
"""The simulated machine on which the current code runs; tasks and callbacks inherit it."""


class SimulationError(Exception):
    """The simulation itself cannot continue: every task waits for ever, or one never waits."""


class _SimTask(asyncio.Task[Any]):
    """A task whose hash does not depend on its address: sets of tasks iterate in the same order in each run."""

    def __init__(self, work: Coroutine[Any, Any, Any], number: int, **arguments: Any) -> None:
        self._number = number
        super().__init__(work, **arguments)

    def __hash__(self) -> int:
        return self._number


def _nothing() -> None:
    """Stand for the callback of a cancelled handle."""


class _SimHandle(asyncio.Handle):
    """A handle without debug mode: a run makes a million of them."""

    __slots__ = ()

    def __init__(  # the base class would ask the loop for its debug mode
        self, callback: Callable[..., Any], args: tuple[Any, ...], loop: SimLoop, context: contextvars.Context | None
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = _nothing
        self._args = ()


class _SimTimer(asyncio.TimerHandle):
    """As `_SimHandle`, for a timer."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: SimLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None
        self._when = when
        self._scheduled = False

    cancel = _SimHandle.cancel


class SimLoop(BaseEventLoop):
    """Runs callbacks in a fixed order, and jumps to the time of the next timer when there are none.

    Timers that are due at the same instant run in a seeded order: the kernel promises none. Jobs for executors run on
    the loop, after a seeded delay; a slow disk adds to it with `delay_job`.
    """

    _ready: deque[Any]
    """Handles; `typeshed` does not know their attributes."""
    _stopping: bool

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._now = 1_000.0
        self._timers: list[tuple[float, float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._order = random.Random(f"order {seed}").random
        self._job_random = random.Random(f"jobs {seed}")
        self._queues: dict[Executor, deque[Callable[[], None]]] = {}
        """Jobs of executors with a single thread; the first one runs."""
        self._job_delay_s = 0.0
        self.is_in_job = False
        self.turns = 0
        self.failures: list[str] = []
        """Exceptions that no code handled."""
        self.network: Any = None
        """Serves `create_server` and `create_connection`."""
        self.set_task_factory(self._make_task)
        self.set_exception_handler(self._note_failure)

    # Time

    def time(self) -> float:
        return self._now

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        when = self._now + delay
        handle = _SimTimer(when, callback, args, self, context)
        heappush(self._timers, (when, self._order(), next(self._numbers), handle))
        return handle

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _SimHandle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _SimTimer(when, callback, args, self, context)
        heappush(self._timers, (when, self._order(), next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: a cancelled timer is dropped when its time comes."""

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        if not ready and not self._stopping:
            while timers and timers[0][3]._cancelled:
                heappop(timers)
            if not timers:
                raise SimulationError("nothing is left to do: every task waits for something that cannot happen")
            if timers[0][0] > self._now:
                self._now = timers[0][0]
                self.turns = 0
        now = self._now
        while timers and timers[0][0] <= now:
            ready.append(heappop(timers)[3])
        self.turns += 1
        if self.turns > TURNS_MAX:
            raise SimulationError(f"no time passes at {now - 1000:.6f} s: {[str(each) for each in list(ready)[:5]]}")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - asyncio's own handle does the same
                    self.call_exception_handler({"message": f"Exception in {handle}", "exception": error})

    def _write_to_self(self) -> None:
        """Do nothing: the loop never sleeps."""

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there is no selector."""

    # Tasks and jobs

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T] | Generator[Any, None, T], **arguments: Any
    ) -> asyncio.Future[T]:
        coroutine = cast("Coroutine[Any, Any, T]", work)
        return _SimTask(coroutine, next(self._numbers), loop=loop, **arguments)

    def _note_failure(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.failures.append(f"{self._now - 1000:.3f} s, {HOST.get()}: {context.get('message')}: {error!r}")

    def delay_job(self, seconds: float) -> None:
        """Let the current job take longer."""
        self._job_delay_s += seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self.create_future()
        context = contextvars.copy_context()
        if executor is None or getattr(executor, "_max_workers", 0) != 1:
            self._begin_job(partial(self._run_job, done, func, args, lambda: None), context)
            return done
        queue = self._queues.setdefault(executor, deque())
        queue.append(partial(self._begin_job, partial(self._run_job, done, func, args, partial(_next, queue)), context))
        if len(queue) == 1:
            queue[0]()
        return done

    def _begin_job(self, job: Callable[[], None], context: contextvars.Context) -> None:
        self.call_later(self._job_random.uniform(*JOB_S), job, context=context)

    def _run_job(
        self, done: asyncio.Future[T], func: Callable[..., T], args: tuple[Any, ...], then: Callable[[], None]
    ) -> None:
        # As in a thread, a job runs to its end also if nothing waits for it any more.
        self._job_delay_s, self.is_in_job = 0.0, True
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = func(*args)
        except BaseException as error:  # noqa: BLE001 - the executor of the standard library does the same
            failure = error
        finally:
            self.is_in_job = False
        self.call_later(self._job_delay_s, _complete, done, result, failure, then)

    # Network

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self.network.create_server(protocol_factory, host, port, **options)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await self.network.create_connection(protocol_factory, host, port, **options)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        raise OSError(f"the simulation has no names, only addresses: {host}:{port}")


def _next(queue: deque[Callable[[], None]]) -> None:
    """Begin the next job of a thread."""
    queue.popleft()
    if queue:
        queue[0]()


def _complete(done: asyncio.Future[Any], result: Any, failure: BaseException | None, then: Callable[[], None]) -> None:
    then()
    if done.done():
        return
    if failure is None:
        done.set_result(result)
    elif isinstance(failure, StopIteration):
        done.set_exception(RuntimeError(repr(failure)))
    else:
        done.set_exception(failure)


class SimClock:
    """The clock of one simulated machine: monotonic time of the loop, and a wall clock that can be stepped."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.step_s = 0.0

    def monotonic(self) -> float:
        return self._loop._now

    def wall(self) -> float:
        return EPOCH + self._loop._now + self.step_s

    def computed(self) -> float:
        return self._loop._now
