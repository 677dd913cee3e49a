"""What every hard time has in common: bytes that no well-meaning peer sends, and what must be true afterwards."""

from __future__ import annotations

import random
import socket
import struct
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.support.process import LOG_LINE, ServerProcess
from tests.support.raw import Command, RawConnection, Registration, Topic, decode, split_address
from tests.support.waiting import wait_until

PUT_KV, GET_KV, DELETE_KV, LIST_KV = 100, 101, 102, 219
REGISTER, UNREGISTER, GET_ROUTE, GET_CLUSTERS, LIST_TOPICS = 103, 104, 105, 106, 206
FORBID_WRITES, RESTORE_WRITES, DELETE_TOPIC, REGISTER_TOPIC, TOPICS_OF_CLUSTER = 205, 327, 216, 217, 224
UPDATE_CONFIG, GET_CONFIG, QUERY_VERSION, GET_MEMBERS, HEARTBEAT = 318, 319, 322, 901, 904

SUCCESS, SYSTEM_ERROR, NOT_SUPPORTED, NO_TOPIC, NOT_FOUND = 0, 1, 3, 17, 22

PATIENCE_S = 20.0
"""How long a healthy server may take on a machine that has other things to do; a stuck one takes for ever."""

TOPICS = (Topic("TopicA"), Topic("TopicB"))


def broker(name: str = "broker-a", **changes: object) -> Registration:
    """A broker like any other."""
    return Registration("cluster-a", name, "10.0.0.1:10911", TOPICS).but(**changes)


def connect(address: str, *, timeout_s: float = PATIENCE_S) -> socket.socket:
    """A bare connection, for those who do not keep to the protocol."""
    return socket.create_connection(split_address(address), timeout=timeout_s)


def read_to_end(line: socket.socket) -> bytes:
    """All that comes until the server closes; a reset is an end too, as it left bytes of ours unread."""
    pieces = []
    with suppress(ConnectionResetError):
        while piece := line.recv(65536):
            pieces.append(piece)
    return b"".join(pieces)


def send_all_it_takes(line: socket.socket, data: bytes) -> None:
    """Send, to a server that may close before it has taken all."""
    with suppress(BrokenPipeError, ConnectionResetError):
        line.sendall(data)


def hear_out(address: str, data: bytes) -> bytes:
    """Say it on a line of its own and wait; what comes back before the server closes of its own accord."""
    with connect(address) as line:
        send_all_it_takes(line, data)
        return read_to_end(line)


def say_and_leave(address: str, data: bytes) -> bytes:
    """Say it on a line of its own, and that this was all; what comes back."""
    with connect(address) as line:
        send_all_it_takes(line, data)
        with suppress(OSError):  # the server was faster
            line.shutdown(socket.SHUT_WR)
        return read_to_end(line)


def say_and_vanish(address: str, data: bytes) -> None:
    """Say it on a line of its own and cut it: the server meets a reset."""
    with connect(address) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        send_all_it_takes(line, data)


def repeat_for(seconds: float, action: Callable[[], None]) -> None:
    """Repeat an action while another process runs for `seconds`: a test cannot move that process's clock."""
    deadline = time.monotonic() + seconds

    def act() -> bool:
        action()
        return time.monotonic() >= deadline

    wait_until(act, timeout_s=seconds + PATIENCE_S)


def random_pause(chance: random.Random, shortest_s: float, longest_s: float) -> None:
    """Pause for a random time, so that a kill hits any moment of a write; SKYROUTE_SEED repeats the choice."""
    time.sleep(chance.uniform(shortest_s, longest_s))


def whole_frames(data: bytes) -> list[bytes]:
    """Frames without their length words; the data must end with the last one."""
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


def assert_serves(address: str, *, within_s: float = PATIENCE_S) -> None:
    with RawConnection(address, timeout_s=within_s) as line:
        assert_responds(line)
        assert line.call(GET_ROUTE, {"topic": "no such topic"}).code == NO_TOPIC


def is_served(address: str) -> bool:
    """Whether a newcomer is answered, rather than turned away."""
    try:
        assert_serves(address)
    except ConnectionError:
        return False
    return True


def assert_sound(log: str) -> None:
    """Every line is a log line, so there is no traceback, and nobody's text begins a line or hides one."""
    assert {sign for sign in set(log) if unicodedata.category(sign) in ("Cc", "Zl", "Zp")} <= {"\n"}
    assert [line for line in log.splitlines() if not LOG_LINE.fullmatch(line)] == []


def errors_in(log: str) -> list[str]:
    """Lines that say that the server itself failed, which no peer can make it do."""
    return [line for line in log.splitlines() if (found := LOG_LINE.fullmatch(line)) and found[1] == "ERROR"]


@contextmanager
def survived(server: ServerProcess, *, lines_max: int) -> Iterator[None]:
    """What happens inside leaves the server serving, no line open, and few lines in its log, all of them sound."""
    mark, open_files = len(server.log), server.open_files
    yield
    assert_serves(server.address)
    assert server.is_running
    wait_until(lambda: server.open_files <= open_files, "no line is left open")
    log = server.log_since(mark)
    assert_sound(log)
    assert errors_in(log) == []
    lines = log.splitlines()
    assert len(lines) <= lines_max, "\n".join(lines[:50])
