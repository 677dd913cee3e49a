"""Attacks by values that lie: names, numbers, settings and addresses."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from benchmarks.attacks.outcomes import Outcome, attack
from benchmarks.attacks.servers import (
    PEER_TOPIC,
    Lab,
    NotStartedError,
    Server,
    broker_settings,
    peer,
    register,
    send_request,
    write_topics,
)
from tests.support.raw import Command, Registration, Topic, decode, frame

CLIENT_S: Final = 20.0
CLIENT_BYTES: Final = 2_000_000_000
CLIENT: Final = """
import asyncio, resource, sys, time
from skyroute import Admin, Message, Producer

resource.setrlimit(resource.RLIMIT_AS, ({bytes}, {bytes}))

async def send():
    async with Producer("attacked", name_servers=sys.argv[1]) as producer:
        await producer.send(Message("huge", b"x"))

async def look():
    async with Admin(sys.argv[1]) as admin:
        await admin.allocation("huge", ["one", "two"])

began = time.monotonic()
try:
    asyncio.run(asyncio.wait_for(send() if sys.argv[2] == "send" else look(), 15))
    said = "done"
except BaseException as error:
    said = type(error).__name__
print(said, round(time.monotonic() - began, 2), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 // 1000000)
"""


@attack("queues")
def queues(lab: Lab) -> Iterator[Outcome]:
    """Register a topic with 2^31 - 1 queues; tell our client of such a topic, which it uses in 2 GB and 20 s."""
    count = 2**31 - 1
    with lab.name_server() as server, server.line() as line:
        topics = [Topic(PEER_TOPIC), Topic("huge", read=count, write=count)]
        line.call(Registration("c", "broker-a", "127.0.0.1:1", topics).request)
        said = "refused" if line.call(105, {"topic": "huge"}).code else "answered"
        yield Outcome("queues", "nameserver", "the route of a topic with 2^31 - 1 queues", said, wanted="refused")
    with _lying_name_server(count) as address:
        for what in ("send", "allocate"):
            yield from _client(lab, address, what)


@contextmanager
def _lying_name_server(queues: int) -> Iterator[str]:
    """A fake name server that answers every request with a route of this many queues."""
    queue = {"brokerName": "b", "perm": 6, "readQueueNums": queues, "writeQueueNums": queues, "topicSysFlag": 0}
    broker = {"brokerName": "b", "cluster": "c", "brokerAddrs": {"0": "127.0.0.1:1"}}
    body = json.dumps({"brokerDatas": [broker], "queueDatas": [queue], "filterServerTable": {}}).encode()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while prefix := connection.recv(4, socket.MSG_WAITALL):
                request = decode(connection.recv(int.from_bytes(prefix), socket.MSG_WAITALL))
                header = {"code": 0, "flag": 1, "opaque": request.opaque, "language": "JAVA", "version": 479}
                connection.sendall(frame(json.dumps(header).encode(), body))

    def listen() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _client(lab: Lab, address: str, what: str) -> Iterator[Outcome]:
    title = f"{what} with a route of 2^31 - 1 queues"
    command = [lab.python, "-c", CLIENT.replace("{bytes}", str(CLIENT_BYTES)), address, what]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_S, check=False)
    except subprocess.TimeoutExpired:
        yield Outcome("queues", "client", title, f"> {CLIENT_S:g} s", "s", 1.0)
        return
    words = done.stdout.split()
    if len(words) != 3:
        yield Outcome("queues", "client", title, f"ended with {done.returncode}", "s", 1.0, note=done.stderr[-200:])
        return
    note = f"ended with {words[0]}, {words[2]} MB"
    yield Outcome("queues", "client", title, float(words[1]), "s", 1.0, note=note)


# -------------------------------------------------------------------------------------------------------------- names


@attack("delete-path")
def delete_path(lab: Lab) -> Iterator[Outcome]:
    """Delete topics whose names are paths, or no names at all."""
    folder = lab.folder("paths")
    write_topics(folder, {})
    victims = {f"{'../' * depth}victim-{depth}": folder for depth in (1, 2, 3)}
    roots = {1: folder / "store", 2: folder, 3: folder.parent}
    paths = {name: roots[depth] / f"victim-{depth}" for depth, name in enumerate(victims, 1)}
    for path in paths.values():
        path.mkdir(parents=True, exist_ok=True)
    absolute = folder / "victim-absolute"
    absolute.mkdir()
    paths[str(absolute)] = absolute
    with lab.broker(folder) as server, server.line() as line:
        line.call(send_request(PEER_TOPIC, 0, b"x"))  # which makes the folder that the paths start from
        for name in paths:
            line.call(215, {"topic": name})
        left = sum(path.is_dir() for path in paths.values())
        yield Outcome("delete-path", "broker", "folders left of 4", left, at_least=4)
        mark, count = len(server.log), 20
        for number in range(count):
            try:
                line.call(215, {"topic": f"a\0b{number}"})
            except OSError:
                break
        time.sleep(0.2)
        lines = server.log[mark:].count("\n")
        yield Outcome("delete-path", "broker", f"log lines after {count} names with a NUL", lines, at_most=count)


# ----------------------------------------------------------------------------------------------------------- settings

BAD_SETTINGS: Final = (
    "listenPort={taken}",
    "metricsPort={taken}",
    "bindAddress=203.0.113.1",
    "brokerIP1=not an address",
    "mappedFileSizeCommitLog=8192",
    "mappedFileSizeConsumeQueue=40",
)
"""Each keeps a broker from starting; `{taken}` is the port of another server."""


@attack("settings")
def settings(lab: Lab) -> Iterator[Outcome]:
    """Change settings so that routes are no longer answered, or a broker does not start again."""
    with lab.name_server() as server, register(server, 10), peer(server) as well_behaved, server.line() as line:
        well_behaved.begin()
        time.sleep(0.1)
        answer = line.call(318, {}, b"needWaitForService=true\nwaitSecondsForService=1000000")
        time.sleep(1.0)
        heard = well_behaved.end()
        note = f"318 answered {answer.code}; {heard.failed} of {heard.asked} failed {heard.last_failure}"
        said = "answered" if not heard.failed else "refused"
        yield Outcome(
            "settings", "nameserver", "routes after 318 needWaitForService", said, wanted="answered", note=note
        )
    failed = [text for text in BAD_SETTINGS if not _starts_again(lab, text)]
    good, all_of_them = len(BAD_SETTINGS) - len(failed), len(BAD_SETTINGS)
    note = f"not after {', '.join(failed)}" if failed else ""
    what = f"starts again after 25 with bad settings, of {all_of_them}"
    yield Outcome("settings", "broker", what, good, at_least=all_of_them, note=note)


def _starts_again(lab: Lab, text: str) -> bool:
    """Return whether a broker that was told a setting by 25 starts again and takes a message."""
    folder = lab.folder("settings")
    file = folder / "broker.conf"
    file.write_text("".join(f"{key}={value}\n" for key, value in broker_settings(folder).items()))
    with lab.name_server() as other:
        with lab.broker(folder, file=file) as server, server.line() as line:
            line.call(send_request(PEER_TOPIC, 0, b"x"))
            line.call(25, {}, text.replace("{taken}", other.address.rpartition(":")[2]).encode())
            server.stop()
        try:
            with lab.broker(folder, file=file) as server, server.line() as line:
                return line.call(send_request(PEER_TOPIC, 0, b"x")).code == 0
        except (NotStartedError, OSError):
            return False


SECRETS: Final = {
    "innerClientAuthenticationCredentials": '{"accessKey":"key","secretKey":"hidden-1"}',
    "initAuthenticationUser": '{"username":"admin","password":"hidden-2"}',
    "anUnknownKey": "hidden-3",
    "anUnknownPassword": "hidden-4",
}


@attack("secrets")
def secrets(lab: Lab) -> Iterator[Outcome]:
    """Ask for the settings of servers that were given secrets."""
    with lab.broker(settings=SECRETS) as server, server.line() as line:
        yield _told(server, line.call(26))
    with lab.name_server(settings=SECRETS) as server, server.line() as line:
        yield _told(server, line.call(319))


def _told(server: Server, answer: Command) -> Outcome:
    text = answer.body.decode(errors="replace")
    told = [key for key, value in SECRETS.items() if value[-10:-2] in text or value in text]
    note = ", ".join(told)
    return Outcome("secrets", server.role, f"secrets shown of {len(SECRETS)}", len(told), at_most=0, note=note)


# ---------------------------------------------------------------------------------------------------------- addresses

V1: Final = b"PROXY TCP4 203.0.113.7 203.0.113.8 40000 9876\r\n"
V2: Final = (
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes([203, 0, 113, 7, 203, 0, 113, 8]) + (40_000).to_bytes(2) + b"\x26\x94"
)


@attack("proxy-header")
def proxy_header(lab: Lab) -> Iterator[Outcome]:
    """Send a PROXY header with the address of another client."""
    for version, header in (("v1", V1), ("v2", V2)):
        what = f"PROXY {version} from anyone"
        with lab.broker() as server:
            with server.line(timeout_s=5.0) as line, server.line() as witness:
                try:
                    line.write(header)
                    body = {"clientID": "c@1", "producerDataSet": [{"groupName": "liars"}], "consumerDataSet": []}
                    line.call(34, {}, json.dumps(body).encode())
                    seen = witness.call(204, {"producerGroup": "liars"}).text
                    believed = "accepted" if "203.0.113.7" in seen else "not accepted"
                except OSError as error:
                    believed = "not accepted"
                    seen = type(error).__name__
            note = seen[:120]
            yield Outcome(
                "proxy-header", "broker", f"PROXY {version} from anyone", believed, wanted="not accepted", note=note
            )
        with lab.name_server() as server, register(server, 10):
            with server.line(timeout_s=5.0) as line:
                try:
                    line.write(header)
                    line.call(Registration("c", "liar", "127.0.0.1:1", [Topic("t")]).request)
                    line.call(216, {"topic": "topic-000001"})
                    line.call(100, {"namespace": "n", "key": "k", "value": "v"})
                except OSError:
                    pass
            time.sleep(0.2)
            believed = "accepted" if "203.0.113.7" in server.log else "not accepted"
            yield Outcome("proxy-header", "nameserver", what, believed, wanted="not accepted")


# -------------------------------------------------------------------------------------------------------------- files


@attack("fds")
def few_files(lab: Lab) -> Iterator[Outcome]:
    """Send to 100 topics of 8 queues over 40 connections with at most 64 open files."""
    folder = lab.folder("files")
    topics = [f"t-{number:03}" for number in range(100)]
    write_topics(folder, dict.fromkeys(topics, 8))
    what = "sends taken of 800, at most 64 files"
    try:
        with lab.broker(folder, files_max=64) as server, server.line() as line, ExitStack() as stack:
            sends = [send_request(topic, queue, b"x", "KEYS\x01k\x02") for queue in range(8) for topic in topics]
            taken = sum(line.call(send).code == 0 for send in sends)
            for _ in range(40):
                stack.enter_context(server.line())
            time.sleep(3.0)  # the flush comes a little later
            yield Outcome("fds", "broker", what, taken, at_least=800)
            traces = server.log.count("Traceback")
            yield Outcome("fds", "broker", "tracebacks in the log", traces, at_most=0, note=_last_error(server.log))
    except (NotStartedError, OSError) as error:
        yield Outcome("fds", "broker", what, str(error)[-200:], at_least=800)


def _last_error(log: str) -> str:
    found = [line for line in log.splitlines() if "Error" in line]
    return found[-1][:160] if found else ""
