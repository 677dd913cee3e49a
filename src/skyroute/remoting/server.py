"""A listening server and its connections."""

import asyncio
import contextlib
import logging
import os
import socket
from collections import defaultdict
from collections.abc import Callable, Coroutine
from errno import EADDRINUSE
from heapq import heapify, heappop, heapreplace
from itertools import count
from typing import Any, Final

from skyroute.clock import Clock
from skyroute.remoting.address import join_address
from skyroute.remoting.busy_polling import BusyPolling, WriteBatch
from skyroute.remoting.client_meters import ClientMeters
from skyroute.remoting.connection import Connection
from skyroute.remoting.dispatch import Dispatcher
from skyroute.remoting.errors import BindError, reason_of
from skyroute.remoting.fair_queue import Client, FairQueue
from skyroute.remoting.free_memory import Trimming, trim
from skyroute.remoting.limits import ByteBudget, CloseLog, Limits
from skyroute.remoting.server_context import ServerContext
from skyroute.remoting.stall_detection import StallDetector
from skyroute.remoting.tls import ServerTls

log = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
CLOSING_S: Final = 5.0
"""Maximum time in which a closing connection must send its last responses."""

ROOM_SHARE: Final = 16
"""If connections hold more bytes than all may, this part of them is freed."""
CLOSED_AT_ONCE_MAX: Final = 100
"""Connections that are closed at the same time because all hold too many bytes."""

_numbers: Final = count(1)
"""Connection numbers, unique over all servers of the process: several may share their handlers."""


class Server:
    """One listening address.

    `on_disconnect` is called once for every connection that ends, except those that end because the server stops.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        *,
        tls: ServerTls,
        clock: Clock,
        on_disconnect: Callable[[int], None],
        limits: Limits | None = None,
        polling: BusyPolling | None = None,
    ) -> None:
        limits = limits or Limits()
        queue = FairQueue(clock)
        self._context = ServerContext(
            dispatcher=dispatcher,
            tls=tls,
            clock=clock,
            limits=limits,
            buffered=ByteBudget(limits.buffered_bytes_max),
            unsent=ByteBudget(limits.unsent_bytes_max),
            close_log=CloseLog(),
            polling=polling or BusyPolling(),
            write_batch=WriteBatch(queue.end_turn),
            queue=queue,
            meters=ClientMeters(limits.clients) if limits.clients.are_set else None,
            on_made=self._on_made,
            on_lost=self._on_lost,
            on_full=self._make_room,
            spawn=self.spawn,
        )
        self._on_disconnect = on_disconnect
        self._connections: dict[int, Connection] = {}
        self.turned_away = 0
        """Number of connections that were refused because too many were open."""
        self._listener: asyncio.Server | None = None
        self.port = 0
        """The port, once the server is bound."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._stopping = False
        self._stalls = StallDetector(SWEEP_S, SWEEP_S, clock.monotonic())
        self._trimming = Trimming(clock.monotonic())

    def __repr__(self) -> str:
        held = self._context
        return (
            f"<Server connections={len(self._connections)} buffered={held.buffered.total} unsent={held.unsent.total}>"
        )

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    @property
    def buffered_bytes(self) -> int:
        """Bytes of incomplete and waiting frames."""
        return self._context.buffered.total

    @property
    def unsent_bytes(self) -> int:
        """Bytes of responses that peers have not read, as counted last."""
        return self._context.unsent.total

    @property
    def address_refused(self) -> int:
        """Number of connections that were refused because of the limits for one address."""
        return 0 if self._context.meters is None else self._context.meters.refused

    # Life

    async def start(self, host: str, port: int) -> None:
        """Bind and serve. With port 0 the system chooses one.

        Raises:
            BindError: the address cannot be bound.
        """
        await self.bind(host, port)
        await self.serve()

    async def bind(self, host: str, port: int) -> None:
        """Bind an address. Connections to it are refused until `serve`.

        Raises:
            BindError: it cannot be bound.
        """
        loop, limits = asyncio.get_running_loop(), self._context.limits
        try:
            self._listener = await loop.create_server(
                self._accept, host, port, backlog=limits.listen_backlog, reuse_address=True, start_serving=False
            )
            for listening in self._listener.sockets:  # accepted sockets inherit the sizes
                if limits.send_buffer_bytes:
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
                if limits.receive_buffer_bytes:
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
            self.port = self._listener.sockets[0].getsockname()[1]
        except (OSError, ValueError, OverflowError) as error:  # an invalid name or port
            raise bind_error(host, port, error) from None

    async def serve(self) -> None:
        """Accept connections.

        Raises:
            BindError: another server listens on the address.
        """
        assert self._listener is not None
        try:
            await self._listener.start_serving()
        except OSError as error:
            raise bind_error("the address", self.port, error) from None
        if not listens(self._listener):  # uvloop does not raise
            raise bind_error("the address", self.port, OSError(EADDRINUSE, os.strerror(EADDRINUSE)))
        self._context.queue.attach()
        self.spawn(self._sweep_for_ever())

    async def stop(self, drain_s: float = 0.0) -> None:
        """Serve for `drain_s` more, or until no connection is left; then send the last responses and close all."""
        if self._listener is None:
            return
        self._context.queue.detach()
        if drain_s > 0:
            self._context.dispatcher.drain()
            log.info("server drains seconds=%.0f connections=%d", drain_s, len(self._connections))
            await self._until_empty(drain_s)
        self._stopping = True
        self._listener.close()
        for connection in list(self._connections.values()):
            connection.close()
        await self._until_empty(CLOSING_S)
        for connection in list(self._connections.values()):
            connection.abort()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._until_empty(1.0)

    def abort(self) -> None:
        """Close everything at once, without responses, as if the process died."""
        self._stopping = True
        self._context.queue.detach()
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections.values()):
            connection.abort()
        for task in list(self._tasks):
            task.cancel()

    async def _until_empty(self, timeout_s: float) -> None:
        self._empty.clear()
        if self._connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._empty.wait()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine until it ends or the server stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Connections

    def close_connection(self, number: int) -> None:
        """Close a connection, if it is still open."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.close()

    def sweep(self, now: float) -> None:
        """Close connections that are idle, did not complete their first request, or do not finish closing.

        A late sweep closes none: what peers sent meanwhile may be unread.
        """
        if self._stalls.holds_back(now):
            return
        limits = self._context.limits
        for connection in list(self._connections.values()):
            connection.check(now)
            closing_since, opening_since = connection.closing_since, connection.opening_since
            if closing_since is not None:
                if now - closing_since > CLOSING_S:
                    connection.abort()
            elif opening_since is not None and now - opening_since > limits.opening_s:
                connection.abort("its first request or TLS handshake was not complete in time")
            elif connection.writer.is_too_slow(now, limits.idle_s):
                connection.abort("it reads its responses too slowly")
            elif now - connection.active_at > limits.idle_s:
                log.info("connection closed peer=%s reason=idle", connection.peer.address)
                connection.abort()

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.sweep(self._context.clock.monotonic())
            self._trim_if_due()

    def _trim_if_due(self) -> None:
        freed = self._context.buffered.freed + self._context.unsent.freed
        if self._trimming.is_due(freed, self._context.clock.monotonic()):
            trim()

    def _accept(self) -> Connection:
        return Connection(self._context, next(_numbers))

    def _on_made(self, connection: Connection) -> None:
        self._connections[connection.peer.connection] = connection
        if self._stopping:
            connection.abort()
            return
        allowed = self._context.limits.connections_max
        if len(self._connections) <= allowed:
            return
        self.turned_away += 1
        if self.turned_away.bit_count() == 1:  # the 1st, 2nd, 4th, 8th …, to limit the log
            log.warning(
                "connection turned away peer=%s reason=serverMaxConnections=%d are open turned_away=%d",
                connection.peer.address,
                allowed,
                self.turned_away,
            )
        connection.abort()

    def _on_lost(self, connection: Connection, error: Exception | None) -> None:
        number = connection.peer.connection
        del self._connections[number]
        if not self._connections:
            self._empty.set()
        if error is not None:
            log.debug("connection lost peer=%s reason=%s", connection.peer.address, error)
        if not self._stopping:
            self._on_disconnect(number)
            self._trim_if_due()

    def _make_room(self, number: int, budget: ByteBudget) -> None:
        """Close connections of the client that holds most: that one whose bytes have exceeded a budget, or the largest.

        A client that fills the budget must not have the connections of others closed.
        """
        is_input = budget is self._context.buffered
        reason = "too many incomplete frames in all" if is_input else "too many unread responses in all"

        def held(connection: Connection) -> int:
            return connection.buffered_bytes if is_input else connection.writer.unsent_bytes

        by_client: dict[Client, list[Connection]] = defaultdict(list)
        for connection in self._connections.values():
            if held(connection):
                by_client[connection.share.client].append(connection)
        clients = [(-sum(map(held, those)), at, those) for at, those in enumerate(by_client.values())]
        heapify(clients)
        ordered = set[int]()
        for _ in range(CLOSED_AT_ONCE_MAX):
            if not clients or budget.total <= budget.limit - budget.limit // ROOM_SHARE:
                break
            total, at, those = clients[0]
            if at not in ordered:
                ordered.add(at)
                those.sort(key=lambda each: (each.peer.connection == number, held(each)))
            victim = those.pop()
            freed = held(victim)
            victim.abort(reason)
            victim.writer.drop()
            if those:
                heapreplace(clients, (total + freed, at, those))
            else:
                heappop(clients)


def listens(listener: asyncio.Server) -> bool:
    """Return whether a server listens: uvloop closes a socket that cannot, without an error."""
    try:
        return all(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for each in listener.sockets)
    except ValueError:
        return False


def bind_error(
    host: str, port: int, error: Exception, host_key: str = "bindAddress", port_key: str = "listenPort"
) -> BindError:
    """Return the error for an address that cannot be bound. The keys are those of its settings."""
    hint = f"{host_key} must be an address of this machine, and {port_key} a port we may use."
    if isinstance(error, OSError) and error.errno == EADDRINUSE:
        hint = f"Is another server running there? Set {port_key} or {host_key} to something free."
    return BindError(f"Failed to bind to {join_address(host, port)}: {reason_of(error)}. {hint}")
