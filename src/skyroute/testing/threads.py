"""Servers that run in threads of their own, beside a test that may have no loop, or a busy one."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from skyroute.remoting.loops import loop_factory

T = TypeVar("T")

CALL_S: Final = 30.0
"""Nothing that a server is asked to do here takes nearly as long."""


class LoopThread:
    """An event loop in a thread."""

    def __init__(self, name: str) -> None:
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = asyncio.Event()
        self._gate: threading.Event | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    @property
    def is_paused(self) -> bool:
        return self._gate is not None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something there, and wait for what comes of it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(CALL_S)

    def pause(self) -> None:
        """Have it stand still. Connections stay open, and nobody answers."""
        if self._gate is not None:
            return
        gate, reached = threading.Event(), threading.Event()

        def stand_still() -> None:
            reached.set()
            gate.wait()

        self.loop.call_soon_threadsafe(stand_still)
        reached.wait()
        self._gate = gate

    def resume(self) -> None:
        """Have it go on."""
        if self._gate is not None:
            self._gate.set()
            self._gate = None

    def close(self) -> None:
        """End the loop and the thread."""
        self.resume()
        self.loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            self._loop = runner.get_loop()
            self._ready.set()
            runner.run(self._until_end())

    async def _until_end(self) -> None:
        await self._end.wait()
