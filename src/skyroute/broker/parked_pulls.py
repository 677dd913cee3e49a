"""Consumers who wait for the next message of a queue."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, TypeVar

from skyroute.errors import SkyrouteError
from skyroute.remoting.dispatch import Later, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Response

log = logging.getLogger(__name__)

K = TypeVar("K")
R = TypeVar("R")

PARKED_MAX: Final = 200_000
"""How many wait at most, over all queues."""
TICKS_A_SECOND: Final = 4
"""How exactly the end of a wait is kept."""


class ParkedPull(ABC):
    """One pull that waits."""

    def __init__(self, peer: Peer, queue: tuple[str, int], deadline: float) -> None:
        self.peer = peer
        self.queue = queue
        self.deadline_tick = int(deadline * TICKS_A_SECOND) + 1
        self.answer = Later()

    @abstractmethod
    def look(self) -> Response | None:
        """Look for messages again; None where there are still none."""

    @abstractmethod
    def give_up(self) -> Response:
        """Answer that nothing came in time."""


class ParkedPulls:
    """Who waits for what, and until when.

    A message wakes the pulls of its queue at the end of the loop's turn, so that many messages wake them once.
    """

    def __init__(self) -> None:
        self._by_queue: dict[tuple[str, int], set[ParkedPull]] = {}
        self._by_tick: dict[int, set[ParkedPull]] = {}
        self._by_connection: dict[int, set[ParkedPull]] = {}
        self._woken: set[tuple[str, int]] = set()
        self._count = 0
        self.only_when_told = False
        """Messages are not shown before they are on the disk: pulls are woken by `wake`, and not by an arrival."""

    def __repr__(self) -> str:
        return f"<ParkedPulls {len(self)} on {len(self._by_queue)} queues>"

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        return self._count >= PARKED_MAX

    def park(self, pull: ParkedPull) -> Later:
        """Let a pull wait."""
        self._by_queue.setdefault(pull.queue, set()).add(pull)
        self._by_tick.setdefault(pull.deadline_tick, set()).add(pull)
        self._by_connection.setdefault(pull.peer.connection, set()).add(pull)
        self._count += 1
        return pull.answer

    def arrived(self, topic: str, queue_id: int) -> None:
        """Note that a queue has something new."""
        queue = (topic, queue_id)
        if queue in self._by_queue and queue not in self._woken:
            if not self._woken and not self.only_when_told:
                asyncio.get_running_loop().call_soon(self.wake)
            self._woken.add(queue)

    def wake(self) -> None:
        """Have the pulls look again whose queues have something new."""
        woken, self._woken = self._woken, set()
        for queue in woken:
            self._look(queue)

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Have the pulls of one queue look again at once, whatever the reason."""
        self._look((topic, queue_id))

    def _look(self, queue: tuple[str, int]) -> None:
        for pull in list(self._by_queue.get(queue, ())):
            response = _or_why_not(pull.look)
            if response is not None:
                self._remove(pull)
                pull.answer.give(response)

    def expire(self, now: float) -> None:
        """Answer those whose time is over."""
        tick = int(now * TICKS_A_SECOND)
        for past in [past for past in self._by_tick if past <= tick]:
            for pull in list(self._by_tick[past]):
                self._remove(pull)
                pull.answer.give(_or_why_not(pull.give_up))

    def drop(self, connection: int) -> None:
        """Forget those of a connection that has ended."""
        for pull in list(self._by_connection.get(connection, ())):
            self._remove(pull)

    def _remove(self, pull: ParkedPull) -> None:
        self._count -= 1
        _discard(self._by_queue, pull.queue, pull)
        _discard(self._by_tick, pull.deadline_tick, pull)
        _discard(self._by_connection, pull.peer.connection, pull)

    async def run(self, monotonic: Callable[[], float]) -> None:
        """Look for those whose time is over, again and again."""
        while True:
            await asyncio.sleep(1 / TICKS_A_SECOND)
            self.expire(monotonic())


def _or_why_not(look: Callable[[], R]) -> R | Response:
    """Answer one pull, whatever is wrong with it: those behind it wait for theirs."""
    try:
        return look()
    except SkyrouteError as error:
        return Response.error(str(error), error.code if isinstance(error, RefusedError) else ResponseCode.SYSTEM_ERROR)
    except Exception as error:
        log.exception("pull that waited failed")
        return Response.error(f"{type(error).__name__}: {error}")


def _discard(table: dict[K, set[ParkedPull]], key: K, pull: ParkedPull) -> None:
    pulls = table[key]
    pulls.remove(pull)
    if not pulls:
        del table[key]
