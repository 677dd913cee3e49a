"""Event loops: which implementation to use, and one that runs in its own thread."""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory if uvloop is installed, or None; `SKYROUTE_LOOP=asyncio` selects Python's own loop."""
    if os.environ.get("SKYROUTE_LOOP") == "asyncio":
        return None
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return None
    return uvloop.new_event_loop


class LoopThread:
    """An event loop in a daemon thread. Other threads run coroutines on it and wait for the results."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._runner = asyncio.Runner(loop_factory=loop_factory() or asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._is_closing = False
        self._gate: threading.Event | None = None
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._is_closing:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # A task raised it in this thread. The loop goes on: other threads wait for their calls.
                log.exception("task tried to exit the program error=%s", type(error).__name__)
        self._runner.close()

    @property
    def is_alive(self) -> bool:
        """Whether the thread exists in this process: a fork copies this object, and not the thread."""
        return self._pid == os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and return its result. Not from the loop's own thread: that would deadlock.

        Raises:
            TimeoutError: it took longer than `timeout_s`; it is cancelled.
        """
        tasks: list[asyncio.Task[T]] = []
        exits: list[BaseException] = []
        ended = threading.Event()

        async def work() -> T:
            try:
                return await coroutine
            except (SystemExit, KeyboardInterrupt) as error:
                exits.append(error)  # raised in the caller's thread; here it would stop the loop for all callers
                raise asyncio.CancelledError from None

        def begin() -> None:
            tasks.append(self._loop.create_task(work()))
            tasks[0].add_done_callback(end)

        def end(_: object) -> None:
            coroutine.close()  # it never began if the task was cancelled before its first step
            ended.set()

        def cancel() -> None:
            tasks[0].cancel()

        self._loop.call_soon_threadsafe(begin)
        try:
            has_ended = ended.wait(timeout_s)
        except BaseException:
            # Ctrl-C: wait until the task ends in good order (a consumer commits), unless it is pressed again.
            self._loop.call_soon_threadsafe(cancel)
            ended.wait()
            raise
        if not has_ended:
            self._loop.call_soon_threadsafe(cancel)
            raise TimeoutError(f"{self._thread.name} did not finish within {timeout_s:g} s")
        if exits:
            raise exits[0]
        return tasks[0].result()

    def pause(self) -> None:
        """Block the loop until `resume`: its connections stay open and it sends no responses."""
        if self._gate is not None:
            return
        gate, reached = threading.Event(), threading.Event()

        def block() -> None:
            reached.set()
            gate.wait()

        self._loop.call_soon_threadsafe(block)
        reached.wait()
        self._gate = gate

    def resume(self) -> None:
        """Let a paused loop continue."""
        if self._gate is not None:
            self._gate.set()
            self._gate = None

    def close(self) -> None:
        """Cancel all tasks, close the loop and end the thread."""
        self.resume()
        self._is_closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
