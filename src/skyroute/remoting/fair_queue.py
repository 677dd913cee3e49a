"""Shares the event loop between connections: cheap requests are processed before expensive ones.

A connection is served as soon as it is read if it is cheap, or if the loop is not busy. Otherwise it waits here; the
loop serves waiting connections for `TURN_S` between two polls of the sockets.

This is start-time fair queueing. Each connection has a virtual time, which advances by its service time while
others wait. The connection with the earliest expected finish in virtual time is next. So no connection gets much more
time than another, and cheap ones go first.

A turn that takes much longer than expected may not be the connection's doing. The garbage collector ran, or the
process had no processor: this time is not charged. Or it did work for all connections, such as writing the index for
the messages of all senders: this is charged little by little, in later turns.
"""

import asyncio
import contextlib
import gc
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

from skyroute.clock import Clock

SHARE_S: Final = 0.002
"""Service time of one connection per turn; a request that has begun is finished."""

TURN_S: Final = 0.005
"""Service time per turn of the loop: of connections served as they are read, and of waiting ones."""

LIGHT_S: Final = 0.0001
"""A connection that is served in less time never waits: queueing would take as long."""

FIRST_COST_S: Final = 0.0005
"""Expected service time of a new connection."""

FADING: Final = 0.5
"""Decay factor of the expected service time, per turn."""

SURPRISE: Final = 2.0
"""A turn that takes more than this multiple of the expected time is not believed at once."""

CREDIT_S: Final = 0.01
"""Service time that a connection may owe: more than one turn's work for all connections takes."""


class Share:
    """A connection's use of the loop, as the queue keeps it."""

    __slots__ = ("cost_s", "is_queued", "owed_s", "virtual_s")

    def __init__(self) -> None:
        self.cost_s = FIRST_COST_S
        """Expected service time of the next turn, by the longest of the recent turns."""
        self.virtual_s = 0.0
        """Virtual time of the connection."""
        self.is_queued = False
        self.owed_s = 0.0
        """Service time that later turns are charged for."""


class Waiting(Protocol):
    """A connection, as this queue knows it."""

    share: Share

    def take_turn(self) -> None:
        """Process requests for about `SHARE_S`; call `add` again if some are left."""


class FairQueue:
    """Connections that wait to be served."""

    __slots__ = (
        *("_clock", "_collected_s", "_collecting_since", "_heap", "_numbers", "_paused_s", "_virtual_s"),
        *("is_busy", "spent_s"),
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._collected_s = 0.0
        """Time of all garbage collections."""
        self._collecting_since = 0.0
        self._paused_s = self._pauses_s()
        """`_pauses_s` when the queue's turn began, or after the last turn that took longer than expected."""
        self._heap: list[tuple[float, int, float, Waiting]] = []
        """Expected finish, number, start, and connection; times are virtual."""
        self.is_busy = False
        """Whether connections wait or are being served."""
        self._numbers = count()
        """Order of arrival, which breaks ties."""
        self._virtual_s = 0.0
        """Virtual start time of the connection served last."""
        self.spent_s = 0.0
        """Service time of connections served as they were read, since the queue last ran."""

    def attach(self) -> None:
        """Begin to measure garbage collections."""
        gc.callbacks.append(self.note_collection)

    def detach(self) -> None:
        """Measure none any more."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self.note_collection)

    def note_collection(self, phase: str, _: dict[str, int]) -> None:
        """Note that a garbage collection starts or stops. The interpreter calls this."""
        if phase == "start":
            self._collecting_since = self._clock.computed()
        else:
            self._collected_s += self._clock.computed() - self._collecting_since

    def _pauses_s(self) -> float:
        """Return a time that advances only while no connection can be served, or the loop sleeps."""
        return self._clock.monotonic() - self._clock.computed() + self._collected_s

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, connection: Waiting) -> None:
        """Queue a connection, which must not be in the queue already."""
        share = connection.share
        share.is_queued = True
        share.virtual_s = begins = max(self._virtual_s, share.virtual_s)
        heappush(self._heap, (begins + share.cost_s, next(self._numbers), begins, connection))
        if not self.is_busy:
            self._plan()

    def must_wait(self, share: Share) -> bool:
        """Return whether a connection must queue.

        It was expensive recently, or the loop has used up its `TURN_S`, or it is ahead of the connections that wait.
        """
        if share.cost_s <= LIGHT_S:
            return False
        is_ahead = self.is_busy and share.virtual_s > self._virtual_s
        return is_ahead or share.cost_s > SHARE_S or self.spent_s > TURN_S

    def charge(self, share: Share, took_s: float) -> None:
        """Add service time to a connection's share."""
        self.spent_s += took_s
        billed_s, faded_s = took_s, FADING * share.cost_s
        if took_s > LIGHT_S or share.owed_s > 0:
            took_s, billed_s = self._bill(share, took_s)
        share.cost_s = took_s if took_s > faded_s else faded_s
        if self.is_busy and share.cost_s > LIGHT_S:  # others never wait, so they get nothing ahead of their time
            share.virtual_s += billed_s

    def _bill(self, share: Share, took_s: float) -> tuple[float, float]:
        """Return what a turn seems to cost the connection, and what it is charged now."""
        usual_s = max(LIGHT_S, SURPRISE * share.cost_s)
        if took_s > usual_s:
            before_s, self._paused_s = self._paused_s, self._pauses_s()
            took_s = max(0.0, took_s - (self._paused_s - before_s))
        owed_s = share.owed_s + took_s
        if owed_s > usual_s + CREDIT_S:
            share.owed_s = 0.0
            return took_s, owed_s
        billed_s = min(owed_s, usual_s)
        share.owed_s = owed_s - billed_s
        return min(took_s, usual_s), billed_s

    def _plan(self) -> None:
        self.is_busy = True
        asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        heap, until = self._heap, self._clock.monotonic() + TURN_S
        self._paused_s = self._pauses_s()
        try:
            while heap:
                _, _, begins, connection = heappop(heap)
                self._virtual_s = max(self._virtual_s, begins)
                connection.share.is_queued = False
                connection.take_turn()
                if self._clock.monotonic() > until:
                    break
        finally:
            self.spent_s, self.is_busy = 0.0, False
            if heap:
                self._plan()
