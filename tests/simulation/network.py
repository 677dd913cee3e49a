"""A simulated network: TCP connections in memory, with delays, partitions, resets and half-open connections.

The bytes of one direction of a connection arrive in order, as TCP promises. Nothing is promised across connections.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from errno import EADDRINUSE
from typing import Any, Final
from zlib import crc32

from tests.simulation.loop import HOST, SimLoop

WINDOW_BYTES: Final = 64 * 1024
"""Bytes that one side may have sent and the other not read: the socket buffers of both."""
PACKET_S: Final = 1e-6
"""Time between two packets of one direction."""
SYN_RETRIES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
RETRANSMIT_S: Final = (0.2, 60.0)
"""Shortest and longest time after which lost bytes are sent again. TCP doubles it, so it grows with the partition."""
GIVE_UP_S: Final = 900.0
"""After this time without an acknowledgement, a side ends the connection."""


@dataclass(slots=True)
class Latency:
    """One-way delays, in seconds."""

    least_s: float = 0.0002
    most_s: float = 0.002
    spike_share: float = 0.002
    """The share of packets that take up to `spike_s`."""
    spike_s: float = 0.4

    def draw(self, rng: random.Random) -> float:
        if rng.random() < self.spike_share:
            return rng.uniform(self.most_s, self.spike_s)
        return rng.uniform(self.least_s, self.most_s)


class SimSocket:
    """What asyncio's users ask a socket for."""

    def __init__(self, name: tuple[str, int]) -> None:
        self._name = name
        self.is_listening = False
        self._pair: tuple[socket.socket, socket.socket] | None = None
        self._peer_closed = False

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def setsockopt(self, *_: object) -> None:
        """Do nothing: the window is fixed."""

    def getsockopt(self, _: int, option: int) -> int:
        return int(self.is_listening) if option == socket.SO_ACCEPTCONN else 0

    def fileno(self) -> int:
        """Return a real descriptor, which `poll` reports as hung up when the simulated peer has hung up."""
        if self._pair is None:
            self._pair = socket.socketpair()
            if self._peer_closed:
                self._pair[1].close()
        return self._pair[0].fileno()

    def hang_up(self) -> None:
        self._peer_closed = True
        if self._pair is not None:
            self._pair[1].close()

    def close(self) -> None:
        if self._pair is not None:
            for each in self._pair:
                each.close()


class SimServer(asyncio.AbstractServer):
    """A listening address."""

    def __init__(self, network: SimNetwork, factory: Callable[[], asyncio.Protocol], ip: str, port: int) -> None:
        self._network = network
        self.factory = factory
        self.address = ip, port
        self.context = contextvars.copy_context()
        self._socket = SimSocket(self.address)

    @property
    def sockets(self) -> tuple[SimSocket, ...]:
        return (self._socket,) if self._network.listeners.get(self.address) is self else ()

    def is_serving(self) -> bool:
        return self._socket.is_listening

    async def start_serving(self) -> None:
        self._socket.is_listening = True

    async def serve_forever(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._socket.is_listening = False
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]

    async def wait_closed(self) -> None:
        """Return at once."""

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop


class SimTransport(asyncio.Transport):
    """One side of a connection."""

    def __init__(
        self, network: SimNetwork, host: str, name: tuple[str, int], peer_name: tuple[str, int], context: Context
    ) -> None:
        super().__init__()
        self._network = network
        self._loop = network.loop
        self.host = host
        self._context = context
        self._socket = SimSocket(name)
        self._extra_info = {"sockname": name, "peername": peer_name, "socket": self._socket}
        self.peer: SimTransport = self
        self.protocol: Any = None
        self.number = 0
        # Output
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._in_window = 0
        self._high, self._low = 64 * 1024, 16 * 1024
        self._is_write_paused = False
        self._arrives_at = 0.0
        self._stuck: list[tuple[str, bytes]] = []
        """Packets that a partition has swallowed; sent again when it heals."""
        self._stuck_since = 0.0
        # Input
        self._unread: deque[tuple[str, bytes]] = deque()
        self._is_read_paused = False
        # Life
        self._is_closing = False
        self._has_sent_end = False
        self._has_got_end = False
        self.is_gone = False
        """The protocol was told of the end, or the machine was switched off."""

    def __repr__(self) -> str:
        return f"<SimTransport {self._extra_info['sockname']} to {self._extra_info['peername']}>"

    # For asyncio's users

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._extra_info.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self.protocol
        return protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self._is_read_paused and not self._is_closing

    def pause_reading(self) -> None:
        self._is_read_paused = True

    def resume_reading(self) -> None:
        if self._is_read_paused:
            self._is_read_paused = False
            self._loop.call_soon(self._read, context=self._context)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low
        self._check_pause()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return self._unsent_bytes

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        raise NotImplementedError("nothing in this project closes one direction only")

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        self._push()
        self._check_pause()

    def close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        self._unread.clear()
        if not self._unsent:
            self._finish()

    def abort(self) -> None:
        if self.is_gone or (self._is_closing and self._has_sent_end):
            return
        self._is_closing = True
        self._drop()
        self._send("reset", b"")
        self._loop.call_soon(self._lose, None, context=self._context)

    # Output

    @property
    def needs_window(self) -> bool:
        """Whether an acknowledgement lets this side do something."""
        return bool(self._unsent) or self._is_closing or self._is_write_paused

    def _check_pause(self) -> None:
        if self._unsent_bytes > self._high and not self._is_write_paused:
            self._is_write_paused = True
            self.protocol.pause_writing()
        elif self._unsent_bytes <= self._low and self._is_write_paused and not self.is_gone:
            self._is_write_paused = False
            self.protocol.resume_writing()

    def _push(self) -> None:
        """Send as much as the window allows."""
        while self._unsent and self._in_window < WINDOW_BYTES:
            data = self._unsent.popleft()
            room = WINDOW_BYTES - self._in_window
            if len(data) > room:
                self._unsent.appendleft(data[room:])
                data = data[:room]
            self._unsent_bytes -= len(data)
            self._in_window += len(data)
            self._send("data", data)

    def _finish(self) -> None:
        """Send the end behind all data, and end this side."""
        if not self._has_sent_end:
            self._has_sent_end = True
            self._send("end", b"")
            self._loop.call_soon(self._lose, None, context=self._context)

    def _send(self, kind: str, data: bytes) -> None:
        network = self._network
        if self.host in network.down:
            return
        if self._stuck or (self.host, self.peer.host) in network.blocked or self.peer.host in network.down:
            if not self._stuck:
                self._stuck_since = self._loop.time()
                network.stuck[self] = None
            self._stuck.append((kind, data))
            return
        now = self._loop.time()
        # Later than the packet before it: timers of one instant run in any order.
        self._arrives_at = max(self._arrives_at + PACKET_S, now + network.delay(self.host, self.peer.host))
        self._loop.call_at(self._arrives_at, self._arrive, kind, data, context=self.peer._context)

    def _arrive(self, kind: str, data: bytes) -> None:
        """A packet arrives at the peer's machine, unless the network has lost it meanwhile."""
        network, peer = self._network, self.peer
        if (self.host, peer.host) in network.blocked or peer.host in network.down:
            if self.host not in network.down:
                if not self._stuck:
                    self._stuck_since = self._loop.time()
                    network.stuck[self] = None
                self._stuck.append((kind, data))
            return
        peer._receive(kind, data)

    def retransmit(self) -> None:
        """Send the packets again that were lost in a partition."""
        stuck, self._stuck = self._stuck, []
        for kind, data in stuck:
            self._send(kind, data)

    def stuck_for(self, now: float) -> float:
        return now - self._stuck_since if self._stuck else 0.0

    def _acknowledged(self, size: int) -> None:
        self._in_window -= size
        if self.is_gone:
            return
        self._push()
        self._check_pause()
        if self._is_closing and not self._unsent:
            self._finish()

    # Input

    def _receive(self, kind: str, data: bytes) -> None:
        if self.is_gone or (self._is_closing and kind == "data"):
            if kind == "data":
                self._send("reset", b"")
            elif kind == "end" and not self.is_gone:
                self._socket.hang_up()
            return
        self._network.note(self, kind, data)
        if kind == "reset":
            self._socket.hang_up()
            self._is_closing = True
            self._drop()
            self._lose(ConnectionResetError(104, "Connection reset by peer"))
            return
        if kind == "end":
            self._socket.hang_up()
        self._unread.append((kind, data))
        self._read()

    def _read(self) -> None:
        """Give the protocol what has arrived."""
        while self._unread and not self._is_read_paused and not self._is_closing:
            if self.host in self._network.stalled:
                return
            kind, data = self._unread.popleft()
            if kind == "end":
                self._has_got_end = True
                if not self.protocol.eof_received():
                    self.close()
            else:
                self._network.acknowledge(self.peer, self, len(data))
                self.protocol.data_received(data)

    # Life

    def _drop(self) -> None:
        self._unsent.clear()
        self._unsent_bytes = 0
        self._unread.clear()

    def _lose(self, error: Exception | None) -> None:
        if self.is_gone:
            return
        self.is_gone = True
        self._is_closing = True
        self._network.forget(self)
        self._socket.close()
        self.protocol.connection_lost(error)

    def cut(self, error: Exception) -> None:
        """End this side with an error."""
        if not self.is_gone:
            self._is_closing = True
            self._drop()
            self._loop.call_soon(self._lose, error, context=self._context)


@dataclass
class SimNetwork:
    """All machines, their listening addresses and connections."""

    loop: SimLoop
    rng: random.Random
    trace: Callable[[str], None]
    latency: Latency = field(default_factory=Latency)
    slow_links: dict[frozenset[str], Latency] = field(default_factory=dict)
    """Pairs of machines with another latency."""
    listeners: dict[tuple[str, int], SimServer] = field(default_factory=dict)
    connections: dict[SimTransport, None] = field(default_factory=dict)
    """Both sides of all connections."""
    blocked: set[tuple[str, str]] = field(default_factory=set)
    """Directions between machines in which no packet arrives."""
    down: set[str] = field(default_factory=set)
    """Machines that are switched off."""
    stalled: set[str] = field(default_factory=set)
    """Machines that read nothing: their peers fill the window, and then their own buffers."""
    stuck: dict[SimTransport, None] = field(default_factory=dict)
    packets: int = 0
    _next_port: int = 32_768
    _next_number: int = 0

    def delay(self, source: str, target: str) -> float:
        if source == target:
            return 0.00005
        latency = self.slow_links.get(frozenset((source, target)), self.latency) if self.slow_links else self.latency
        return latency.draw(self.rng)

    def note(self, side: SimTransport, kind: str, data: bytes) -> None:
        """Add an arrival to the trace."""
        self.packets += 1
        self.trace(f"{self.loop.time():.9f} {side.number} {side.host} {kind} {len(data)} {crc32(data)}")

    def acknowledge(self, sender: SimTransport, reader: SimTransport, size: int) -> None:
        """Open the window of a sender again, once the acknowledgement has arrived."""
        if sender.needs_window:
            delay_s = self.delay(reader.host, sender.host)
            self.loop.call_later(delay_s, sender._acknowledged, size, context=sender._context)
        else:
            sender._in_window -= size  # nothing waits for it: not worth a timer

    def forget(self, side: SimTransport) -> None:
        self.connections.pop(side, None)

    # Calls of asyncio's users

    async def create_server(self, factory: Any, host: Any, port: Any, *, start_serving: bool = True, **_: Any) -> Any:
        machine = HOST.get()
        ip = machine if host in (None, "", "0.0.0.0", "::") else str(host)
        if not port:
            port = self._take_port()
        if (ip, port) in self.listeners:
            raise OSError(EADDRINUSE, "Address already in use")
        server = self.listeners[ip, port] = SimServer(self, factory, ip, port)
        if start_serving:
            await server.start_serving()
        return server

    async def create_connection(self, factory: Any, host: Any, port: Any, *, ssl: Any = None, **_: Any) -> Any:
        if ssl is not None:
            raise NotImplementedError("the simulation has no TLS")
        source, target = HOST.get(), str(host)
        for retry_s in SYN_RETRIES_S:
            await asyncio.sleep(self.delay(source, target))
            if self._is_reachable(source, target):
                break
            await asyncio.sleep(retry_s)
        else:
            raise TimeoutError(110, "Connection timed out")
        server = self.listeners.get((target, port))
        await asyncio.sleep(self.delay(target, source))
        if server is None or not server.is_serving() or self.listeners.get((target, port)) is not server:
            raise ConnectionRefusedError(111, "Connection refused")
        return self._join(server, factory, source)

    def _is_reachable(self, source: str, target: str) -> bool:
        directions = {(source, target), (target, source)}
        return not (self.blocked & directions) and source not in self.down and target not in self.down

    def _take_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def _join(self, server: SimServer, factory: Callable[[], Any], source: str) -> tuple[SimTransport, Any]:
        client_name = source, self._take_port()
        ours = SimTransport(self, source, client_name, server.address, contextvars.copy_context())
        theirs = SimTransport(self, server.address[0], server.address, client_name, server.context.copy())
        ours.peer, theirs.peer = theirs, ours
        self._next_number += 1
        ours.number, theirs.number = self._next_number, -self._next_number
        self.connections[ours] = self.connections[theirs] = None
        ours.protocol = factory()
        theirs.protocol = theirs._context.run(server.factory)
        theirs._context.run(theirs.protocol.connection_made, theirs)
        ours.protocol.connection_made(ours)
        return ours, ours.protocol

    # Faults

    def partition(self, ones: Iterable[str], others: Iterable[str], *, both_ways: bool = True) -> None:
        """Lose all packets from some machines to others."""
        others = list(others)
        for one in ones:
            for other in others:
                if one != other:
                    self.blocked.add((one, other))
                    if both_ways:
                        self.blocked.add((other, one))

    def heal(self) -> None:
        """End all partitions. What was lost in them is sent again."""
        self.blocked.clear()
        self._plan_retransmissions()

    def _plan_retransmissions(self) -> None:
        for side in list(self.stuck):
            if (side.host, side.peer.host) in self.blocked or side.peer.host in self.down:
                continue
            del self.stuck[side]
            least_s, most_s = RETRANSMIT_S
            longest_s = min(max(2 * least_s, side.stuck_for(self.loop.time())), most_s)
            self.loop.call_later(self.rng.uniform(least_s, longest_s), side.retransmit)

    def give_up(self) -> None:
        """End connections that a partition has cut for too long. Called now and then."""
        now = self.loop.time()
        for side in [side for side in self.stuck if side.stuck_for(now) > GIVE_UP_S]:
            del self.stuck[side]
            side._stuck.clear()
            side.cut(TimeoutError(110, "Connection timed out"))

    def reset_some(self, share: float) -> int:
        """Reset a share of all connections at both ends; return their number."""
        chosen = [side for side in self.connections if side.number > 0 and self.rng.random() < share]
        for side in chosen:
            for end in (side, side.peer):
                end.cut(ConnectionResetError(104, "Connection reset by peer"))
        return len(chosen)

    def half_open_some(self, share: float) -> int:
        """End a share of all connections at the side that opened them; the other side is not told."""
        chosen = [side for side in self.connections if side.number > 0 and self.rng.random() < share]
        for side in chosen:
            side.cut(ConnectionResetError(104, "Connection reset by peer"))
        return len(chosen)

    def stop_reading(self, host: str) -> None:
        """Let a machine read nothing, as a program does that is busy elsewhere. What it sends arrives."""
        self.stalled.add(host)

    def read_again(self, host: str) -> None:
        """End `stop_reading`."""
        self.stalled.discard(host)
        for side in [side for side in self.connections if side.host == host]:
            self.loop.call_soon(side._read, context=side._context)

    def switch_off(self, host: str) -> None:
        """Switch off a machine: its connections end without a packet, so that its peers keep half-open ones."""
        self.down.add(host)
        self._end_sides(host)

    def kill_process(self, host: str) -> None:
        """End all connections of a machine as its kernel does when the process dies: peers get a reset."""
        for side in [side for side in self.connections if side.host == host]:
            if not side.is_gone:
                side._is_closing = True
                side._drop()
                side._send("reset", b"")
        self._end_sides(host)

    def _end_sides(self, host: str) -> None:
        for address in [address for address in self.listeners if address[0] == host]:
            self.listeners[address].close()
        for side in [side for side in self.connections if side.host == host]:
            self.stuck.pop(side, None)
            side._stuck.clear()
            side.cut(ConnectionResetError(104, "Connection reset by peer"))

    def switch_on(self, host: str) -> None:
        self.down.discard(host)
        self._plan_retransmissions()
