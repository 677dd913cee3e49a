"""One queue for as long as it is this consumer's."""

import asyncio
from collections.abc import Callable
from typing import Final

from skyroute.client.consuming.push.backlog import Backlog
from skyroute.client.consuming.push.statistics import ConsumeStatistics
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.routing.topology import MASTER_ID

LOCK_VALID_S: Final = 30.0
"""How long a member relies on a lock that it was given."""

LOCK_KEPT_S: Final = 60.0
"""How long a broker keeps a lock that nobody renews."""


class OwnedQueue:
    """A queue of ours: its backlog, who works on it, and what is waited for."""

    __slots__ = (
        "_changed",
        "backlog",
        "broker_id",
        "consumed_at",
        "damaged_reads",
        "failed_pulls",
        "fetcher",
        "is_offered",
        "is_released",
        "is_suspended",
        "locked_at",
        "pulled_at",
        "queue",
        "running",
        "tally",
    )

    def __init__(self, queue: QueueRef, start: int, tally: ConsumeStatistics, locked_at: float | None) -> None:
        self.queue = queue
        self.backlog = Backlog(start)
        self.tally = tally
        self.broker_id = MASTER_ID
        """Which broker of its group to read from: what the last answer suggested."""
        self.locked_at = locked_at
        """When it was last made ours alone, in monotonic seconds; None if it is not."""
        self.fetcher: asyncio.Task[None] | None = None
        self.is_offered = False
        """Workers know that something waits; in an ordered queue also: one of them is at it."""
        self.is_suspended = False
        """Ordered, and waiting a moment before the same message is tried again."""
        self.is_released = False
        """Somebody else may have it by now."""
        self.running = 0
        """Handlers that are at work on it."""
        self.failed_pulls = LogBackoff()
        self.damaged_reads = 0
        """How often in a row the next record came damaged."""
        self.pulled_at = 0.0
        self.consumed_at = 0.0
        self._changed: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<OwnedQueue {self.queue} {self.backlog!r} running={self.running}>"

    def is_locked(self, now: float) -> bool:
        """Return whether we may rely on the queue being ours alone."""
        return self.locked_at is not None and now < self.locked_at + LOCK_VALID_S

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; it is looked at again at each `changed`. One may wait at a time."""
        while not condition():
            self._changed = asyncio.get_running_loop().create_future()
            try:
                await self._changed
            finally:
                self._changed = None

    def changed(self) -> None:
        """Have whoever waits look again."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
