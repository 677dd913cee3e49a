"""A line to one broker over which large answers are read straight into a buffer of the caller's.

The client's own connections hand every answer on as a new object, which is right for messages one by one. Here whole
megabytes pass by, and copying them costs more than all else: a buffer that is used again and again costs nothing.
"""

import select
import socket
import ssl
from struct import Struct
from typing import Final, NamedTuple

from skyroute.wire.command import Request
from skyroute.wire.errors import FrameError
from skyroute.wire.frame import FRAME_BYTES_MAX
from skyroute.wire.header import decode_request_header, encode_request

BUFFER_BYTES: Final = 8 << 20

_LENGTHS: Final = Struct(">II")


class Answer(NamedTuple):
    """The head of an answer; its body is still to be read."""

    number: int
    """Of the request that it answers."""
    head: Request
    body_bytes: int


class Line:
    """A connection whose owner sends requests and reads answers, in whatever order they come."""

    def __init__(self, address: str, tls: ssl.SSLContext | None, connect_timeout_s: float, timeout_s: float) -> None:
        """Connect.

        Raises:
            OSError: nobody answers there.
        """
        self.address = address
        self.buffer = bytearray(BUFFER_BYTES)
        """For whoever has the line: memory that was used before is the quickest there is."""
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host.strip("[]"), int(port)), connect_timeout_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = tls.wrap_socket(plain) if tls is not None else plain
        self.owed = 0
        """How many answers are still to come."""
        self._lengths = bytearray(_LENGTHS.size)
        self._last_number = 0
        self.wait_at_most(timeout_s)

    def wait_at_most(self, timeout_s: float) -> None:
        """Have every later call give up when nothing happens for so long."""
        self._socket.settimeout(timeout_s)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing has come that nobody asked for, such as its end."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def send(self, request: Request) -> int:
        """Send a request, and return the number that its answer will bear.

        Raises:
            OSError: the line is broken.
        """
        self._last_number = (self._last_number + 1) & 0x7FFFFFFF
        self._socket.sendall(encode_request(request, self._last_number))
        self.owed += 1
        return self._last_number

    def receive(self) -> Answer:
        """Wait for the next answer, and read its head. Its body must be read before anything else: `read_into`.

        Raises:
            OSError: the line is broken, or nothing came in time.
            FrameError: what came is no answer.
        """
        while True:
            self.read_into(memoryview(self._lengths))
            length, word = _LENGTHS.unpack(self._lengths)
            header_bytes = word & 0xFFFFFF
            if not 4 + header_bytes <= length <= FRAME_BYTES_MAX:
                raise FrameError(f"{self.address} announces a frame of {length} bytes with a header of {header_bytes}")
            header = bytearray(header_bytes)
            self.read_into(memoryview(header))
            head = decode_request_header(word >> 24, bytes(header))
            body_bytes = length - 4 - header_bytes
            if head.is_response:
                self.owed -= 1
                return Answer(head.request_id, head, body_bytes)
            self.read_into(memoryview(bytearray(body_bytes)))  # a broker's own question, which it asks consumers

    def read_into(self, room: memoryview) -> None:
        """Fill a buffer.

        Raises:
            OSError: the line is broken, or nothing came in time.
        """
        while room:
            count = self._socket.recv_into(room)
            if not count:
                raise ConnectionResetError(f"{self.address} closed the connection")
            room = room[count:]

    def close(self) -> None:
        """End it."""
        self._socket.close()
