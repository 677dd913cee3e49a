"""Simulated threads: real ones of which a single one runs at a time, switched by the event loop in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from tests.simulation.loop import HOST, SimLoop, SimulationError

STEPS_MAX: Final = 10_000
"""How often `join` lets a thread continue before it gives up."""


class _KilledError(BaseException):
    """Ends a thread whose machine was switched off."""


class SimThread:
    """Runs a function in a thread. It runs only while the event loop waits for it to wait or to end."""

    def __init__(
        self, simulated: SimThreading, target: Callable[[], None], name: str = "", *, daemon: bool | None = None
    ) -> None:
        self.host = HOST.get()
        self._simulated = simulated
        self._target = target
        self._may_run = threading.Lock()  # two locks that are never free: cheaper than semaphores
        self._may_run.acquire()
        self._has_paused = threading.Lock()
        self._has_paused.acquire()
        self._wait_number = 0
        """Number of the current wait: an old timer must not end a new wait."""
        self._has_ended = False
        self._is_killed = False
        self._thread = threading.Thread(target=self._run, name=f"simulated {name}", daemon=True)

    def start(self) -> None:
        self._simulated.threads.append(self)
        self._thread.start()
        self._simulated.loop.call_soon(self.resume, 0)

    def is_alive(self) -> bool:
        return not self._has_ended

    def join(self, timeout: float | None = None) -> None:
        """Let the thread continue until it ends. For the event loop, of which no time passes."""
        steps = 0
        while not self._has_ended and steps < STEPS_MAX:
            self.resume(self._wait_number)
            steps += 1

    def kill(self) -> None:
        """End the thread where it waits; it executes only `finally`."""
        self._is_killed = True
        self.join()

    def resume(self, wait_number: int) -> None:
        """Let the thread run until it waits again. Called by the event loop."""
        if self._has_ended or wait_number != self._wait_number:
            return
        self._wait_number += 1
        self._simulated.current = self
        self._may_run.release()
        self._has_paused.acquire()
        self._simulated.current = None

    def pause(self) -> int:
        """Let the event loop run until it calls `resume`. Called by the thread."""
        self._has_paused.release()
        self._may_run.acquire()
        if self._is_killed:
            raise _KilledError
        return self._wait_number

    @property
    def next_wait(self) -> int:
        return self._wait_number

    def _run(self) -> None:
        self._may_run.acquire()
        try:
            if not self._is_killed:
                self._target()
        except _KilledError:
            pass
        finally:
            self._has_ended = True
            self._has_paused.release()


class SimEvent:
    """`threading.Event` for simulated threads. The event loop may set it, and must not wait for it."""

    def __init__(self, simulated: SimThreading) -> None:
        self._simulated = simulated
        self._is_set = False
        self._waiting: list[tuple[SimThread, int]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for thread, number in waiting:
            self._simulated.loop.call_soon(thread.resume, number)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        thread = self._simulated.current
        if self._is_set:
            return True
        if thread is None:
            raise SimulationError("the event loop waits for a thread, and blocks")
        self._waiting.append((thread, thread.next_wait))
        if timeout is not None:
            self._simulated.loop.call_later(max(0.0, timeout), thread.resume, thread.next_wait)
        thread.pause()
        self._waiting = [each for each in self._waiting if each[0] is not thread]
        return self._is_set


class SimThreading:
    """Stands for the module `threading` in modules that start threads."""

    Lock = staticmethod(threading.Lock)
    get_ident = staticmethod(threading.get_ident)

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.threads: list[SimThread] = []
        self.current: SimThread | None = None
        """The simulated thread that runs now."""

    def Thread(self, *, target: Callable[[], None], name: str = "", daemon: bool | None = None) -> SimThread:  # noqa: N802 - as in `threading`
        return SimThread(self, target, name, daemon=daemon)

    def Event(self) -> SimEvent:  # noqa: N802 - as in `threading`
        return SimEvent(self)

    def kill(self, host: str) -> None:
        """End the threads of a machine."""
        for thread in self.threads:
            if thread.host == host:
                thread.kill()
        self.threads = [thread for thread in self.threads if thread.host != host]

    def sleep(self, seconds: float) -> None:
        """Let a thread or a job of an executor take longer; used by slow disks."""
        thread = self.current
        if thread is not None:
            self.loop.call_later(seconds, thread.resume, thread.next_wait)
            thread.pause()
        elif self.loop.is_in_job:
            self.loop.delay_job(seconds)

    def end(self) -> None:
        for thread in self.threads:
            thread.kill()
        self.threads = []
