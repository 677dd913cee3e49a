"""Long polling: pulls that wait for the next message of a queue."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

from skyroute.errors import SkyrouteError
from skyroute.remoting.dispatch import DeferredResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Response

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
Q = TypeVar("Q", bound=tuple[object, ...])
R = TypeVar("R")

SUSPENDED_MAX: Final = 200_000
"""Suspended pulls of all queues."""
SUSPENDED_CHARS_MAX: Final = 1 << 28
"""Characters that suspended pulls keep: their filters, and with access control whole requests."""
TICKS_A_SECOND: Final = 4
"""Resolution of timeouts."""
GIVEN_UP_AT_ONCE: Final = 100
"""Requests of the client with most of them that are completed when there is no room for those of another client."""
TURN_S: Final = 0.005
"""Time per turn of the loop for serving suspended pulls."""


class SuspendedRequest(ABC, Generic[Q]):
    """A request that waits for a message of a queue."""

    def __init__(self, peer: Peer, queue: Q, deadline: float, chars: int = 0) -> None:
        self.peer = peer
        self.queue = queue
        self.chars = chars
        """Number of characters that it keeps of what the client sent."""
        self.deadline_tick = int(deadline * TICKS_A_SECOND) + 1
        self.answer = DeferredResponse()
        self.waits = False
        """It is suspended and has no response yet."""
        self.is_ending = False
        """It gets no more messages, because its client may no longer process them."""

    @abstractmethod
    def retry(self) -> Response | None:
        """Read again; None if there are still no messages."""

    @abstractmethod
    def time_out(self) -> Response:
        """Return the response after the timeout."""


class SuspendedPull(SuspendedRequest[tuple[str, int]]):
    """A pull that waits for a message."""


class WaitingRequests(Generic[Q]):
    """Suspended requests by queue, deadline and connection.

    Woken and expired requests are served for `TURN_S` per turn.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._by_queue: dict[Q, dict[SuspendedRequest[Q], None]] = {}
        """In the order of arrival."""
        self._by_tick: dict[int, dict[SuspendedRequest[Q], None]] = {}
        self._by_connection: dict[int, dict[SuspendedRequest[Q], None]] = {}
        self._checking: dict[Q, bool] = {}
        """Queues whose pulls are being checked, and whether to check them again afterwards."""
        self._expiring: set[int] = set()
        """Ticks whose pulls are being completed because their timeout is over."""
        self._work: deque[Iterator[None]] = deque()
        """Work under way; each step serves one pull."""
        self._is_scheduled = False
        """`_continue` is scheduled for the next turn of the loop."""
        self._count = 0
        self._chars = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self)} on {len(self._by_queue)} queues>"

    def __len__(self) -> int:
        return self._count

    def suspend(self, pull: SuspendedRequest[Q]) -> DeferredResponse:
        """Suspend a pull until a message arrives or its timeout is over."""
        self._by_queue.setdefault(pull.queue, {})[pull] = None
        self._by_tick.setdefault(pull.deadline_tick, {})[pull] = None
        self._by_connection.setdefault(pull.peer.connection, {})[pull] = None
        self._count += 1
        self._chars += pull.chars
        pull.waits = True
        return pull.answer

    def waiting(self, queue: Q) -> int:
        """Return the number of suspended pulls of one queue."""
        return len(self._by_queue.get(queue, ()))

    def _give_way(self, source: str) -> None:
        """Complete the oldest requests of the client that has most, if that is another one with many more."""
        held = Counter[str]()
        for pulls in self._by_connection.values():
            held[next(iter(pulls)).peer.source] += len(pulls)
        for largest, count in held.most_common(1):
            if count > held[source] + GIVEN_UP_AT_ONCE:
                of_client = (
                    pull for pulls in self._by_connection.values() for pull in pulls if pull.peer.source == largest
                )
                for _ in self._complete(list(islice(of_client, GIVEN_UP_AT_ONCE))):
                    pass  # at once, so that there is room

    def check(self, queue: Q) -> None:
        """Check the pulls of one queue again."""
        work = self._check(queue)
        if work is not None:
            self._begin([work])

    def _check(self, queue: Q) -> Iterator[None] | None:
        """Return the work of checking a queue's pulls again; None if it is under way, which then repeats."""
        is_under_way = queue in self._checking
        self._checking[queue] = True
        return None if is_under_way else self._check_pulls(queue)

    def _pulls(self, queue: Q) -> list[SuspendedRequest[Q]]:
        return list(self._by_queue.get(queue, ()))

    def _check_pulls(self, queue: Q) -> Iterator[None]:
        try:
            while self._checking[queue]:
                self._checking[queue] = False
                for pull in self._pulls(queue):
                    if pull.waits and not pull.peer.gone:
                        self._retry(pull)
                    yield
        finally:
            del self._checking[queue]

    def _retry(self, pull: SuspendedRequest[Q]) -> bool:
        """Read again for a pull; false if it still waits."""
        response = _or_error(pull.retry)
        if response is None:
            return False
        self._remove(pull)
        pull.answer.give(response)
        return True

    def expire(self, now: float) -> None:
        """Complete the pulls whose timeout is over."""
        tick = int(now * TICKS_A_SECOND)
        self._end([past for past in self._by_tick if past <= tick])

    def end_all(self) -> None:
        """Complete all pulls, as after their timeout: another broker has the next messages."""
        self._end(self._by_tick)

    def _end(self, ticks: Iterable[int]) -> None:
        ended = [tick for tick in ticks if tick not in self._expiring]
        self._expiring.update(ended)
        self._begin(map(self._time_out, ended))

    def _time_out(self, tick: int) -> Iterator[None]:
        try:
            yield from self._complete(list(self._by_tick.get(tick, ())))  # empty if all were completed since
        finally:
            self._expiring.remove(tick)

    def _complete(self, pulls: Iterable[SuspendedRequest[Q]]) -> Iterator[None]:
        for pull in pulls:
            if pull.waits:
                self._remove(pull)
                pull.answer.give(_or_error(pull.time_out))
            yield

    def drop(self, connection: int) -> None:
        """Drop the pulls of a closed connection."""
        if connection in self._by_connection:
            self._begin([self._drop(list(self._by_connection[connection]))])

    def _drop(self, pulls: Iterable[SuspendedRequest[Q]]) -> Iterator[None]:
        for pull in pulls:
            if pull.waits:
                self._remove(pull)
            yield

    def _remove(self, pull: SuspendedRequest[Q]) -> None:
        self._count -= 1
        self._chars -= pull.chars
        pull.waits = False
        _discard(self._by_queue, pull.queue, pull)
        _discard(self._by_tick, pull.deadline_tick, pull)
        _discard(self._by_connection, pull.peer.connection, pull)

    def _begin(self, work: Iterable[Iterator[None]]) -> None:
        self._work.extend(work)
        if not self._is_scheduled:
            self._continue()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._continue)

    def _continue(self) -> None:
        """Serve pulls for `TURN_S`; the next turn of the loop serves the rest."""
        self._is_scheduled = False
        deadline = self._monotonic() + TURN_S
        while self._work:
            work = self._work.popleft()
            for _ in work:
                if self._monotonic() >= deadline:
                    self._work.append(work)
                    self._schedule()
                    return

    async def run(self) -> None:
        """Expire pulls at every tick."""
        while True:
            await asyncio.sleep(1 / TICKS_A_SECOND)
            self.expire(self._monotonic())


class LongPolling(WaitingRequests[tuple[str, int]]):
    """Pulls that wait. A message wakes those of its queue at the end of the turn: several messages wake them once."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        super().__init__(monotonic)
        self._woken: set[tuple[str, int]] = set()
        self._watched: dict[str, Callable[[str, int], None]] = {}
        """Callbacks by topic: see `watch`."""
        self.wake_after_flush = False
        """Messages are visible only after a flush, or once slaves have them: `wake` wakes pulls, not an arrival."""

    def has_room(self, source: str, chars: int) -> bool:
        """Return whether one more pull of a client address that keeps so many characters may be suspended.

        A client that has taken all the room has some of its pulls completed for others.
        """
        if not self._fits(chars):
            self._give_way(source)
        return self._fits(chars)

    def _fits(self, chars: int) -> bool:
        return self._count < SUSPENDED_MAX and self._chars + chars <= SUSPENDED_CHARS_MAX

    def watch(self, topic: str, notify: Callable[[str, int], None]) -> None:
        """Call `notify` with topic and queue whenever `wake` finds that a topic has new messages."""
        self._watched[topic] = notify

    def unwatch(self, topic: str) -> None:
        """End `watch`."""
        self._watched.pop(topic, None)

    def arrived(self, topic: str, queue_id: int) -> None:
        """Note that a queue has a new message."""
        queue = (topic, queue_id)
        if (queue in self._by_queue or topic in self._watched) and queue not in self._woken:
            if not self._woken and not self.wake_after_flush:
                asyncio.get_running_loop().call_soon(self.wake)
            self._woken.add(queue)

    def wake(self, *, is_complete: bool = True) -> None:
        """Check the pulls of all queues with new messages; again at the next call if some may not be visible yet."""
        woken = self._woken
        self._woken = set() if is_complete else set(woken)
        self._begin(work for queue in woken if (work := self._check(queue)) is not None)
        if self._watched:
            for topic, queue_id in woken:
                if topic in self._watched:
                    self._watched[topic](topic, queue_id)

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Check the pulls of one queue again."""
        self.check((topic, queue_id))

    def complete_queue(self, topic: str, queue_id: int) -> None:
        """Respond to the pulls of one queue as if their timeout were over."""
        self._begin([self._complete(self._pulls((topic, queue_id)))])


def _or_error(call: Callable[[], R]) -> R | Response:
    """Return the response of one pull, or an error: the pulls behind it must not wait."""
    try:
        return call()
    except SkyrouteError as error:
        return Response.error(str(error), error.code if isinstance(error, RefusedError) else ResponseCode.SYSTEM_ERROR)
    except Exception as error:
        log.exception("suspended pull failed")
        return Response.error(f"{type(error).__name__}: {error}")


def _discard(table: dict[K, dict[SuspendedRequest[Q], None]], key: K, pull: SuspendedRequest[Q]) -> None:
    pulls = table[key]
    del pulls[pull]
    if not pulls:
        del table[key]
