"""Listens, keeps the accepted connections, and parts with those that do not behave."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from errno import EADDRINUSE
from itertools import count
from typing import Any, Final

from skyroute.clock import Clock
from skyroute.remoting.address import join_address
from skyroute.remoting.busy_polling import BusyPolling, WriteBatch
from skyroute.remoting.connection import Connection, ServerContext
from skyroute.remoting.dispatch import Dispatcher
from skyroute.remoting.errors import BindError
from skyroute.remoting.fair_queue import FairQueue
from skyroute.remoting.free_memory import Trimming, trim
from skyroute.remoting.limits import ByteBudget, CloseLog, Limits
from skyroute.remoting.stall_detection import StallDetector
from skyroute.remoting.tls import ServerTls

log = logging.getLogger(__name__)

SWEEP_S: Final = 1.0
CLOSING_S: Final = 5.0
"""How long a closing connection may take to hand over its last answers."""

_numbers: Final = count(1)
"""Of connections: all servers of a process draw from it, since what they serve may be one thing."""


class Server:
    """One listening address.

    `on_disconnect` hears of every connection that ends, exactly once; not of those that end because the server does.
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
        self._context = ServerContext(
            dispatcher=dispatcher,
            tls=tls,
            clock=clock,
            limits=limits,
            buffered=ByteBudget(limits.buffered_bytes_max),
            unsent=ByteBudget(limits.unsent_bytes_max),
            close_log=CloseLog(),
            polling=polling or BusyPolling(),
            write_batch=WriteBatch(),
            queue=FairQueue(clock.monotonic),
            on_made=self._on_made,
            on_lost=self._on_lost,
            spawn=self.spawn,
        )
        self._on_disconnect = on_disconnect
        self._connections: dict[int, Connection] = {}
        self.turned_away = 0
        """How many connections came when there were too many already."""
        self._listener: asyncio.Server | None = None
        self.port = 0
        """The port we listen on, once started."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._stopping = False
        self._lateness = StallDetector(SWEEP_S, SWEEP_S, clock.monotonic())
        self._trimming = Trimming(clock.monotonic())

    def __repr__(self) -> str:
        held = self._context
        return (
            f"<Server connections={len(self._connections)} buffered={held.buffered.total} unsent={held.unsent.total}>"
        )

    @property
    def connection_count(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    @property
    def buffered_bytes(self) -> int:
        """What peers have begun to say and not finished, or what waits for its turn."""
        return self._context.buffered.total

    @property
    def unsent_bytes(self) -> int:
        """Answers that peers were too slow to take, as of when each was last looked at."""
        return self._context.unsent.total

    # Life

    async def start(self, host: str, port: int) -> None:
        """Begin to serve; port 0 lets the system choose.

        Raises:
            BindError: the address cannot be had.
        """
        await self.bind(host, port)
        await self.serve()

    async def bind(self, host: str, port: int) -> None:
        """Take an address. Whoever comes there is turned away until `serve`.

        Raises:
            BindError: it cannot be had.
        """
        loop, limits = asyncio.get_running_loop(), self._context.limits
        try:
            self._listener = await loop.create_server(
                self._accept, host, port, backlog=limits.listen_backlog, reuse_address=True, start_serving=False
            )
            for listening in self._listener.sockets:  # what is accepted inherits the sizes
                if limits.send_buffer_bytes:
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
                if limits.receive_buffer_bytes:
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
            self.port = self._listener.sockets[0].getsockname()[1]
        except (OSError, ValueError, OverflowError) as error:  # a name or a port that cannot be one
            raise bind_error(host, port, error) from None

    async def serve(self) -> None:
        """Serve whoever comes to the address that was taken.

        Raises:
            BindError: it cannot be had after all.
        """
        assert self._listener is not None
        try:
            await self._listener.start_serving()
            if not listens(self._listener):
                raise OSError(EADDRINUSE, os.strerror(EADDRINUSE))  # noqa: TRY301 - as the other loop does
        except OSError as error:
            raise bind_error("the address", self.port, error) from None
        self.spawn(self._sweep_for_ever())

    async def stop(self, drain_s: float = 0.0) -> None:
        """Serve on for `drain_s`, or until nobody is left; then stop listening, hand over the last answers and end."""
        if self._listener is None:
            return
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
        """End as a process does that dies: nobody is answered any more."""
        self._stopping = True
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
        """Run something in the background until it ends or the server stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Connections

    def close_connection(self, number: int) -> None:
        """End a connection, if it is still there."""
        connection = self._connections.get(number)
        if connection is not None:
            connection.close()

    def sweep(self, now: float) -> None:
        """Part with connections that are idle, never got started, or do not end.

        Nobody, if this sweep comes late: what peers sent meanwhile may wait unread.
        """
        if self._lateness.holds_back(now):
            return
        limits = self._context.limits
        for connection in list(self._connections.values()):
            connection.check(now)
            closing_since, opening_since = connection.closing_since, connection.opening_since
            if closing_since is not None:
                if now - closing_since > CLOSING_S:
                    connection.abort()
            elif opening_since is not None and now - opening_since > limits.opening_s:
                connection.abort("it began, and its first request or TLS handshake did not follow")
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
        if self.turned_away.bit_count() == 1:  # the 1st, 2nd, 4th, 8th …: a flood must not flood the log
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


def listens(listener: asyncio.Server) -> bool:
    """Return whether a server really listens: uvloop closes a socket that cannot, and says nothing."""
    try:
        return all(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for each in listener.sockets)
    except ValueError:
        return False


def bind_error(
    host: str, port: int, error: Exception, host_key: str = "bindAddress", port_key: str = "listenPort"
) -> BindError:
    """Return what to raise where an address cannot be had; the keys are those of the settings that gave it."""
    errno = None if isinstance(error, socket.gaierror) else getattr(error, "errno", None)
    reason = os.strerror(errno) if errno else getattr(error, "strerror", None) or str(error)
    hint = f"{host_key} must be an address of this machine, and {port_key} a port we may use."
    if errno == EADDRINUSE:
        hint = f"Is another server running there? Set {port_key} or {host_key} to something free."
    return BindError(f"Failed to bind to {join_address(host, port)}: {reason}. {hint}")
