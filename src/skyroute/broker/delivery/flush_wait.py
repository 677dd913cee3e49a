"""Flushes the store, and completes the sends that wait for a flush."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import Enum, auto
from typing import Final

from skyroute.broker.store.flush import Flush
from skyroute.broker.store.message_store import MessageStore
from skyroute.files.errors import StorageError

log = logging.getLogger(__name__)

THOROUGH_S: Final = 10.0
"""Interval at which consume queues and index are flushed too; recovery derives the rest from the log."""


class Flushed(Enum):
    """Outcome of a wait for the disk, and for slaves."""

    DONE = auto()
    LATE = auto()
    """The timeout is over; the record may still be flushed."""
    FAILED = auto()
    NOT_REPLICATED = auto()
    """It is on the disk if it has to be, and too few slaves have it at the timeout."""


class Flushing:
    """Flushes a store, one flush at a time, each in a thread.

    With SYNC_FLUSH, all messages that are appended in one turn of the loop or during a flush share the next one.
    `on_flushed` is called after every flush, because readers may see more messages then.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        interval_s: float,
        timeout_s: Callable[[], float],
        on_flushed: Callable[[], None],
    ) -> None:
        self._store = store
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._on_flushed = on_flushed
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="skyroute-flush")
        self._waiting: deque[tuple[int, float, Callable[[Flushed], None]]] = deque()
        """Log position, deadline and callback of each wait, in the order of positions."""
        self._next: asyncio.Handle | None = None
        self._timeout: asyncio.Handle | None = None
        """Timer for the first deadline; set while something waits."""
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False
        """A message was appended since the current flush began."""
        self._stopped = False
        """No further flush: the broker stops, or a flush failed and the disk cannot be trusted."""

    def __repr__(self) -> str:
        return f"<Flushing waiting={len(self._waiting)} {'busy' if self._task else 'idle'}>"

    @property
    def waiting_count(self) -> int:
        """Number of waits for the disk."""
        return len(self._waiting)

    @property
    def has_stopped(self) -> bool:
        """No further flush: the broker stops, or a flush failed."""
        return self._stopped

    def wait_for(self, log_end: int, then: Callable[[Flushed], None]) -> None:
        """Call `then` once the log is flushed up to a position, the timeout is over, or a flush fails."""
        if self._stopped:
            then(Flushed.FAILED)
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s()
        self._waiting.append((log_end, deadline, then))
        if self._timeout is None:
            self._timeout = loop.call_at(deadline, self._expire)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Start a flush at the end of this turn of the loop, or after the current flush."""
        if self._task is not None:
            self._is_wanted = True
        elif self._next is None and not self._stopped:
            self._next = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._next = None
        if self._task is None:
            self._is_wanted = False
            self._task = asyncio.get_running_loop().create_task(self._flush(thorough=False))

    async def _flush(self, *, thorough: bool) -> None:
        try:
            flush = self._store.begin_flush(thorough=thorough)
            await self._run(flush)
            self._store.end_flush(flush)
        except StorageError as error:
            log.error("flush failed reason=%s", error)  # noqa: TRY400 - its text is enough
            self._store.fail_flush(error)
            self._stopped = True
            self._complete(None, Flushed.FAILED)
        else:
            self._complete(self._store.flushed_position, Flushed.DONE)
        finally:
            self._task = None
        self._on_flushed()
        if self._is_wanted and not self._stopped:
            self._begin()

    async def _run(self, flush: Flush) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, flush.run)

    def _complete(self, up_to: int | None, outcome: Flushed) -> None:
        waiting = self._waiting
        while waiting and (up_to is None or waiting[0][0] <= up_to):
            waiting.popleft()[2](outcome)

    def _expire(self) -> None:
        """Complete the waits whose timeout is over, whether or not their flush has begun."""
        loop, waiting = asyncio.get_running_loop(), self._waiting
        while waiting and waiting[0][1] <= loop.time():
            waiting.popleft()[2](Flushed.LATE)
        self._timeout = loop.call_at(waiting[0][1], self._expire) if waiting else None

    async def run(self) -> None:
        """Flush at every interval, and derive queues and index so that other processes can read them."""
        since_thorough_s = 0.0
        flushed = -1
        while True:
            await asyncio.sleep(self._interval_s)
            if self._stopped:
                return
            with suppress(StorageError):  # the store raises it again at the next append
                self._store.dispatch()
            since_thorough_s += self._interval_s
            thorough = since_thorough_s >= THOROUGH_S
            if self._task is not None or not (thorough or self._store.max_position != flushed):
                continue
            if thorough:
                since_thorough_s = 0.0
            flushed = self._store.max_position
            self._task = asyncio.get_running_loop().create_task(self._flush(thorough=thorough))

    async def drain(self) -> None:
        """Return when all present waits are completed."""
        if self._waiting:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.wait_for(self._waiting[-1][0], lambda _: None if done.done() else done.set_result(None))
            await done

    async def stop(self) -> None:
        """Wait for the current flush, and start no other."""
        self._stopped = True
        if self._next is not None:
            self._next.cancel()
        while self._task is not None:
            await asyncio.wait({self._task})
        self._complete(None, Flushed.FAILED)
        if self._timeout is not None:
            self._timeout.cancel()
        self._thread.shutdown(wait=False)
