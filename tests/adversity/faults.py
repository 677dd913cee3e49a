"""Common parts of the tests of faults: invalid bytes on bare sockets, and checks that the server still serves."""

from __future__ import annotations

import random
import socket
import struct
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.support.codes import GET_CLUSTERS, GET_ROUTE, NO_TOPIC, SUCCESS
from tests.support.process import LOG_LINE, ServerProcess
from tests.support.raw import Command, RawConnection, Registration, Topic, decode, split_address
from tests.support.waiting import wait_until

TIMEOUT_S = 20.0
"""How long a healthy server may take on a busy machine."""

TOPICS = (Topic("TopicA"), Topic("TopicB"))


def broker(name: str = "broker-a", **changes: object) -> Registration:
    """Return the registration of an ordinary broker, with changes."""
    return Registration("cluster-a", name, "10.0.0.1:10911", TOPICS).but(**changes)


def connect(address: str, *, timeout_s: float = TIMEOUT_S) -> socket.socket:
    """Open a bare connection, for bytes that break the protocol."""
    return socket.create_connection(split_address(address), timeout=timeout_s)


def read_to_end(line: socket.socket) -> bytes:
    """Return all bytes until the server closes the connection, or resets it because it left bytes of ours unread."""
    pieces = []
    with suppress(ConnectionResetError):
        while piece := line.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


def send_until_closed(line: socket.socket, data: bytes) -> None:
    """Send all bytes, or those before the server closes the connection."""
    with suppress(BrokenPipeError, ConnectionResetError):
        line.sendall(data)


def send_and_read_to_end(address: str, data: bytes) -> bytes:
    """Send bytes on a new connection, and return the response once the server closes it."""
    with connect(address) as line:
        send_until_closed(line, data)
        return read_to_end(line)


def send_and_half_close(address: str, data: bytes) -> bytes:
    """Send bytes on a new connection, close our half, and return the response."""
    with connect(address) as line:
        send_until_closed(line, data)
        with suppress(OSError):  # the server was faster
            line.shutdown(socket.SHUT_WR)
        return read_to_end(line)


def send_and_reset(address: str, data: bytes) -> None:
    """Send bytes on a new connection, and reset it."""
    with connect(address) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        send_until_closed(line, data)


def repeat_for(seconds: float, action: Callable[[], None]) -> None:
    """Repeat an action while another process runs for `seconds`: a test cannot move that process's clock."""
    deadline = time.monotonic() + seconds

    def act() -> bool:
        action()
        return time.monotonic() >= deadline

    wait_until(act, timeout_s=seconds + TIMEOUT_S)


def random_pause(chance: random.Random, shortest_s: float, longest_s: float) -> None:
    """Pause for a random time, so that a kill hits any moment of a write; SKYROUTE_SEED repeats the choice."""
    time.sleep(chance.uniform(shortest_s, longest_s))


def whole_frames(data: bytes) -> list[bytes]:
    """Split data into frames without their length words; the data must end with a whole frame."""
    frames = []
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        frames.append(data[at + 4 : at + 4 + length])
        at += 4 + length
    assert at == len(data), "the stream ends inside a frame"
    return frames


def replies(data: bytes) -> list[Command]:
    commands = [decode(frame) for frame in whole_frames(data)]
    assert all(command.is_reply for command in commands)
    return commands


def assert_responds(connection: RawConnection) -> None:
    assert connection.call(GET_CLUSTERS).code == SUCCESS


def assert_serves(address: str, *, within_s: float = TIMEOUT_S) -> None:
    with RawConnection(address, timeout_s=within_s) as line:
        assert_responds(line)
        assert line.call(GET_ROUTE, {"topic": "no such topic"}).code == NO_TOPIC


def is_serving(address: str) -> bool:
    """Whether the server responds to a new client."""
    try:
        assert_serves(address)
    except ConnectionError:
        return False
    return True


def assert_log_intact(log: str) -> None:
    """Check that every line has the log's format: no traceback, and no text of a client that begins or hides a line."""
    assert {sign for sign in set(log) if unicodedata.category(sign) in ("Cc", "Zl", "Zp")} <= {"\n"}
    assert [line for line in log.splitlines() if not LOG_LINE.fullmatch(line)] == []


def error_lines(log: str) -> list[str]:
    """Return the lines of level ERROR: no client may cause one."""
    return [line for line in log.splitlines() if (found := LOG_LINE.fullmatch(line)) and found[1] == "ERROR"]


@contextmanager
def check_survives(server: ServerProcess, *, lines_max: int) -> Iterator[None]:
    """Check after the block that the server serves, has no connection open, and logged few lines, all well-formed."""
    mark, open_files = len(server.log), server.open_files
    yield
    assert_serves(server.address)
    assert server.is_running
    wait_until(lambda: server.open_files <= open_files, "every connection is closed")
    log = server.log_since(mark)
    assert_log_intact(log)
    assert error_lines(log) == []
    lines = log.splitlines()
    assert len(lines) <= lines_max, "\n".join(lines[:50])
