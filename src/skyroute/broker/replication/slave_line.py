"""One connection of a slave to its master: its reports, and the bytes of the log that it gets.

The system copies large parts from the file to the socket. If the socket is full, the rest of one transfer waits in
the transport; nothing else of the log is in memory for a slave.
"""

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Final, cast

from skyroute.broker.replication.byte_rate import ByteRate
from skyroute.files.errors import StorageError
from skyroute.wire.errors import WireError
from skyroute.wire.ha import TRANSFER_HEAD_BYTES, encode_transfer_head, newest_report

if TYPE_CHECKING:
    from skyroute.broker.replication.master import HaMaster

TURN_BYTES: Final = 512 * 1024
"""Bytes sent to one slave before other work of the event loop."""
SMALL_BYTES: Final = 16 * 1024
"""Transfers up to this size are one write; for larger ones, `os.sendfile` is cheaper than the copy."""
_LINGER_S: Final = 0.1


def socket_of(transport: asyncio.Transport) -> socket.socket | None:
    """Return the socket of a transport for direct writes, which are in order while the transport has no output."""
    return socket.socket(fileno=transport.get_extra_info("socket").fileno())


class SlaveLine(asyncio.Protocol):
    """A connection. It is a stranger's until its first report, which says where to begin."""

    def __init__(self, master: "HaMaster", now: float) -> None:
        self._master = master
        self._transport = cast("asyncio.Transport", None)  # asyncio sets it before anything else is called
        self._socket: socket.socket | None = None
        self.host = self.address = "unknown"
        self.acked = -1
        """End of the slave's log; -1 before its first report."""
        self.proven = -1
        """How much of it this master has sent to the slave's host: sends wait for that, not for a mere claim."""
        self.position = -1
        """The next byte to send."""
        self.opened_at = self.reported_at = self.caught_up_at = now
        self._wrote_at = now
        self.rate = ByteRate(now)
        self._rest_bytes = 0
        """Bytes of the log in the last write to the transport."""
        self._input = bytearray()
        self._is_paused = False
        self._planned: asyncio.Handle | None = None
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<SlaveLine {self.address} acked={self.acked} sent={self.position}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=0)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host, self.address = str(peer[0]), f"{peer[0]}:{peer[1]}"
        if self._master.admit(self):
            self._socket = socket_of(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.close("the slave closed the connection" if exc is None else f"connection lost: {exc}")

    # Reports

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
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
        store = self._master.store
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
            self.proven = min(reported, self._master.sent_to(self.host))
            if not self._master.follow(self):
                return
            self._wrote_at = self._master.clock.monotonic()
        elif reported > self.sent_end:
            self.close(f"the slave reports {reported}, and only {self.sent_end} was sent to it")
            return
        elif reported > self.acked:
            self.proven = reported
        self.reported_at = self._master.clock.monotonic()
        self.acked = max(self.acked, reported)
        if self.acked >= store.max_position:
            self.caught_up_at = self.reported_at
        self._master.acknowledged(self)
        self.plan()

    @property
    def sent_end(self) -> int:
        """The position up to which the system has taken the log."""
        return self.position - min(self._transport.get_write_buffer_size(), self._rest_bytes)

    # Transfers

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.send_now()

    def plan(self) -> None:
        """Send new bytes in the next turn of the loop."""
        if self._planned is None and self._can_send:
            self._planned = asyncio.get_running_loop().call_soon(self._send)

    def send_now(self) -> None:
        """Send new bytes, unless they are about to be sent."""
        if self._planned is None and self._can_send:
            self._send()

    @property
    def _can_send(self) -> bool:
        return self.position >= 0 and not self._is_paused and not self.is_closed

    def _send(self) -> None:
        self._planned = None
        try:
            self._send_turn()
        except StorageError as error:
            self.close(str(error))
        except OSError as error:
            self.close(f"connection lost: {error.strerror}")

    def _send_turn(self) -> None:
        left = TURN_BYTES
        while left > 0 and self._can_send:
            if self._transport.get_write_buffer_size():
                break  # uvloop writes at the end of the turn
            size = self._next_size()
            if not size:
                return
            self._send_transfer(size)
            left -= size
        self.plan()

    def _next_size(self) -> int:
        """Return the size of the next transfer; 0 if there is nothing to send now."""
        config, store = self._master.config, self._master.store
        found = store.log_range(self.position, config.ha_transfer_bytes)
        if found is None:
            if self.position < store.max_position:
                raise ConnectionAbortedError(0, f"this log has no record at {self.position} any more")
            return 0
        if not config.ha_flow_control:
            return found[2]
        allowed = config.ha_bytes_per_s - self.rate.in_second(self._master.clock.monotonic())
        if allowed <= 0:
            asyncio.get_running_loop().call_later(_LINGER_S, self.plan)
        return max(min(found[2], allowed), 0)

    def _send_transfer(self, size: int) -> None:
        head = encode_transfer_head(self.position, size)
        sent = 0  # of head and body
        if self._socket is None or size <= SMALL_BYTES:
            data = head + self._read(self.position, size)
            sent = self._send_directly(data)
            rest = data[sent:]
        else:
            sent = self._send_directly(head, socket.MSG_MORE)
            while TRANSFER_HEAD_BYTES <= sent < TRANSFER_HEAD_BYTES + size and (part := self._send_file(sent, size)):
                sent += part
            body_sent = max(sent - TRANSFER_HEAD_BYTES, 0)
            rest = head[sent:] + self._read(self.position + body_sent, size - body_sent)
        self.position += size
        self._wrote_at = self._master.clock.monotonic()
        self.rate.add(size, self._wrote_at)
        if rest:
            self._rest_bytes = min(len(rest), size)
            self._transport.write(rest)

    def _send_directly(self, data: bytes, flags: int = 0) -> int:
        try:
            return 0 if self._socket is None else self._socket.send(data, flags)
        except (BlockingIOError, InterruptedError):
            return 0

    def _send_file(self, sent: int, size: int) -> int:
        """Send more of the body of a transfer; return 0 if the socket is full."""
        body_sent = sent - TRANSFER_HEAD_BYTES
        found = self._master.store.log_range(self.position + body_sent, size - body_sent)
        assert found is not None, "the log has this transfer"
        assert self._socket is not None, "called for direct writes"
        try:
            return os.sendfile(self._socket.fileno(), found[0], found[1], found[2])
        except (BlockingIOError, InterruptedError):
            return 0

    def _read(self, position: int, size: int) -> bytes:
        if not size:
            return b""
        found = self._master.store.log_range(position, size)
        data = b"" if found is None else os.pread(found[0], found[2], found[1])
        if len(data) != size:
            raise ConnectionAbortedError(0, f"the log has {len(data)} bytes at {position} (expected {size})")
        return data

    def scan(self, now: float) -> None:
        """Close a silent connection; send a heartbeat if nothing was sent for a while."""
        config = self._master.config
        self.rate.in_second(now)
        if now - self.reported_at > config.ha_silence_s:
            self.close(f"no report for {config.ha_silence_s:g} s")
        elif self._is_paused and now - self._wrote_at > max(config.ha_silence_s, config.ha_heartbeat_s):
            self.close(f"the slave has read nothing for {now - self._wrote_at:.0f} s")
        elif (
            self._can_send
            and self._planned is None
            and not self._transport.get_write_buffer_size()
            and now - self._wrote_at >= config.ha_heartbeat_s
        ):
            self._wrote_at = now
            self._rest_bytes = 0
            self._transport.write(encode_transfer_head(self.position, 0))

    def close(self, reason: str) -> None:
        """Close the connection, with one log line."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._planned is not None:
            self._planned.cancel()
        if self._socket is not None:
            self._socket.detach()
        self._transport.abort()
        if self._is_paused:  # the rest of the last transfer was not sent
            self.position, self._rest_bytes = self.position - self._rest_bytes, 0
        self._master.forget(self, reason)
