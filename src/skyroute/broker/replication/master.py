"""The master's side of classic replication: sends the log to slaves, and counts what they acknowledge.

A slave reports the end of its log; the first report says where to begin. Bytes go from the file to the socket by
`os.sendfile`, without a copy in this process.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from skyroute.broker.config import BrokerConfig
from skyroute.broker.store.message_store import MessageStore
from skyroute.clock import Clock
from skyroute.files.errors import StorageError
from skyroute.remoting.errors import BindError
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.wire.errors import WireError
from skyroute.wire.ha import encode_transfer_head, newest_report

log = logging.getLogger(__name__)

SLAVES_MAX: Final = 64
"""Replication connections of one master; further ones are closed at once."""
TURN_BYTES: Final = 512 * 1024
"""Bytes sent to one slave before other work of the event loop."""
READ_BYTES: Final = 4096
SCAN_S: Final = 0.5
"""Interval of the scan for heartbeats and silent slaves."""
ACCEPTED_A_TURN: Final = 16
_LINGER: Final = 0.1


class SlaveState(NamedTuple):
    """A slave as operators see it."""

    address: str
    acked: int
    sent: int
    behind_bytes: int
    behind_s: float
    """Time since it last had the whole log; 0 if it has."""
    in_sync: bool
    bytes_per_s: int


class _SlaveLine:
    """One connection of a slave."""

    def __init__(self, master: "HaMaster", sock: socket.socket, address: str, now: float) -> None:
        self.master = master
        self.sock = sock
        self.address = address
        self.host = address.rpartition(":")[0]
        self.acked = -1
        """End of the slave's log; -1 before its first report."""
        self.position = -1
        """The next byte to send."""
        self.opened_at = self.read_at = self.wrote_at = self.caught_up_at = now
        self.second = (now, 0)
        """Start of the current second, and bytes sent in it."""
        self.bytes_per_s = 0
        self._input = bytearray()
        self._output = b""
        """The rest of a header."""
        self._body_left = 0
        self._waits_for_socket = False
        self._planned: asyncio.Handle | None = None
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self._read)

    # Reports

    def _read(self) -> None:
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"connection lost: {error.strerror}")
            return
        if not data:
            self.close("the slave closed the connection")
            return
        self.read_at = self.master.clock.monotonic()
        self._input += data
        try:
            reported, used = newest_report(self._input)
        except WireError as error:
            self.close(str(error))
            return
        del self._input[:used]
        if reported is not None:
            self._accept_report(reported)

    def _accept_report(self, reported: int) -> None:
        store = self.master.store
        if self.position < 0:
            position = store.max_position - store.max_position % store.settings.log_segment_bytes
            position = reported or max(position, store.min_position)
            if not store.min_position <= position <= store.max_position:
                self.close(
                    f"the slave's log ends at {reported}, outside of this log, which has "
                    f"{store.min_position} to {store.max_position}: it has another history, or lacks too much"
                )
                return
            self.position = position
            log.info("slave follows address=%s from=%d", self.address, position)
        elif reported > self.position:
            self.close(f"the slave reports {reported}, and only {self.position} was sent to it")
            return
        self.acked = max(self.acked, reported)
        if self.acked >= store.max_position:
            self.caught_up_at = self.read_at
        self.master.acknowledged()
        self.plan()

    # Transfers

    def plan(self) -> None:
        """Send new bytes in the next turn of the loop."""
        if self._planned is None and not self._waits_for_socket and self.position >= 0 and not self.closed:
            self._planned = self._loop.call_soon(self._send)

    def send_now(self) -> None:
        """Send new bytes, unless they are about to be sent."""
        if self._planned is None and not self._waits_for_socket and self.position >= 0:
            self._send()

    def _send(self) -> None:
        self._planned = None
        if self.closed:
            return
        try:
            self._send_turn()
        except (BlockingIOError, InterruptedError):
            self._wait_for_socket()
        except StorageError as error:
            self.close(str(error))
        except OSError as error:
            self.close(f"connection lost: {error.strerror}")

    def _send_turn(self) -> None:
        left = TURN_BYTES
        while left > 0:
            if not self._output and not self._body_left:
                size = self._next_size()
                if not size:
                    return
                self._output, self._body_left = encode_transfer_head(self.position, size), size
            left -= self._send_some()
        self.plan()

    def _next_size(self) -> int:
        """Return the size of the next transfer; 0 if there is nothing to send now."""
        config = self.master.config
        found = self.master.store.log_range(self.position, config.ha_transfer_bytes)
        if found is None:
            return 0
        if not config.ha_flow_control:
            return found[2]
        allowed = config.ha_bytes_per_s - self._sent_in_second(self.master.clock.monotonic())
        if allowed <= 0:
            self._loop.call_later(_LINGER, self.plan)
        return max(min(found[2], allowed), 0)

    def _sent_in_second(self, now: float) -> int:
        start, sent = self.second
        if now - start >= 1.0:
            self.bytes_per_s = int(sent / (now - start))
            self.second = (now, 0)
            return 0
        return sent

    def _send_some(self) -> int:
        """Send a part of the current transfer; return its size."""
        if self._output:
            sent = self.sock.send(self._output, socket.MSG_MORE if self._body_left else 0)
            self._output = self._output[sent:]
            return sent
        found = self.master.store.log_range(self.position, self._body_left)
        if found is None:
            raise ConnectionAbortedError(0, f"the log no longer has {self.position}")
        descriptor, offset, size = found
        sent = os.sendfile(self.sock.fileno(), descriptor, offset, size)
        self.position += sent
        self._body_left -= sent
        self.wrote_at = self.master.clock.monotonic()
        sent_before = self._sent_in_second(self.wrote_at)
        self.second = (self.second[0], sent_before + sent)
        return sent

    def _wait_for_socket(self) -> None:
        self._waits_for_socket = True
        self._loop.add_writer(self.sock.fileno(), self._resume)

    def _resume(self) -> None:
        self._waits_for_socket = False
        self._loop.remove_writer(self.sock.fileno())
        self._send()

    def scan(self, now: float) -> None:
        """Close a silent connection; send a heartbeat if nothing was sent for a while."""
        config = self.master.config
        if now - self.read_at > config.ha_silence_s:
            self.close(f"no report for {config.ha_silence_s:g} s")
            return
        self._sent_in_second(now)
        is_idle = self.position >= 0 and not self._output and not self._body_left and not self._waits_for_socket
        if is_idle and now - self.wrote_at >= config.ha_heartbeat_s:
            self.wrote_at = now
            self._output = encode_transfer_head(self.position, 0)
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        try:
            self._send_some()
        except (BlockingIOError, InterruptedError):
            self._wait_for_socket()
        except OSError as error:
            self.close(f"connection lost: {error.strerror}")

    def close(self, reason: str) -> None:
        """Close the connection, with one log line."""
        if self.closed:
            return
        self.closed = True
        self._loop.remove_reader(self.sock.fileno())
        self._loop.remove_writer(self.sock.fileno())
        if self._planned is not None:
            self._planned.cancel()
        self.sock.close()
        self.master.forget(self, reason)


class HaMaster:
    """Serves the port for slaves. `on_acknowledged` is called after every report.

    `may_replicate` tells whether access control lets an IP address copy all messages: slaves prove nothing there.
    """

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        clock: Clock,
        may_replicate: Callable[[str], bool] | None = None,
    ) -> None:
        self.store = store
        self.config = config
        self.clock = clock
        self._listener: socket.socket | None = None
        self._lines: list[_SlaveLine] = []
        self._refused_log = LogBackoff()
        self._may_replicate = may_replicate
        self._wake: asyncio.Handle | None = None
        self.on_acknowledged: Callable[[], None] | None = None
        self.on_lines_change: Callable[[bool], None] | None = None
        """Called with whether there is a slave, when that changes."""
        self.port = 0

    def __repr__(self) -> str:
        return f"<HaMaster port={self.port} slaves={len(self._lines)}>"

    # The port

    def listen(self, host: str, port: int) -> None:
        """Open the port.

        Raises:
            BindError: the port cannot be used.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(SLAVES_MAX)
            listener.settimeout(0)
        except OSError as error:
            listener.close()
            raise BindError(f"cannot listen on {host}:{port} for slaves: {error.strerror}") from error
        self._listener = listener
        self.port = listener.getsockname()[1]
        asyncio.get_running_loop().add_reader(listener.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._listener is not None, "called while listening"
        for _ in range(ACCEPTED_A_TURN):
            try:
                sock, peer = self._listener.accept()
            except OSError:
                return
            address = f"{peer[0]}:{peer[1]}"
            now = self.clock.monotonic()
            if self._may_replicate is not None and not self._may_replicate(str(peer[0])):
                sock.close()
                suppressed = self._refused_log.suppressed(str(peer[0]), now)
                if suppressed is not None:
                    log.warning(
                        "slave refused by access control address=%s suppressed=%d advice=brokerSourceAddresses",
                        *(address, suppressed),
                    )
                continue
            if len(self._lines) >= SLAVES_MAX:
                sock.close()
                suppressed = self._refused_log.suppressed(str(peer[0]), now)
                if suppressed is not None:
                    log.warning(
                        "slave refused, too many connections address=%s connections=%d suppressed=%d",
                        *(address, len(self._lines), suppressed),
                    )
                continue
            sock.settimeout(0)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lines.append(_SlaveLine(self, sock, address, now))
            if len(self._lines) == 1 and self.on_lines_change is not None:
                self.on_lines_change(True)  # noqa: FBT003 - a callback has no keywords

    def forget(self, line: _SlaveLine, reason: str) -> None:
        """Drop a closed connection."""
        self._lines.remove(line)
        suppressed = self._refused_log.suppressed(line.host, self.clock.monotonic())
        if line.position >= 0 or suppressed is not None:
            log.warning("slave lost address=%s acked=%d reason=%s", line.address, line.acked, reason)
        if not self._lines and self.on_lines_change is not None:
            self.on_lines_change(False)  # noqa: FBT003 - a callback has no keywords

    async def run(self) -> None:
        """Send heartbeats and close silent connections, until cancelled."""
        while True:
            await asyncio.sleep(SCAN_S)
            now = self.clock.monotonic()
            for line in list(self._lines):
                line.scan(now)

    def stop(self) -> None:
        """Close the port and all connections."""
        if self._listener is not None:
            with suppress(ValueError, OSError):
                asyncio.get_running_loop().remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
        for line in list(self._lines):
            line.close("this broker stops")

    # The log

    def appended(self) -> None:
        """Send new bytes at the end of this turn of the loop."""
        if self._wake is None:
            self._wake = asyncio.get_running_loop().call_soon(self._send_all)

    def _send_all(self) -> None:
        self._wake = None
        for line in list(self._lines):
            line.send_now()

    def acknowledged(self) -> None:
        """Notify the waiting sends that a slave has reported."""
        if self.on_acknowledged is not None:
            self.on_acknowledged()

    # Counting

    def _counted(self) -> list[_SlaveLine]:
        """Return one connection per slave.

        An older connection from the same host is a slave's lost one, unless a report came since the newer one opened.
        """
        newest: dict[str, float] = {}
        for line in self._lines:
            newest[line.host] = max(newest.get(line.host, 0.0), line.opened_at)
        return [line for line in self._lines if line.acked >= 0 and line.read_at >= newest[line.host]]

    def reached(self, slaves: int) -> int:
        """Return the position up to which this number of slaves have the log; -1 if there are fewer."""
        if slaves <= 0:
            return self.store.max_position
        acked = sorted((line.acked for line in self._counted()), reverse=True)
        return acked[slaves - 1] if slaves <= len(acked) else -1

    @property
    def in_sync(self) -> int:
        """Number of brokers in sync; this one counts."""
        return 1 + sum(each.in_sync for each in self.slaves())

    def slaves(self) -> list[SlaveState]:
        """Return all slaves, each once."""
        end, gap, now = self.store.max_position, self.config.ha_max_gap_bytes, self.clock.monotonic()
        return [
            SlaveState(
                *(line.address, line.acked, line.position, end - line.acked),
                behind_s=now - line.caught_up_at if line.acked < end else 0.0,
                in_sync=end - line.acked < gap,
                bytes_per_s=line.bytes_per_s,
            )
            for line in self._counted()
        ]
