"""Shares the event loop between clients, and between the connections of each client.

A connection is served as soon as it is read if it is cheap, or if the loop is not busy. Otherwise it waits here; the
loop serves waiting connections for `TURN_S` between two polls of the sockets.

This is start-time fair queueing in two levels. Each client has a virtual time, which advances by its service time while
others wait, and so has each connection among those of its client. The client with the earliest expected finish in
virtual time is next, and of its connections the one with the earliest. So no client gets much more time than another,
however many connections it has, and cheap connections go first.

A turn that takes much longer than expected may not be the connection's doing. The garbage collector ran, or the
process had no processor: this time is not charged. Or it did work for all connections, such as writing the index for
the messages of all senders: this is charged little by little, in later turns.
"""

import asyncio
import contextlib
import gc
from heapq import heappop, heappush
from itertools import count
from typing import Final, Generic, Protocol, TypeVar

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

T = TypeVar("T")
_numbers: Final = count()
"""Order of arrival, which breaks ties."""


class Timeline(Generic[T]):
    """What waits, in order of the expected finish in virtual time."""

    __slots__ = ("virtual_s", "waiting")

    def __init__(self) -> None:
        self.virtual_s = 0.0
        """Virtual start time of the one served last."""
        self.waiting: list[tuple[float, int, float, T]] = []
        """A heap: expected finish, number, start, and who waits; times are virtual."""

    def add(self, time_s: float, cost_s: float, one: T) -> float:
        """Add one that is at a virtual time; return when it begins."""
        begins_s = max(self.virtual_s, time_s)
        heappush(self.waiting, (begins_s + cost_s, next(_numbers), begins_s, one))
        return begins_s

    def pop(self) -> T:
        """Remove and return the one that is next."""
        _, _, begins_s, one = heappop(self.waiting)
        self.virtual_s = max(self.virtual_s, begins_s)
        return one


class Client(Timeline["Waiting"]):
    """The connections of one client, which get the time of one client together."""

    __slots__ = ("connections", "is_queued", "key", "time_s")

    def __init__(self, key: str = "") -> None:
        super().__init__()
        self.key = key
        """Its name, such as an address; empty for one that is a single connection."""
        self.connections = 0
        """Number of open connections that have joined it."""
        self.time_s = 0.0
        """Virtual time of the client."""
        self.is_queued = False


class Share:
    """A connection's use of the loop, as the queue keeps it."""

    __slots__ = ("client", "cost_s", "is_queued", "owed_s", "virtual_s")

    def __init__(self) -> None:
        self.client = Client()
        self.cost_s = FIRST_COST_S
        """Expected service time of the next turn, by the longest of the recent turns."""
        self.virtual_s = 0.0
        """Virtual time of the connection among those of its client."""
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
        *("_by_key", "_clients", "_clock", "_collected_s", "_collecting_since", "_paused_s"),
        *("is_busy", "spent_s"),
    )

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._collected_s = 0.0
        """Time of all garbage collections."""
        self._collecting_since = 0.0
        self._paused_s = self._pauses_s()
        """`_pauses_s` when the queue's turn began, or after the last turn that took longer than expected."""
        self._clients: Timeline[Client] = Timeline()
        """Clients with connections that wait, other than the one in service."""
        self._by_key: dict[str, Client] = {}
        self.is_busy = False
        """Whether connections wait or are being served."""
        self.spent_s = 0.0
        """Service time of connections served as they were read, in this turn of the loop."""

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
        return sum(len(client.waiting) for _, _, _, client in self._clients.waiting)

    def join(self, share: Share, key: str) -> None:
        """Make a connection one of those of a client, such as all connections from an address."""
        self.leave(share)
        client = self._by_key.get(key)
        if client is None:
            client = self._by_key[key] = Client(key)
        client.connections += 1
        share.client = client

    def leave(self, share: Share) -> None:
        """Note that a connection has ended, or joins another client."""
        client = share.client
        client.connections -= 1
        if client.connections <= 0:
            self._by_key.pop(client.key, None)

    def add(self, connection: Waiting) -> None:
        """Queue a connection, which must not be in the queue already."""
        share = connection.share
        client = share.client
        share.is_queued = True
        share.virtual_s = client.add(share.virtual_s, share.cost_s, connection)
        if not client.is_queued:
            self._add_client(client)
        if not self.is_busy:
            self._plan()

    def _add_client(self, client: Client) -> None:
        client.is_queued = True
        finish_s, _, begins_s, _ = client.waiting[0]
        client.time_s = self._clients.add(client.time_s, finish_s - begins_s, client)

    def must_wait(self, share: Share) -> bool:
        """Return whether a connection must queue.

        It was expensive recently, or the loop has used up its `TURN_S`, or it is ahead of those that wait.
        """
        if share.cost_s <= LIGHT_S:
            return False
        return share.cost_s > SHARE_S or self.spent_s > TURN_S or self._is_ahead(share)

    def _is_ahead(self, share: Share) -> bool:
        """Return whether a connection is ahead of others of its client, or its client of other clients."""
        client = share.client
        if client.waiting and share.virtual_s > client.virtual_s:
            return True
        others = len(self._clients.waiting) - client.is_queued
        return others > 0 and client.time_s > self._clients.virtual_s

    def charge(self, share: Share, took_s: float) -> None:
        """Add service time to a connection's share."""
        self.spent_s += took_s
        billed_s, faded_s = took_s, FADING * share.cost_s
        if took_s > LIGHT_S or share.owed_s > 0:
            took_s, billed_s = self._bill(share, took_s)
        share.cost_s = took_s if took_s > faded_s else faded_s
        if self.is_busy and share.cost_s > LIGHT_S:  # others never wait, so they get nothing ahead of their time
            share.virtual_s += billed_s
            share.client.time_s += billed_s

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

    def end_turn(self) -> None:
        """Note that all connections that were ready have been read, and the loop polls the sockets next."""
        if not self.is_busy:
            self.spent_s = 0.0

    def _plan(self) -> None:
        self.is_busy = True
        asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        clients, until = self._clients, self._clock.monotonic() + TURN_S
        self._paused_s = self._pauses_s()
        try:
            while clients.waiting:
                self._serve(clients.pop())
                if self._clock.monotonic() > until:
                    break
        finally:
            self.spent_s, self.is_busy = 0.0, False
            if clients.waiting:
                self._plan()

    def _serve(self, client: Client) -> None:
        """Let the first connection of a client take its turn."""
        client.is_queued = False
        connection = client.pop()
        connection.share.is_queued = False
        try:
            connection.take_turn()
        finally:
            if client.waiting and not client.is_queued:
                self._add_client(client)
