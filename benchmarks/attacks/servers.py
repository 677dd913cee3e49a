"""Servers under attack: real processes of any interpreter, driven by the command line and the wire alone."""

from __future__ import annotations

import json
import os
import re
import resource
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.machine import resident_mb
from tests.support.raw import RawConnection, Registration, Request, Topic, encode, split_address

ROOT: Final = Path(__file__).parents[2]
BOOT_S: Final = 90.0
LIMIT_S: Final = 120.0
"""An attack that lasts longer is given up and reported as longer than this."""
PEER_TOPIC: Final = "well-behaved"
CLUSTER: Final = "DefaultCluster"
BROKER: Final = "broker-a"
_PIECE: Final = 1 << 20
_HEADER_BYTES: Final = 1_000
_FLAG: Final = re.compile(rb'"flag":(\d+)')
_LISTENING: Final = re.compile(r"(?:address |broker\[[^,]+, |Console +http://)([\d.]+:\d+)")

Role = Literal["nameserver", "broker", "console"]


class NotStartedError(RuntimeError):
    """A server ended, or was silent for too long, before it said where it listens."""


@dataclass(slots=True)
class Server:
    """A running server."""

    role: Role
    process: subprocess.Popen[str]
    address: str
    folder: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def rss_mb(self) -> float:
        return resident_mb(self.pid)

    @property
    def peak_mb(self) -> float:
        """The most resident memory that the process itself ever had."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return int(found[1]) * 1024 / 1e6 if found else 0.0

    @property
    def log(self) -> str:
        return (self.folder / "server.log").read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def line(self, timeout_s: float = 30.0) -> RawConnection:
        return RawConnection(self.address, timeout_s=timeout_s)

    def stop(self) -> None:
        """Ask it to stop and wait; kill it if it does not."""
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process and its children, which would notice a little later."""
        children = _children(self.pid) if self.is_running else []
        self.process.kill()
        self.process.wait()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for each in lists for word in each.read_text().split()]


@dataclass(frozen=True, slots=True)
class Lab:
    """Starts servers of one interpreter, each in a folder of its own."""

    python: str
    scratch: Path
    limit_s: float = LIMIT_S

    def folder(self, name: str) -> Path:
        """Return a new folder."""
        number = sum(1 for _ in self.scratch.iterdir())
        path = self.scratch / f"{number:03}-{name}"
        path.mkdir(parents=True)
        return path

    @contextmanager
    def name_server(self, folder: Path | None = None, settings: Mapping[str, object] | None = None) -> Iterator[Server]:
        folder = folder or self.folder("nameserver")
        values: dict[str, object] = {
            "listenPort": 0,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": folder / "kvConfig.json",
            "configStorePath": folder / "namesrv.properties",
        }
        with self._start("nameserver", folder, _options(values | dict(settings or {}))) as server:
            yield server

    @contextmanager
    def broker(
        self,
        folder: Path | None = None,
        settings: Mapping[str, object] | None = None,
        file: Path | None = None,
        files_max: int | None = None,
    ) -> Iterator[Server]:
        """Start a broker by settings, or by a file that has them all."""
        folder = folder or self.folder("broker")
        options = _options(broker_settings(folder, settings)) if file is None else ["-c", str(file)]
        with self._start("broker", folder, options, files_max) as server:
            yield server

    @contextmanager
    def console(self, name_server: str) -> Iterator[Server]:
        folder = self.folder("console")
        options = ["-n", name_server, "--port", "0", "--data", str(folder)]
        with self._start("console", folder, options) as server:
            yield server

    @contextmanager
    def _start(
        self, role: Role, folder: Path, options: Sequence[str], files_max: int | None = None
    ) -> Iterator[Server]:
        kept = {key: text for key, text in os.environ.items() if "ROCKETMQ" not in key and not key.startswith("PYTHON")}
        kept.pop("NAMESRV_ADDR", None)
        command = [self.python, "-m", "skyroute", role, *options]
        if files_max is not None:
            command = ["prlimit", f"--nofile={files_max}:{files_max}", *command]
        with (
            (folder / "server.log").open("ab") as log,
            subprocess.Popen(
                command,
                cwd=folder,
                env=kept | {"HOME": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            ) as process,
        ):
            server = Server(role, process, "", folder)
            try:
                server.address = _await_address(server)
                yield server
            finally:
                server.kill()


def broker_settings(folder: Path, more: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return the settings of a broker that keeps its files in a folder."""
    return {
        "brokerName": BROKER,
        "brokerClusterName": CLUSTER,
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": folder / "store",
        "mappedFileSizeCommitLog": 64 * 1024 * 1024,
        "maxHashSlotNum": 100_000,
        "maxIndexNum": 400_000,
        **(more or {}),
    }


def _options(settings: Mapping[str, object]) -> list[str]:
    return [word for key, value in settings.items() for word in ("-D", f"{key}={value}")]


def _await_address(server: Server) -> str:
    stdout = server.process.stdout
    assert stdout is not None
    said: list[str] = []
    timer = threading.Timer(BOOT_S, server.process.kill)
    timer.start()
    try:
        for line in stdout:
            said.append(line)
            if found := _LISTENING.search(line):
                return found[1]
    finally:
        timer.cancel()
    raise NotStartedError(f"{server.role} did not start; it said {''.join(said)!r} and {server.log[-2000:]!r}")


# ------------------------------------------------------------------------------------------------------- large tables


def registration(topics: Sequence[Topic] | int, broker: str = BROKER, port: int = 10_911) -> Registration:
    """Return a broker with topics, or as many topics as a number says."""
    if isinstance(topics, int):
        topics = [Topic(PEER_TOPIC), *(Topic(f"topic-{number:06}") for number in range(topics - 1))]
    return Registration(CLUSTER, broker, f"127.0.0.1:{port}", topics, deflate=True)


def register(server: Server, topics: Sequence[Topic] | int) -> RawConnection:
    """Register a broker; the connection is to be kept, as a broker's is."""
    line = server.line(timeout_s=LIMIT_S)
    answer = line.call(registration(topics).request)
    if answer.code:
        raise NotStartedError(f"a registration was answered {answer.code} {answer.remark}")
    return line


def write_topics(folder: Path, queues: Mapping[str, int]) -> None:
    """Write the table of topics of a broker that is not running; the value is the number of queues."""
    table = {
        name: {"topicName": name, "readQueueNums": count, "writeQueueNums": count, "perm": 6}
        for name, count in {PEER_TOPIC: 4, **queues}.items()
    }
    _write_table(folder, "topics.json", {"topicConfigTable": table})


def write_groups(folder: Path, groups: Iterable[str]) -> None:
    _write_table(folder, "subscriptionGroup.json", {"subscriptionGroupTable": {g: {"groupName": g} for g in groups}})


def write_offsets(folder: Path, groups: Sequence[str], topics: Sequence[str], queues: int) -> None:
    """Have every group be at the first message of every queue of every topic."""
    offsets = {str(queue): 1 for queue in range(queues)}
    table = {f"{topic}@{group}": offsets for group in groups for topic in topics}
    _write_table(folder, "consumerOffset.json", {"offsetTable": table})


def _write_table(folder: Path, name: str, table: Mapping[str, Any]) -> None:
    path = folder / "store" / "config" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table))


# ----------------------------------------------------------------------------------------------------------- messages


def send_request(topic: str, queue: int, body: bytes, properties: str = "", *, batch: bool = False) -> Request:
    """Return a send in its short form."""
    fields = {
        **{"a": "attackers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1758275140000"},
        **{"h": "0", "i": properties, "j": "0", "k": "false", "m": "true" if batch else "false", "n": BROKER},
    }
    return Request(320 if batch else 310, fields, body)


def batch_body(bodies: Iterable[bytes], properties: bytes = b"") -> bytes:
    """Return many messages as the body of one batch."""
    items = []
    for body in bodies:
        size = 22 + len(body) + len(properties)
        items.append(size.to_bytes(4) + bytes(12) + len(body).to_bytes(4) + body)
        items.append(len(properties).to_bytes(2) + properties)
    return b"".join(items)


def pull_request(topic: str, queue: int, offset: int, *, group: str = "readers", own_filter: bool = True) -> Request:
    """Return a pull of up to 32 messages; with `own_filter` it wants all, else what the group's heartbeat said."""
    fields = {
        **{"consumerGroup": group, "topic": topic, "queueId": str(queue), "queueOffset": str(offset)},
        **{"maxMsgNums": "32", "sysFlag": "4" if own_filter else "0", "commitOffset": "0"},
        **{"suspendTimeoutMillis": "0", "subVersion": "0", "expressionType": "TAG"},
    }
    if own_filter:
        fields["subscription"] = "*"
    return Request(11, fields)


def readable(server: Server, topic: str, queues: int) -> int:
    """Return how many messages of a topic a consumer gets, which goes on wherever it is sent to."""
    found = 0
    with server.line() as line:
        for queue in range(queues):
            fields = {"topic": topic, "queueId": str(queue)}
            end = int(line.call(30, fields).fields.get("offset", "0"))
            before, offset = -1, int(line.call(31, fields).fields.get("offset", "0"))
            while before < offset < end:
                answer = line.call(pull_request(topic, queue, offset))
                found += _records_in(answer.body) if answer.code == 0 else 0
                before, offset = offset, int(answer.fields.get("nextBeginOffset", "0"))
    return found


def _records_in(body: bytes) -> int:
    at = count = 0
    while at < len(body):
        size = int.from_bytes(body[at : at + 4])
        if size <= 0:
            break
        at, count = at + size, count + 1
    return count


# ---------------------------------------------------------------------------------------------------------- attacking


@dataclass(slots=True)
class _Attacker:
    """A connection that writes all it has to say as fast as it is taken, and reads all answers."""

    socket: socket.socket
    rest: memoryview
    wanted: int
    answered: int = 0
    _start: bytearray = field(default_factory=bytearray)
    """The first bytes of the frame that is being read."""
    _left: int = 0

    def feed(self, data: memoryview) -> None:
        """Count the responses in what was read; requests of the server do not count."""
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._start += data[at : at + min(step, max(0, _HEADER_BYTES - len(self._start)))]
                self._left -= step
                if not self._left:
                    flag = _FLAG.search(self._start)  # which stands behind the fields, and few have those of an answer
                    self.answered += flag is None or int(flag[1]) % 2
                    self._start.clear()
            else:
                step = min(4 - len(self._start), len(data) - at)
                self._start += data[at : at + step]
                if len(self._start) == 4:
                    self._left = int.from_bytes(self._start)
                    self._start.clear()
            at += step


@dataclass(frozen=True, slots=True)
class Fired:
    """What came of requests that were written without waiting for their answers."""

    took_s: float
    answered: int
    wanted: int

    @property
    def is_whole(self) -> bool:
        return self.answered >= self.wanted


def fire(
    address: str,
    requests: Sequence[Request],
    *,
    connections: int = 1,
    one_way: bool = False,
    end: Request | None = None,
    limit_s: float = LIMIT_S,
) -> Fired:
    """Write all requests on each of some connections, and wait until all that are to be answered are.

    `end` is asked behind one-way requests, so that one knows when they have been dealt with.
    """
    flag = 2 if one_way else 0
    frames = [encode(request, number, flag=flag) for number, request in enumerate(requests, 1)]
    if end is not None:
        frames.append(encode(end, len(frames) + 1))
    wanted = (0 if one_way else len(requests)) + (end is not None)
    data = memoryview(b"".join(frames))
    attackers = [
        _Attacker(socket.create_connection(split_address(address), timeout=10), data, wanted)
        for _ in range(connections)
    ]
    began = time.monotonic()
    try:
        _drive(attackers, began + limit_s)
    finally:
        for each in attackers:
            each.socket.close()
    return Fired(time.monotonic() - began, sum(each.answered for each in attackers), wanted * connections)


def _drive(attackers: Sequence[_Attacker], deadline: float) -> None:
    buffer = memoryview(bytearray(_PIECE))
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    with selectors.DefaultSelector() as selector:
        for each in attackers:
            each.socket.setblocking(False)  # noqa: FBT003 - the name is the method's
            selector.register(each.socket, both, each)
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            for key, events in selector.select(left_s):
                attacker: _Attacker = key.data
                try:
                    if events & selectors.EVENT_WRITE:
                        attacker.rest = attacker.rest[attacker.socket.send(attacker.rest[:_PIECE]) :]
                        if not attacker.rest:
                            selector.modify(attacker.socket, selectors.EVENT_READ, attacker)
                    if events & selectors.EVENT_READ:
                        size = attacker.socket.recv_into(buffer)
                        attacker.feed(buffer[:size])
                        if not size:
                            selector.unregister(attacker.socket)
                            continue
                except BlockingIOError:
                    continue
                except OSError:
                    selector.unregister(attacker.socket)
                    continue
                if attacker.answered >= attacker.wanted and not attacker.rest:
                    selector.unregister(attacker.socket)


# ------------------------------------------------------------------------------------------------ a well-behaved peer


@dataclass(frozen=True, slots=True)
class Heard:
    """What a well-behaved peer met with."""

    longest_ms: float
    """Its longest wait for an answer; requests that fail are asked again, and the wait goes on."""
    computed_ms: float
    """The most that the server computed during one wait: what is left of it on a machine without others."""
    asked: int
    failed: int
    last_failure: str = ""


class Peer:
    """Someone who asks something cheap every few milliseconds, in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self) -> None:
        """Forget what was heard so far."""
        self._say("begin")

    def end(self) -> Heard:
        """Return what was heard since the beginning, once the question under way is answered."""
        return Heard(**json.loads(self._say("end")))

    def _say(self, word: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._process.stdout.readline()


@contextmanager
def peer(server: Server, *, pause_ms: float = 5.0, source: str = "127.0.0.1") -> Iterator[Peer]:
    """Have a well-behaved peer ask a server."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.attacks.peer",
        server.role,
        server.address,
        str(server.pid),
        str(pause_ms),
        source,
    ]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise NotStartedError("the well-behaved peer got no answer before the attack")
            yield Peer(process)
        finally:
            process.kill()


def raise_file_limit() -> None:
    """Let this process have as many connections as it may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def settled_mb(server: Server, wait_s: float) -> float:
    """Return the memory that a server has after some time, or as soon as it falls no further."""
    deadline, least = time.monotonic() + wait_s, server.rss_mb
    while time.monotonic() < deadline:
        time.sleep(0.5)
        least = min(least, server.rss_mb)
    return least
