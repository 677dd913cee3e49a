"""When what was stored reaches the disk, and who waits for it."""

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
"""How often what follows from records is put on the disk too; until then recovery would have to derive it again."""


class Flushed(Enum):
    """What became of a wait for the disk."""

    DONE = auto()
    LATE = auto()
    """The disk takes too long; the record may still get there."""
    FAILED = auto()


class Flushing:
    """Flushes a store, one flush at a time, each in a thread.

    Under synchronous flushing everybody who appends in one turn of the loop, or while a flush is under way, shares the
    next one. `on_flushed` is called after every flush: what readers are shown may have grown.
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
        """Where in the log each waits for the disk, in that order, and until when."""
        self._due: asyncio.Handle | None = None
        self._late: asyncio.Handle | None = None
        """Looks for those who have waited too long; there while anybody waits."""
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False
        """Something was appended since the flush that is under way began."""
        self._stopped = False
        """No flush is begun any more: the end has come, or one has failed, and the disk is not to be believed."""

    def __repr__(self) -> str:
        return f"<Flushing waiting={len(self._waiting)} {'busy' if self._task else 'idle'}>"

    @property
    def waiting_count(self) -> int:
        """How many wait for the disk."""
        return len(self._waiting)

    @property
    def has_stopped(self) -> bool:
        """No flush is begun any more: the end has come, or one has failed."""
        return self._stopped

    def wait_for(self, log_end: int, then: Callable[[Flushed], None]) -> None:
        """Have `then` called once the log is on the disk up to a position, or cannot be put there."""
        if self._stopped:
            then(Flushed.FAILED)
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s()
        self._waiting.append((log_end, deadline, then))
        if self._late is None:
            self._late = loop.call_at(deadline, self._give_up_late)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Have what was appended put on the disk soon, though perhaps nobody waits for it."""
        if self._task is not None:
            self._is_wanted = True
        elif self._due is None and not self._stopped:
            self._due = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._due = None
        if self._task is None:
            self._is_wanted = False
            self._task = asyncio.get_running_loop().create_task(self._flush(thorough=False))

    async def _flush(self, *, thorough: bool) -> None:
        try:
            flush = self._store.begin_flush(thorough=thorough)
            await self._run(flush)
            self._store.end_flush(flush)
        except StorageError as error:
            log.error("flush failed cause=%s", error)  # noqa: TRY400 - its text says it all
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

    def _give_up_late(self) -> None:
        """Tell those whose time is over, whether a flush for them has begun or a slow disk kept it from beginning."""
        loop, waiting = asyncio.get_running_loop(), self._waiting
        while waiting and waiting[0][1] <= loop.time():
            waiting.popleft()[2](Flushed.LATE)
        self._late = loop.call_at(waiting[0][1], self._give_up_late) if waiting else None

    async def run(self) -> None:
        """Flush now and then whatever was appended, and have what follows from it in files for others to read."""
        since_thorough_s = 0.0
        flushed = -1
        while True:
            await asyncio.sleep(self._interval_s)
            if self._stopped:
                return
            with suppress(StorageError):  # it is kept in mind, and told to the next one who stores something
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
        """Return when all who wait now have been told."""
        if self._waiting:
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.wait_for(self._waiting[-1][0], lambda _: None if told.done() else told.set_result(None))
            await told

    async def stop(self) -> None:
        """Wait for the flush that is under way; nobody begins another."""
        self._stopped = True
        if self._due is not None:
            self._due.cancel()
        while self._task is not None:
            await asyncio.wait({self._task})
        self._complete(None, Flushed.FAILED)
        if self._late is not None:
            self._late.cancel()
        self._thread.shutdown(wait=False)
