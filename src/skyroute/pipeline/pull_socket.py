"""A blocking socket for pulls that reads response bodies straight into a reused buffer.

The client's own connections return each response as a new object. A Spark task reads many megabytes, and copying them
costs more than decoding them, so pulls have a socket of their own.
"""

import math
import select
import socket
import ssl
from struct import Struct
from typing import Final, NamedTuple

from skyroute.remoting.address import split_address
from skyroute.wire.command import Request
from skyroute.wire.conversation import Conversation
from skyroute.wire.errors import FrameError
from skyroute.wire.frame import FRAME_BYTES_MAX
from skyroute.wire.header import decode_request_header

BUFFER_BYTES: Final = 8 << 20

_LENGTHS: Final = Struct(">II")


class ResponseHead(NamedTuple):
    """The header of a response whose body is still to be read."""

    request_id: int
    command: Request
    body_bytes: int


class PullSocket:
    """A connection to one broker. The caller sends requests and reads responses in the order of arrival."""

    def __init__(self, address: str, tls: ssl.SSLContext | None, connect_timeout_s: float, timeout_s: float) -> None:
        """Connect.

        Raises:
            OSError: the broker cannot be reached.
        """
        self.address = address
        self.buffer = bytearray(BUFFER_BYTES)
        """Free for the caller. Reused memory is faster than fresh memory, so it stays with the socket."""
        plain = socket.create_connection(split_address(address), connect_timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = tls.wrap_socket(plain) if tls is not None else plain
        self._conversation: Conversation[None] = Conversation()
        self._lengths = bytearray(_LENGTHS.size)
        self.set_timeout(timeout_s)

    def set_timeout(self, timeout_s: float) -> None:
        """Set how long later calls wait for the broker."""
        self._socket.settimeout(timeout_s)

    @property
    def open_requests(self) -> int:
        """Number of requests without a response yet."""
        return len(self._conversation.calls)

    @property
    def is_idle(self) -> bool:
        """Whether the socket has no unread data. A closed connection counts as unread data."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def send(self, request: Request) -> int:
        """Send a request and return its request id.

        Raises:
            OSError: the connection failed or timed out.
        """
        call = self._conversation.begin(request, None, 0.0, math.inf)  # the socket has the timeout
        self._socket.sendall(call.frame)
        return call.request_id

    def receive(self) -> ResponseHead:
        """Wait for the next response and read its header. The caller must then read the body with `read_into`.

        Raises:
            OSError: the connection failed or timed out.
            FrameError: the bytes are not a response.
        """
        while True:
            self.read_into(memoryview(self._lengths))
            length, word = _LENGTHS.unpack(self._lengths)
            header_bytes = word & 0xFFFFFF
            if not 4 + header_bytes <= length <= FRAME_BYTES_MAX:
                raise FrameError(
                    f"{self.address} sent a frame of {length} bytes with a header of {header_bytes}"
                    f" (expected at most {FRAME_BYTES_MAX} bytes; is it a broker?)"
                )
            header = bytearray(header_bytes)
            self.read_into(memoryview(header))
            command = decode_request_header(word >> 24, bytes(header))
            body_bytes = length - 4 - header_bytes
            if command.is_response and self._conversation.match(command) is not None:
                return ResponseHead(command.request_id, command, body_bytes)
            self.read_into(memoryview(bytearray(body_bytes)))  # a request to consumers, such as a rebalance

    def read_into(self, target: memoryview) -> None:
        """Fill a buffer.

        Raises:
            OSError: the connection failed or timed out.
        """
        while target:
            count = self._socket.recv_into(target)
            if not count:
                raise ConnectionResetError(f"{self.address} closed the connection")
            target = target[count:]

    def close(self) -> None:
        self._socket.close()
