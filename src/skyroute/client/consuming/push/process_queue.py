"""One queue while it is assigned to a push consumer."""

import asyncio
from collections.abc import Callable
from typing import Final

from skyroute.client.consuming.push.message_buffer import MessageBuffer
from skyroute.client.consuming.push.statistics import ConsumeStatistics
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.routing.topology import MASTER_ID

LOCK_VALID_S: Final = 30.0
"""How long a member relies on a lock after it requested it."""

LOCK_KEPT_S: Final = 60.0
"""How long a broker keeps a lock that is not renewed."""


class ProcessQueue:
    """An assigned queue: its buffered messages, its pull loop, and its running handlers."""

    __slots__ = (
        "_changed",
        "broker_id",
        "buffer",
        "consumed_at",
        "damaged_reads",
        "failed_pulls",
        "is_offered",
        "is_released",
        "is_suspended",
        "locked_at",
        "pulled_at",
        "puller",
        "ref",
        "running",
        "statistics",
    )

    def __init__(self, ref: QueueRef, start: int, statistics: ConsumeStatistics, locked_at: float | None) -> None:
        self.ref = ref
        self.buffer = MessageBuffer(start)
        self.statistics = statistics
        """The counters of its topic."""
        self.broker_id = MASTER_ID
        """The broker of its group to pull from, as the last pull response suggested."""
        self.locked_at = locked_at
        """When its lock was last requested, in monotonic seconds; None if it is not locked."""
        self.puller: asyncio.Task[None] | None = None
        self.is_offered = False
        """Whether it is in the dispatcher's list of ready queues; of an ordered queue, or a worker has it."""
        self.is_suspended = False
        """Whether an ordered queue waits before its failed message is handled again."""
        self.is_released = False
        """Whether it is being handed over."""
        self.running = 0
        """Number of handlers that have messages of it."""
        self.failed_pulls = LogBackoff()
        self.damaged_reads = 0
        """How many times in a row the next record was damaged."""
        self.pulled_at = 0.0
        self.consumed_at = 0.0
        self._changed: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<ProcessQueue {self.ref} {self.buffer!r} running={self.running}>"

    def is_locked(self, now: float) -> bool:
        """Return whether the lock of this member is still valid."""
        return self.locked_at is not None and now < self.locked_at + LOCK_VALID_S

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true; it is evaluated at each `changed`. One task may wait at a time."""
        while not condition():
            self._changed = asyncio.get_running_loop().create_future()
            try:
                await self._changed
            finally:
                self._changed = None

    def changed(self) -> None:
        """Wake the task in `until`."""
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
