"""Apache's own producers and consumers, held from a test: one JVM (`ClientShell.java`), many clients in it.

Answers and messages arrive on a thread of this module, because the JVM outlives the event loop of any one test. Every
wait ends: with what was waited for, with the JVM's death, or at its deadline. Clients of other languages, in processes
that take the same commands, are held in the same way.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import ssl
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from skyroute import Credentials
from tests.support.apache import SMALL_HEAP, PeerProcess, java
from tests.support.waiting import eventually

CALL_TIMEOUT_S: Final = 30.0
ARRIVAL_TIMEOUT_S: Final = 30.0

# Java rebalances every twenty seconds by default, too long for a test.
OPTIONS: Final = (*SMALL_HEAP, "-Drocketmq.client.rebalance.waitInterval=1000")

Outcome = Literal["commit", "rollback", "unknown"]
StartFrom = Literal["CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET"]


class JavaError(Exception):
    """What a Java client threw; `code` is the broker's, where the broker refused."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Place:
    """Where clients of either language connect, and how: the same facts in the words of each."""

    name_servers: str
    brokers: tuple[str, ...]
    """Addresses of the brokers, to create topics on."""
    java: dict[str, object]
    python: dict[str, Any]

    @classmethod
    def at(cls, name_servers: str, *brokers: str) -> Place:
        return cls(name_servers, brokers, {"nameServers": name_servers}, {"name_servers": name_servers})

    def as_user(self, access_key: str, secret_key: str) -> Place:
        credentials = Credentials(access_key, secret_key)
        java = self.java | {"accessKey": access_key, "secretKey": secret_key}
        return replace(self, java=java, python=self.python | {"credentials": credentials})

    def in_tls(self, context: ssl.SSLContext) -> Place:
        """Java believes any certificate: that is its own default, and not our concern."""
        return replace(self, java=self.java | {"tls": True}, python=self.python | {"tls": context})

    def with_namespace(self, namespace: str) -> Place:
        return replace(self, java=self.java | {"namespace": namespace}, python=self.python | {"namespace": namespace})


@dataclass(frozen=True, slots=True)
class Sent:
    """Java's SendResult."""

    status: str
    message_id: str
    broker: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class Received:
    """Java's MessageExt, as its consumer got it."""

    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]
    message_id: str | None
    broker: str | None
    queue_id: int
    queue_offset: int
    sys_flag: int
    reconsume_times: int
    born_ms: int
    stored_ms: int

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Received:
        return cls(
            topic=event["topic"],
            body=base64.b64decode(event["body"]),
            tag=event.get("tag"),
            keys=tuple((event.get("keys") or "").split()),
            properties=event["properties"],
            message_id=event.get("msgId"),
            broker=event.get("broker"),
            queue_id=event.get("queueId", -1),
            queue_offset=event.get("queueOffset", -1),
            sys_flag=event.get("sysFlag", 0),
            reconsume_times=event.get("reconsumeTimes", 0),
            born_ms=event.get("bornMs", 0),
            stored_ms=event.get("storedMs", 0),
        )


@dataclass(slots=True)
class _Inbox:
    """What one client has told so far, and who waits for more of it."""

    events: list[Received] = field(default_factory=list)
    waiters: list[tuple[Callable[[list[Received]], bool], Future[list[Received]]]] = field(default_factory=list)

    def settle(self) -> None:
        for waiter in self.waiters[:]:
            is_enough, future = waiter
            if future.cancelled():
                self.waiters.remove(waiter)
            elif is_enough(self.events):
                self.waiters.remove(waiter)
                if future.set_running_or_notify_cancel():
                    future.set_result(list(self.events))


class PeerClients(PeerProcess):
    """A process full of clients. It is a process like any other peer, and may be killed like any other."""

    def __init__(self, name: str, home: Path, command: Sequence[str]) -> None:
        super().__init__(name, home, port=1)  # it listens nowhere
        self._command = list(command)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._answers: dict[int, Future[Any]] = {}
        self._inboxes: dict[str, _Inbox] = {}
        self._reader: threading.Thread | None = None

    def command(self) -> list[str]:
        return self._command

    def start(self) -> None:
        """Start the process and wait until it takes commands."""
        if self not in self.started:
            self.started.append(self)
        with self.log.open("ab") as log:
            self._process = process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.home,
                env=self.environment(),
            )
        ready: Future[Any] = Future()
        self._answers[0] = ready
        self._reader = threading.Thread(target=self._read, args=(process,), name=self.name, daemon=True)
        self._reader.start()
        try:
            ready.result(CALL_TIMEOUT_S)
        except TimeoutError as error:
            self.kill()
            raise self._failure("did not become ready") from error

    def kill(self) -> None:
        super().kill()
        if self._reader is not None:
            self._reader.join()
        if self._process is not None and self._process.stdin is not None and self._process.stdout is not None:
            self._process.stdin.close()
            self._process.stdout.close()

    async def call(self, do: str, arguments: Mapping[str, object], *, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """Run one command of the shell and give its result.

        Raises:
            JavaError: The command threw.
            PeerFailedError: The process is dead.
            TimeoutError: It did not answer in time.
        """
        number = next(self._numbers)
        answer: Future[Any] = Future()
        with self._lock:
            self._answers[number] = answer
        line = json.dumps({"id": number, "do": do, **arguments}).encode() + b"\n"
        await asyncio.to_thread(self._write, line)
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(answer)

    def _write(self, line: bytes) -> None:
        process = self._running()
        assert process.stdin is not None
        try:
            with self._lock:
                process.stdin.write(line)
                process.stdin.flush()
        except (OSError, ValueError) as error:
            raise self._failure("takes no more commands") from error

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            told = json.loads(line)
            match told.get("event"):
                case None:
                    self._settle(told)
                case "ready":
                    self._answers.pop(0).set_result(None)
                case event:
                    with self._lock:
                        inbox = self._inbox(event, told["of"])
                        inbox.events.append(Received.of(told))
                        inbox.settle()
        with self._lock:
            waiting = [*self._answers.values(), *(f for i in self._inboxes.values() for _, f in i.waiters)]
            self._answers.clear()
        for future in waiting:
            if not future.cancelled() and future.set_running_or_notify_cancel():
                future.set_exception(self._failure("ended"))

    def _settle(self, told: Mapping[str, Any]) -> None:
        with self._lock:
            answer = self._answers.pop(told["id"], None)
        if answer is None or not answer.set_running_or_notify_cancel():
            return
        if "error" in told:
            answer.set_exception(JavaError(told["error"], told.get("code")))
        else:
            answer.set_result(told.get("result"))

    def told(self, event: str, of: str) -> list[Received]:
        """What one client has told so far."""
        with self._lock:
            return list(self._inbox(event, of).events)

    async def await_told(
        self, event: str, of: str, is_enough: Callable[[list[Received]], bool], timeout_s: float
    ) -> list[Received]:
        """What one client has told, once that is enough.

        Raises:
            TimeoutError: It was not enough in time.
        """
        future: Future[list[Received]] = Future()
        with self._lock:
            inbox = self._inbox(event, of)
            inbox.waiters.append((is_enough, future))
            inbox.settle()
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(future)
        except TimeoutError:
            got = [(each.body[:40], each.reconsume_times) for each in self.told(event, of)]
            raise TimeoutError(f"{of} told only {len(got)} within {timeout_s:g} s, at last {got[-20:]}") from None

    def _inbox(self, event: str, of: str) -> _Inbox:
        return self._inboxes.setdefault(f"{event} {of}", _Inbox())

    # ------------------------------------------------------------------------------------------------------- clients

    @asynccontextmanager
    async def producer(
        self,
        place: Place,
        group: str = "java-producers",
        *,
        transactional: bool = False,
        compression: str | None = None,
        compress_over: int = 1 << 30,
    ) -> AsyncIterator[JavaProducer]:
        """A started producer, stopped at the end of the block."""
        options: dict[str, object] = {"transactional": transactional, "compressOver": compress_over}
        if compression is not None:
            options["compression"] = compression
        async with self._client("producer", place, group, options) as (name, _):
            yield JavaProducer(self, name)

    @asynccontextmanager
    async def consumer(
        self,
        place: Place,
        group: str,
        subscriptions: str | Mapping[str, str],
        *,
        kind: Literal["consumer", "pullConsumer"] = "consumer",
        start_from: StartFrom = "CONSUME_FROM_FIRST_OFFSET",
        is_sql: bool = False,
        is_orderly: bool = False,
        is_broadcast: bool = False,
        failures: int = 0,
        reconsume_times_max: int = -1,
        is_replying: bool = False,
        is_assigned: bool = False,
        is_server_rebalance: bool = False,
    ) -> AsyncIterator[JavaConsumer]:
        """A started consumer of a topic, or of several with their expressions, stopped at the end of the block.

        It refuses every message until that was redelivered `failures` times. A pull consumer may take all queues of
        its topics without asking its group.
        """
        options = {
            "subscriptions": {subscriptions: "*"} if isinstance(subscriptions, str) else dict(subscriptions),
            "sql": is_sql,
            "orderly": is_orderly,
            "model": "BROADCASTING" if is_broadcast else "CLUSTERING",
            "from": start_from,
            "failures": failures,
            "reconsumeTimesMax": reconsume_times_max,
            "replies": is_replying,
            "assigned": is_assigned,
            "serverRebalance": is_server_rebalance,
        }
        async with self._client(kind, place, group, options) as (name, client_id):
            yield JavaConsumer(self, name, client_id)

    @asynccontextmanager
    async def _client(
        self, kind: str, place: Place, group: str, options: Mapping[str, object]
    ) -> AsyncIterator[tuple[str, str]]:
        name = f"{kind}-{next(self._numbers)}"
        client_id = await self.call(kind, {"of": name, "group": group, **place.java, **options})
        try:
            yield name, client_id
        finally:
            if self.is_running:
                await self.call("stop", {"of": name})

    async def create_topic(self, place: Place, topic: str, queues: int = 4) -> str:
        """Create a topic on every broker of the place; gives its name."""
        options = {"topic": topic, "queues": queues, "brokers": place.brokers}
        await self.call("createTopic", {**place.java, **options})
        return topic

    async def create_user(self, place: Place, user: str, password: str, prefix: str) -> None:
        """Let a user send to, and receive from, topics and groups whose names begin in a certain way."""
        options = {"user": user, "password": password, "prefix": prefix, "brokers": place.brokers}
        await self.call("createUser", {**place.java, **options})


class JavaClients(PeerClients):
    """Apache's Java clients, in one JVM."""

    def __init__(self, name: str, home: Path, lib: Path, classes: Path) -> None:
        super().__init__(name, home, java(lib, home, "ClientShell", options=OPTIONS, classes=classes))


@dataclass(frozen=True, slots=True)
class JavaProducer:
    """A DefaultMQProducer, or a TransactionMQProducer."""

    clients: PeerClients
    name: str

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        order_key: str | None = None,
        oneway: bool = False,
        is_async: bool = False,
        **parts: Any,
    ) -> Sent:
        """Send one message; `parts` as of `message`."""
        options: dict[str, object] = {"oneway": oneway, "async": is_async}
        if order_key is not None:
            options["orderKey"] = order_key
        answer = await self.clients.call("send", {"of": self.name, **message(topic, body, **parts), **options})
        return _sent(answer) if answer else Sent("", "", "", -1, -1)

    async def send_batch(self, messages: Iterable[Mapping[str, object]]) -> Sent:
        return _sent(await self.clients.call("sendBatch", {"of": self.name, "messages": list(messages)}))

    async def request(self, topic: str, body: bytes, *, timeout_s: float = 10.0) -> Received:
        """Send a question and give its reply."""
        question = {"of": self.name, "timeoutMs": round(timeout_s * 1000), **message(topic, body)}
        return Received.of(await self.clients.call("request", question))

    async def checks(self, count: int = 1, *, timeout_s: float = ARRIVAL_TIMEOUT_S) -> list[Received]:
        """The messages whose transactions it was asked about."""
        return await self.clients.await_told("check", self.name, lambda told: len(told) >= count, timeout_s)


@dataclass(frozen=True, slots=True)
class JavaConsumer:
    """A DefaultMQPushConsumer, or a DefaultLitePullConsumer that is polled and committed without pause."""

    clients: PeerClients
    name: str
    client_id: str

    @property
    def received(self) -> list[Received]:
        return self.clients.told("message", self.name)

    async def take(self, count: int, *, timeout_s: float = ARRIVAL_TIMEOUT_S) -> list[Received]:
        """Wait for at least `count` messages, and return all received."""
        return await self.clients.await_told("message", self.name, lambda told: len(told) >= count, timeout_s)

    async def find(self, is_wanted: Callable[[Received], bool], *, timeout_s: float = ARRIVAL_TIMEOUT_S) -> Received:
        """The first wanted message among all that it has received and will receive."""
        told = await self.clients.await_told("message", self.name, lambda told: any(map(is_wanted, told)), timeout_s)
        return next(filter(is_wanted, told))

    async def take_bodies(self, bodies: Iterable[bytes], *, timeout_s: float = ARRIVAL_TIMEOUT_S) -> list[Received]:
        """Wait until each of these bodies is received, and return all messages."""
        wanted = set(bodies)

        def is_enough(told: Sequence[Received]) -> bool:
            return len(told) >= len(wanted) and wanted <= {each.body for each in told}

        return await self.clients.await_told("message", self.name, is_enough, timeout_s)

    async def seek(self, topic: str, offset: int) -> None:
        """Have a pull consumer go on at this offset in all its queues of a topic."""
        await self.clients.call("seek", {"of": self.name, "topic": topic, "offset": offset})

    async def owned(self) -> set[tuple[str, str, int]]:
        """Topic, broker and number of the queues that it holds."""
        return {(topic, broker, queue) for topic, broker, queue in await self.clients.call("owned", {"of": self.name})}

    async def await_owned(self, count: int, *, timeout_s: float = ARRIVAL_TIMEOUT_S) -> set[tuple[str, str, int]]:
        """Wait until it owns `count` queues, and return them."""
        owned: set[tuple[str, str, int]] = set()

        async def has_as_many() -> bool:
            owned.clear()
            owned.update(await self.owned())
            return len(owned) == count

        await eventually(has_as_many, timeout_s=timeout_s, what=f"{self.name} owns {count} queues")
        return owned


def message(
    topic: str,
    body: bytes,
    *,
    tag: str | None = None,
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    delay_level: int | None = None,
    delay_ms: int | None = None,
    deliver_at_ms: int | None = None,
) -> dict[str, object]:
    """A message in the shell's words."""
    parts: dict[str, object] = {"topic": topic, "body": base64.b64encode(body).decode()}
    named: dict[str, object] = {"tag": tag, "keys": list(keys) or None, "properties": properties}
    named |= {"delayLevel": delay_level, "delayMs": delay_ms, "deliverAtMs": deliver_at_ms}
    return parts | {key: value for key, value in named.items() if value is not None}


def _sent(answer: Mapping[str, Any]) -> Sent:
    return Sent(answer["status"], answer["msgId"], answer["broker"], answer["queueId"], answer["queueOffset"])
