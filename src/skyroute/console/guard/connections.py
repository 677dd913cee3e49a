"""Limits the connections of a client, and its time to send a request and to read the response.

uvicorn has no deadline for a request, and returns 503 to all clients when it is full. Here, a connection that waits for
its client has a deadline, and the one that waits longest is closed when a new one exceeds a limit.
"""

import asyncio
import enum
import logging
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from skyroute.console.config import ConnectionLimits
from skyroute.console.guard.forwarded import client_key
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.settings.networks import Networks

log = logging.getLogger(__name__)

ACCEPTED_PER_TURN: Final = 64
"""Connections accepted before other tasks run. In a flood, most are closed before they are read."""
ACCEPT_PAUSE_S: Final = 0.1
"""Before the next try to accept, when the process is out of file descriptors."""

RESET: Final = struct.pack("ii", 1, 0)
"""Closes a socket without keeping unsent bytes in the kernel for a client that does not read them."""


class Wait(enum.Enum):
    """What a connection waits for its client to do."""

    SEND_HEADER = "header"
    SEND_BODY = "body"
    READ_RESPONSE = "response"
    NOTHING = "nothing"
    """The console is processing the request."""


class ConnectionGuard:
    """Counts connections by client. Above a limit, closes the connection that waits longest for its client."""

    def __init__(self, limits: ConnectionLimits, trusted_proxies: Networks) -> None:
        self.limits = limits
        self._trusted_proxies = trusted_proxies
        self._connections: set[GuardedConnection] = set()
        self._by_client: Counter[str] = Counter()
        self._waiting: dict[GuardedConnection, None] = {}
        """Ordered by the time they wait, the longest first."""
        self._log_backoff = LogBackoff()

    def admit(self, connection: "GuardedConnection") -> bool:
        """Count a new connection, and return whether it may stay."""
        limits, client = self.limits, connection.client_key
        is_crowded = self._by_client[client] >= limits.address_connections_max and not self._trusted_proxies.contains(
            connection.address
        )
        if is_crowded or len(self._connections) >= limits.connections_max:
            longest = next((one for one in self._waiting if not is_crowded or one.client_key == client), None)
            reason = "too many of its address" if is_crowded else "too many"
            self._log_closed("refused" if longest is None else "shed", reason, connection.address)
            if longest is None:
                return False
            longest.drop()
        self._connections.add(connection)
        self._by_client[client] += 1
        return True

    def remove(self, connection: "GuardedConnection") -> None:
        """Remove a connection, if it is counted."""
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self._waiting.pop(connection, None)
        self._by_client[connection.client_key] -= 1
        if not self._by_client[connection.client_key]:
            del self._by_client[connection.client_key]

    def holds(self, connection: "GuardedConnection") -> bool:
        """Return whether a connection is admitted and not removed."""
        return connection in self._connections

    def set_wait(self, connection: "GuardedConnection", wait: Wait) -> None:
        """Set what a connection waits for from now on."""
        self._waiting.pop(connection, None)
        if wait is not Wait.NOTHING:
            self._waiting[connection] = None

    def shed(self, reason: str) -> None:
        """Close the connection that waits longest, if any."""
        longest = next(iter(self._waiting), None)
        if longest is not None:
            longest.drop()
        self._log_closed("shed", reason, longest.address if longest else "none")

    def close(self) -> None:
        """Close all connections."""
        for connection in tuple(self._connections):
            connection.drop()

    def _log_closed(self, done: str, reason: str, address: str) -> None:
        suppressed = self._log_backoff.suppressed(done + reason, asyncio.get_running_loop().time())
        if suppressed is not None:
            log.warning("connection %s reason=%s address=%s unlogged=%d", done, reason, address, suppressed)


class GuardedConnection(H11Protocol):
    """One HTTP connection with deadlines for its client."""

    def __init__(self, guard: ConnectionGuard, accepted: socket.socket, address: str, server: uvicorn.Server) -> None:
        super().__init__(server.config, server.server_state, {})
        self.address = address
        self.client_key = client_key(address)
        self._socket = accepted
        self._guard = guard
        self._limits = guard.limits
        self._wait = Wait.NOTHING
        self._timer: asyncio.TimerHandle | None = None
        self._is_open = False
        self._is_write_paused = False
        self._body_bytes = 0
        self._body_started_s = 0.0

    def begin(self) -> None:
        """Start the deadline for the TLS handshake and the first request."""
        self._begin_wait(Wait.SEND_HEADER, self._limits.header_s)

    def drop(self) -> None:
        """Close the connection at once; unsent bytes are lost."""
        self._guard.remove(self)
        self._stop_timer()
        with suppress(OSError):  # the client has closed it already
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            if not self._is_open:  # in the TLS handshake, which ends with this
                self._socket.shutdown(socket.SHUT_RDWR)
        if self._is_open:
            self.transport.abort()

    # Called by uvicorn and the event loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._is_open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._guard.remove(self)
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._body_bytes += len(data)
        self._update_wait()

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not HTTP, also while the response to the request is not complete."""
        if self.cycle is not None:  # its response would be a second one, and be logged as an error of the page
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._is_write_paused = True
        self._update_wait()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._is_write_paused = False
        self._update_wait()

    # Deadlines

    def _update_wait(self) -> None:
        """Set the deadline for what the client has to do next, if that has changed."""
        limits, wait = self._limits, self._next_wait()
        if wait is self._wait or not self._guard.holds(self):
            return
        match wait:
            case Wait.SEND_HEADER:
                self._begin_wait(wait, limits.keep_alive_s + limits.header_s)
            case Wait.SEND_BODY:
                self._body_bytes, self._body_started_s = 0, self.loop.time()
                self._begin_wait(wait, limits.body_s)
            case Wait.READ_RESPONSE:
                unread = self.transport.get_write_buffer_size()
                self._begin_wait(wait, limits.unread_s + unread / limits.bytes_per_s)
            case Wait.NOTHING:
                self._begin_wait(wait, None)

    def _next_wait(self) -> Wait:
        if self._is_write_paused:
            return Wait.READ_RESPONSE
        if self.conn.their_state is h11.SEND_BODY:
            return Wait.SEND_BODY
        is_responding = self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)
        return Wait.NOTHING if is_responding else Wait.SEND_HEADER

    def _begin_wait(self, wait: Wait, timeout_s: float | None) -> None:
        self._wait = wait
        self._guard.set_wait(self, wait)
        self._stop_timer()
        if timeout_s is not None:
            self._timer = self.loop.call_later(timeout_s, self._time_out)

    def _time_out(self) -> None:
        if self._wait is Wait.SEND_BODY:
            allowed_s = self._limits.body_s + self._body_bytes / self._limits.bytes_per_s
            left_s = self._body_started_s + allowed_s - self.loop.time()
            if left_s > 0:
                self._timer = self.loop.call_later(left_s, self._time_out)
                return
        self.drop()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class WebServer(uvicorn.Server):
    """uvicorn with guarded connections and without signal handlers.

    It accepts connections itself: asyncio calls the protocol of a TLS connection only after the handshake.
    """

    def __init__(self, config: uvicorn.Config, guard: ConnectionGuard) -> None:
        super().__init__(config)
        self.servers = []
        self._guard = guard
        self._opening: set[asyncio.Task[None]] = set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            listener.settimeout(0)
            self._listen(listener)
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():
            asyncio.get_running_loop().remove_reader(listener)
        await super().shutdown(sockets)
        self._guard.close()

    def _listen(self, listener: socket.socket) -> None:
        if not self.should_exit:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(ACCEPTED_PER_TURN):
            try:
                accepted, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of file descriptors
                self._guard.shed(str(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener)
                loop.call_later(ACCEPT_PAUSE_S, self._listen, listener)
                return
            connection = GuardedConnection(self._guard, accepted, peer[0], self)
            if self._guard.admit(connection):
                connection.begin()
                task = asyncio.create_task(self._open(connection, accepted))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            else:
                accepted.close()

    async def _open(self, connection: GuardedConnection, accepted: socket.socket) -> None:
        if not self._guard.holds(connection):  # it was closed for a newer one
            accepted.close()
            return
        accepted.settimeout(0)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, accepted, ssl=self.config.ssl)
        except OSError as error:  # the TLS handshake failed, or the client closed it
            log.debug("connection not opened address=%s reason=%s", connection.address, error)
            connection.drop()
