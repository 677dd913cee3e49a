"""A whole cluster inside the test: a name server and brokers that speak real bytes over loopback and obey the test.

Bytes are written and read by `raw`, and records are laid out by hand, so a mistake of the product's codec cannot hide
behind the same mistake here; of `skyroute` there is only `QueueRef`, the plain name of a queue.

    async with fake_cluster(topics={"T": 4}) as cluster:
        queue = cluster.queue("T", 0)
        cluster.put(queue, b"body", tag="A")
        cluster.refuse(34, 2, "busy", times=1)
        async with Producer("g", name_servers=cluster.address) as producer:
            ...
        (heartbeat,) = await cluster.until_seen(34)

It answers 105 as a name server, and as a broker 10, 310, 320 (sends), 11, 361 (pulls, with long polling), 14, 15, 29,
30, 31, 32 (offsets), 34, 35, 38, 46 (members, who are told with 40), 36 (send back, at once), 37, 41, 42 (locks).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from skyroute.message.queue_ref import QueueRef
from tests.support.connections import WAIT_S
from tests.support.raw import VERSION_5, ClosedError, Command, Request, crc32, decode, encode, frame
from tests.support.waiting import eventually

CLUSTER: Final = "FakeCluster"
BROKER: Final = "broker-a"
NAME_SERVER: Final = ""
"""What the name server is called where a broker's name is expected."""

FIRST_STORED_AT_MS: Final = 1_758_275_140_000
"""When the first message was stored, by the cluster's own clock; each later one came a millisecond after the last."""

SCANNED_MAX: Final = 800
"""How many messages one pull looks at."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What to answer."""

    code: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One stored message."""

    data: bytes
    body: bytes
    properties: Mapping[str, str]
    position: int
    stored_at_ms: int
    reconsume_times: int
    topic: str

    @property
    def tag(self) -> str | None:
        return self.properties.get("TAGS")


class Peer:
    """One connection of a client to one of the cluster's servers."""

    def __init__(self, server: FakeServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.client_id = ""
        """As its last heartbeat said."""
        self._reader = reader
        self._writer = writer
        self._opaque = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Command]] = {}

    async def ask(self, request: Request) -> Command:
        """Send the client a request, and wait for its answer."""
        opaque = next(self._opaque)
        answer: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._asked[opaque] = answer
        try:
            await self.write(encode(request, opaque))
            async with asyncio.timeout(WAIT_S):
                return await answer
        finally:
            del self._asked[opaque]

    async def send_oneway(self, request: Request) -> None:
        """Send the client a request that wants no answer."""
        await self.write(encode(request, next(self._opaque), flag=2))

    async def write(self, data: bytes) -> None:
        if self._writer.transport.is_closing():
            return  # a closed connection is no failure of the test
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def cut(self) -> None:
        """End the connection without a goodbye."""
        self._writer.transport.abort()

    async def commands(self) -> AsyncIterator[Command]:
        """Give the client's requests as they come, and its answers to who asked."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (length,) = struct.unpack(">I", await self._reader.readexactly(4))
                command = decode(await self._reader.readexactly(length))
                if not command.is_reply:
                    yield command
                elif command.opaque in self._asked:
                    self._asked[command.opaque].set_result(command)
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(ClosedError("the client hung up"))


Answer: TypeAlias = Reply | None
"""None: say nothing."""
Handler: TypeAlias = Callable[[Command, Peer], Answer | Awaitable[Answer]]


class FakeServer:
    """A listening port of the cluster: a broker, or the name server."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.address = "127.0.0.1:0"
        self.peers: set[Peer] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._listening: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        host, _, port = self.address.rpartition(":")
        self._listening = await asyncio.start_server(self._serve, host, int(port))
        self.address = f"{host}:{self._listening.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening, and close every connection."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        self.hang_up()
        for task in self.tasks:
            task.cancel()
        await eventually(lambda: not self.peers and not self.tasks)

    def hang_up(self) -> None:
        """Cut every connection, and go on listening for new ones."""
        for peer in self.peers:
            peer.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(self, reader, writer)
        self.peers.add(peer)
        try:
            async for command in peer.commands():
                if writer.transport.is_closing():
                    break  # what was sent before the cut and not read is lost, as with a broker that died
                task = asyncio.create_task(self.cluster._receive(command, peer))
                self.tasks.add(task)
                task.add_done_callback(self.tasks.discard)
        finally:
            peer.cut()
            self.peers.discard(peer)
            self.cluster._lost(peer)


@dataclass(slots=True)
class _Program:
    """What to do about a code instead of the usual."""

    code: int
    broker: str | None
    handler: Handler
    times: int | None


class FakeCluster:
    """What `fake_cluster` gives: the store, what was heard, and how to misbehave.

    Wherever `broker` may be given, None means all servers, the name server too; `times` makes a misbehaviour pass by
    itself. The latest word about a code counts.
    """

    def __init__(self, topics: Mapping[str, int], brokers: Sequence[str], *, auto_create: bool) -> None:
        self.topics = dict(topics)
        """How many queues a topic has on each broker: change it, and the route has changed."""
        self.servers = {name: FakeServer(self, name) for name in (NAME_SERVER, *brokers)}
        self.offsets: dict[tuple[str, QueueRef], int] = {}
        """What was committed, by group and queue."""
        self.locks: dict[tuple[str, QueueRef], str] = {}
        """The client that holds the lock, by group and queue."""
        self.members: dict[tuple[str, str], dict[str, Peer]] = {}
        """Who consumes, by broker and group: client id to connection."""
        self.subscriptions: dict[tuple[str, str, str], dict[str, Any]] = {}
        """What the last heartbeat said, by broker, group and topic."""
        self.heard: list[tuple[str, Command]] = []
        """Every request in order, and whom it was said to."""
        self.notifies_members = True
        """Whether members are notified (NOTIFY_CONSUMER_IDS_CHANGED) when others join or leave."""
        self._auto_create = auto_create
        self._queues: dict[QueueRef, list[Record]] = {}
        self._firsts: dict[QueueRef, int] = {}
        self._positions = itertools.count(0, 1000)
        self._programs: list[_Program] = []
        self._news = asyncio.Event()

    @property
    def address(self) -> str:
        """Where the name server is."""
        return self.servers[NAME_SERVER].address

    @property
    def brokers(self) -> list[FakeServer]:
        return [server for name, server in self.servers.items() if name != NAME_SERVER]

    def broker(self, name: str = BROKER) -> FakeServer:
        return self.servers[name]

    # ------------------------------------------------------------------------------------------------- what is stored

    def queue(self, topic: str, queue_id: int = 0, broker: str = BROKER) -> QueueRef:
        return QueueRef(topic, broker, queue_id)

    def put(
        self,
        queue: QueueRef,
        body: bytes,
        *,
        tag: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        reconsume_times: int = 0,
        sys_flag: int = 0,
        span: int = 1,
        flag: int = 0,
    ) -> int:
        """Store a message, give it to who waits for one, and return its offset; `span` is how many offsets it takes."""
        values = dict(properties or {})
        values |= {name: value for name, value in (("TAGS", tag), ("KEYS", keys)) if value is not None}
        records = self._queues.setdefault(queue, [])
        offset = self.end(queue)
        position = next(self._positions)
        stored_at_ms = FIRST_STORED_AT_MS + position // 1000
        data = encode_record(
            queue,
            offset,
            position,
            body,
            values,
            port=int(self.servers[queue.broker_name].address.rpartition(":")[2]),
            stored_at_ms=stored_at_ms,
            reconsume_times=reconsume_times,
            sys_flag=sys_flag,
            flag=flag,
        )
        record = Record(data, body, values, position, stored_at_ms, reconsume_times, queue.topic)
        records += [record] * span
        self._tell_news()
        return offset

    def stored(self, queue: QueueRef) -> list[Record]:
        """Return every message that a queue still has."""
        return self._queues.get(queue, [])

    def stored_bodies(self, topic: str) -> list[bytes]:
        """Return the bodies of all messages of a topic, queue after queue."""
        return [r.body for queue, records in sorted(self._queues.items()) if queue.topic == topic for r in records]

    def begin(self, queue: QueueRef) -> int:
        """Return the offset of the oldest message."""
        return self._firsts.get(queue, 0)

    def end(self, queue: QueueRef) -> int:
        """Return the offset that the next message will have."""
        return self.begin(queue) + len(self.stored(queue))

    def drop_before(self, queue: QueueRef, offset: int) -> None:
        """Delete old messages."""
        self._queues[queue] = self.stored(queue)[offset - self.begin(queue) :]
        self._firsts[queue] = offset

    # --------------------------------------------------------------------------------------------------- what is heard

    def seen(self, code: int, broker: str | None = None) -> list[Command]:
        """Return every request of this code received so far."""
        return [command for name, command in self.heard if command.code == code and broker in (None, name)]

    async def until_seen(self, code: int, n: int = 1, broker: str | None = None) -> list[Command]:
        """Wait until at least `n` requests of this code have come, and return all of them."""
        await self.until(lambda: len(self.seen(code, broker)) >= n)
        return self.seen(code, broker)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is true of the cluster: looked at again whenever it hears or does something."""
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    # ------------------------------------------------------------------------------------------------ how to misbehave

    def on(self, code: int, handler: Handler, *, broker: str | None = None, times: int | None = None) -> None:
        """Have a handler, plain or asynchronous, answer this code; it may fall back on `answer`."""
        self._programs.append(_Program(code, broker, handler, times))

    def hang(self, code: int, *, broker: str | None = None, times: int | None = None) -> None:
        """Never answer."""
        self.on(code, lambda _command, _peer: None, broker=broker, times=times)

    def refuse(
        self, code: int, response_code: int, remark: str = "", *, broker: str | None = None, times: int | None = None
    ) -> None:
        """Answer with this response code."""
        reply = Reply(response_code, remark=remark)
        self.on(code, lambda _command, _peer: reply, broker=broker, times=times)

    def cut(self, code: int, *, broker: str | None = None, times: int | None = None) -> None:
        """Do what was asked, and end the connection in the middle of the answer's frame."""

        async def half_an_answer(command: Command, peer: Peer) -> None:
            reply = await self.answer(command, peer) or Reply()
            data = encode_reply(reply, command.opaque)
            await peer.write(data[: len(data) // 2])
            peer._writer.close()

        self.on(code, half_an_answer, broker=broker, times=times)

    def delay(self, code: int, until: asyncio.Event, *, broker: str | None = None, times: int | None = None) -> None:
        """Answer as usual, but only once the event is set."""

        async def later(command: Command, peer: Peer) -> Answer:
            await until.wait()
            return await self.answer(command, peer)

        self.on(code, later, broker=broker, times=times)

    def heal(self, code: int) -> None:
        """Behave as usual again."""
        self._programs = [program for program in self._programs if program.code != code]

    # ---------------------------------------------------------------------------------------------- talking to clients

    async def ask_client(
        self, client_id: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """Send a client that has sent a heartbeat a request, and return its answer."""
        return await (await self._peer_of(client_id)).ask(Request(code, fields or {}, body))

    async def tell_client(
        self, client_id: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> None:
        """The same for what wants no answer."""
        await (await self._peer_of(client_id)).send_oneway(Request(code, fields or {}, body))

    async def _peer_of(self, client_id: str) -> Peer:
        def found() -> list[Peer]:
            return [peer for server in self.brokers for peer in server.peers if peer.client_id == client_id]

        await self.until(lambda: bool(found()))
        return found()[0]

    # -------------------------------------------------------------------------------------------------------- answers

    async def _receive(self, command: Command, peer: Peer) -> None:
        self.heard.append((peer.server.name, command))
        self._tell_news()
        program = self._take_program(command.code, peer.server.name)
        try:
            if program is None:
                reply = await self.answer(command, peer)
            else:
                outcome = program.handler(command, peer)
                reply = await outcome if inspect.isawaitable(outcome) else outcome
        except Exception as error:  # noqa: BLE001 - what is wrong with a test must be seen by its client
            reply = Reply(1, remark=f"the fake broker failed: {error!r}")
        if reply is not None and not command.is_one_way:
            await peer.write(encode_reply(reply, command.opaque))
        self._tell_news()

    def _take_program(self, code: int, broker: str) -> _Program | None:
        for program in reversed(self._programs):
            if program.code == code and program.broker in (None, broker):
                if program.times is not None:
                    program.times -= 1
                    if program.times == 0:
                        self._programs.remove(program)
                return program
        return None

    async def answer(self, command: Command, peer: Peer) -> Answer:
        """Answer as usual; for handlers that only want to do something on the side."""
        name = _ANSWERS.get(command.code)
        if name is None or (command.code == 105) != (peer.server.name == NAME_SERVER):
            return Reply(3, remark=f" request type {command.code} not supported")
        outcome = getattr(self, name)(command, peer)
        reply: Answer = await outcome if inspect.isawaitable(outcome) else outcome
        return reply

    def _route(self, command: Command, _peer: Peer) -> Reply:
        topic = command.fields["topic"]
        queues = self.topics.get(topic)
        if queues is None:
            return Reply(17, remark=f"No topic route info in name server for the topic: {topic}")
        body = {
            "brokerDatas": [
                {"brokerAddrs": {"0": server.address}, "brokerName": server.name, "cluster": CLUSTER}
                for server in self.brokers
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": server.name,
                    "perm": 6,
                    "readQueueNums": queues,
                    "topicSysFlag": 0,
                    "writeQueueNums": queues,
                }
                for server in self.brokers
            ],
        }
        return Reply(body=json.dumps(body).encode())

    def _send(self, command: Command, peer: Peer) -> Reply:
        fields = command.fields
        # Code 10 spells the names out; the others have one letter each.
        topic, queue_id, properties, times, sys_flag, flag = (
            fields.get(long if command.code == 10 else short, "")
            for short, long in (
                ("b", "topic"),
                ("e", "queueId"),
                ("i", "properties"),
                ("j", "reconsumeTimes"),
                ("f", "sysFlag"),
                ("h", "flag"),
            )
        )
        if topic not in self.topics:
            if not self._auto_create:
                return Reply(17, remark=f"topic[{topic}] not exist")
            self.topics[topic] = 4
        queue = QueueRef(topic, peer.server.name, max(0, int(queue_id)))
        if fields.get("m") == "true" or fields.get("batch") == "true":
            messages = list(_batch_items(command.body))
        else:
            messages = [(command.body, decode_properties(properties))]
        offsets = [
            self.put(
                queue,
                body,
                properties=values,
                reconsume_times=int(times or 0),
                sys_flag=int(sys_flag or 0),
                flag=int(flag or 0),
            )
            for body, values in messages
        ]
        stored = self.stored(queue)[-len(offsets) :]
        return Reply(
            fields={
                "msgId": ",".join(offset_id(peer.server.address, record.position) for record in stored),
                "queueId": str(queue.queue_id),
                "queueOffset": str(offsets[0]),
                "transactionId": stored[0].properties.get("UNIQ_KEY", ""),
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
            }
        )

    async def _pull(self, command: Command, peer: Peer) -> Reply:
        fields = command.fields
        group, topic = fields["consumerGroup"], fields["topic"]
        queue = QueueRef(topic, peer.server.name, int(fields["queueId"]))
        flag = int(fields["sysFlag"])
        if topic not in self.topics:
            return Reply(17, remark=f"topic[{topic}] not exist")
        if queue.queue_id >= self.topics[topic]:
            return Reply(29, remark=f"queueId[{queue.queue_id}] is illegal")
        if flag & 4:
            expression = fields.get("subscription", "*")
        else:
            known = self.subscriptions.get((peer.server.name, group, topic))
            if known is None:
                return Reply(24, remark="the consumer's subscription not exist")
            if known["subVersion"] < int(fields["subVersion"]):
                return Reply(25, remark="the consumer's subscription not latest")
            expression = known["subString"]
        wanted = _tag_codes(expression) if fields.get("expressionType", "TAG") == "TAG" else None
        if flag & 1:
            self.offsets[group, queue] = int(fields["commitOffset"])
        if flag & 2 and int(fields["queueOffset"]) == self.end(queue):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(int(fields["suspendTimeoutMillis"]) / 1000):
                    await self._until_more(queue, self.end(queue))
        return self._read(queue, int(fields["queueOffset"]), int(fields["maxMsgNums"]), wanted)

    async def _until_more(self, queue: QueueRef, end: int) -> None:
        while self.end(queue) == end:
            self._news.clear()
            await self._news.wait()

    def _read(self, queue: QueueRef, offset: int, count: int, wanted: frozenset[int] | None) -> Reply:
        begin, end = self.begin(queue), self.end(queue)
        code, next_offset, found = 19, offset, b""
        if not begin <= offset <= end:
            code, next_offset = 21, begin if offset < begin else end
        elif offset < end:
            matches: list[Record] = []
            for record in self.stored(queue)[offset - begin : offset - begin + SCANNED_MAX]:
                if len(matches) == count:
                    break
                next_offset += 1
                is_new = not matches or matches[-1] is not record  # a wrapped batch takes several offsets
                if is_new and (wanted is None or java_hash(record.tag or "") in wanted):
                    matches.append(record)
            code = 0 if matches else 20
            found = b"".join(record.data for record in matches)
        places = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(next_offset),
            "minOffset": str(begin),
            "maxOffset": str(end),
        }
        return Reply(code, places, found)

    def _heartbeat(self, command: Command, peer: Peer) -> Reply:
        beat = command.value
        peer.client_id = beat["clientID"]
        for consumer in beat["consumerDataSet"]:
            group = consumer["groupName"]
            self.topics.setdefault(f"%RETRY%{group}", 1)
            for key in [key for key in self.subscriptions if key[:2] == (peer.server.name, group)]:
                del self.subscriptions[key]
            for subscription in consumer["subscriptionDataSet"]:
                self.subscriptions[peer.server.name, group, subscription["topic"]] = subscription
            members = self.members.setdefault((peer.server.name, group), {})
            if members.get(peer.client_id) is not peer:
                members[peer.client_id] = peer
                self._notify(peer.server.name, group)
        return Reply()

    def _unregister(self, command: Command, peer: Peer) -> Reply:
        group = command.fields.get("consumerGroup")
        members = self.members.get((peer.server.name, group or ""), {})
        if group is not None and members.pop(peer.client_id, None) is not None:
            self._notify(peer.server.name, group)
        return Reply()

    def _lost(self, peer: Peer) -> None:
        for (broker, group), members in self.members.items():
            if members.get(peer.client_id) is peer:
                del members[peer.client_id]
                self._notify(broker, group)
        self._tell_news()

    def _notify(self, broker: str, group: str) -> None:
        if self.notifies_members:
            for peer in self.members[broker, group].values():
                task = asyncio.create_task(peer.send_oneway(Request(40, {"consumerGroup": group})))
                peer.server.tasks.add(task)
                task.add_done_callback(peer.server.tasks.discard)

    def _list_members(self, command: Command, peer: Peer) -> Reply:
        members = self.members.get((peer.server.name, command.fields["consumerGroup"]))
        if not members:
            return Reply(1, remark="no consumer for this group")
        return Reply(body=json.dumps({"consumerIdList": list(members)}).encode())

    def _committed(self, command: Command, peer: Peer) -> Reply:
        offset = self.offsets.get((command.fields["consumerGroup"], _queue_of(command, peer)))
        return Reply(22, remark="Not found") if offset is None else Reply(fields={"offset": str(offset)})

    def _commit(self, command: Command, peer: Peer) -> Reply:
        key = command.fields["consumerGroup"], _queue_of(command, peer)
        self.offsets[key] = int(command.fields["commitOffset"])
        return Reply()

    def _max_offset(self, command: Command, peer: Peer) -> Reply:
        return Reply(fields={"offset": str(self.end(_queue_of(command, peer)))})

    def _min_offset(self, command: Command, peer: Peer) -> Reply:
        return Reply(fields={"offset": str(self.begin(_queue_of(command, peer)))})

    def _search(self, command: Command, peer: Peer) -> Reply:
        queue = _queue_of(command, peer)
        when = int(command.fields["timestamp"])
        earlier = sum(record.stored_at_ms < when for record in self.stored(queue))
        return Reply(fields={"offset": str(self.begin(queue) + earlier)})

    def _earliest(self, command: Command, peer: Peer) -> Reply:
        records = self.stored(_queue_of(command, peer))
        return Reply(fields={"timestamp": str(records[0].stored_at_ms if records else -1)})

    def _send_back(self, command: Command, peer: Peer) -> Reply:
        fields = command.fields
        position = int(fields["offset"])
        records = (record for records in self._queues.values() for record in records)
        record = next((record for record in records if record.position == position), None)
        if record is None:
            return Reply(1, remark=f"look message by offset failed, {position}")
        is_dead = record.reconsume_times >= int(fields.get("maxReconsumeTimes", "16")) or int(fields["delayLevel"]) < 0
        topic = f"{'%DLQ%' if is_dead else '%RETRY%'}{fields['group']}"
        self.topics.setdefault(topic, 1)
        properties = {"RETRY_TOPIC": record.topic, "ORIGIN_MESSAGE_ID": fields.get("originMsgId", "")}
        self.put(
            QueueRef(topic, peer.server.name, 0),
            record.body,
            properties=properties | dict(record.properties),
            reconsume_times=record.reconsume_times + 1,
        )
        return Reply()

    def _lock(self, command: Command, peer: Peer) -> Reply:
        asked = command.value
        queues = [QueueRef(each["topic"], each["brokerName"], each["queueId"]) for each in asked["mqSet"]]
        held = [
            q
            for q in queues
            if self.locks.setdefault((asked["consumerGroup"], q), asked["clientId"]) == asked["clientId"]
        ]
        body = [{"brokerName": q.broker_name, "queueId": q.queue_id, "topic": q.topic} for q in held]
        return Reply(body=json.dumps({"lockOKMQSet": body}).encode())

    def _unlock(self, command: Command, peer: Peer) -> Reply:
        asked = command.value
        for each in asked["mqSet"]:
            key = asked["consumerGroup"], QueueRef(each["topic"], each["brokerName"], each["queueId"])
            if self.locks.get(key) == asked["clientId"]:
                del self.locks[key]
        return Reply()

    def _nod(self, _command: Command, _peer: Peer) -> Reply:
        return Reply()

    def _tell_news(self) -> None:
        # A waiter clears it before it waits; no code relies on it staying set.
        self._news.set()


_ANSWERS: Final = {
    105: "_route",
    10: "_send",
    310: "_send",
    320: "_send",
    11: "_pull",
    361: "_pull",
    14: "_committed",
    15: "_commit",
    29: "_search",
    30: "_max_offset",
    31: "_min_offset",
    32: "_earliest",
    34: "_heartbeat",
    35: "_unregister",
    36: "_send_back",
    37: "_nod",
    38: "_list_members",
    41: "_lock",
    42: "_unlock",
    46: "_nod",
}


@asynccontextmanager
async def fake_cluster(
    topics: Mapping[str, int] | None = None, *, brokers: Sequence[str] = (BROKER,), auto_create: bool = False
) -> AsyncIterator[FakeCluster]:
    """A name server and brokers with these topics, each with so many queues on every broker.

    With `auto_create`, a send makes the topic that it lacks, and clients find `TBW102` in its stead.
    """
    known = dict(topics or {}) | ({"TBW102": 4} if auto_create else {})
    cluster = FakeCluster(known, brokers, auto_create=auto_create)
    try:
        for server in cluster.servers.values():
            await server.start()
        yield cluster
    finally:
        for server in cluster.servers.values():
            await server.stop()


# --------------------------------------------------------------------------------------------------------------- bytes


def encode_reply(reply: Reply, opaque: int) -> bytes:
    """One whole frame."""
    header = {
        "code": reply.code,
        "extFields": dict(reply.fields),
        "flag": 1,
        "language": "JAVA",
        "opaque": opaque,
        "remark": reply.remark,
        "serializeTypeCurrentRPC": "JSON",
        "version": VERSION_5,
    }
    return frame(json.dumps(header, ensure_ascii=False).encode(), reply.body)


def encode_record(
    queue: QueueRef,
    offset: int,
    position: int,
    body: bytes,
    properties: Mapping[str, str],
    *,
    port: int,
    stored_at_ms: int,
    reconsume_times: int = 0,
    sys_flag: int = 0,
    flag: int = 0,
) -> bytes:
    """A record as brokers keep it and give it out: version 1, with IPv4 hosts."""
    topic, tail = queue.topic.encode(), encode_properties(properties).encode()
    host = bytes((127, 0, 0, 1)) + struct.pack(">i", port)
    data = (
        struct.pack(">IIii", 0xDAA320A7, crc32(body), queue.queue_id, flag)
        + struct.pack(">qqiq", offset, position, sys_flag, stored_at_ms - 1)
        + host
        + struct.pack(">q", stored_at_ms)
        + host
        + struct.pack(">iqi", reconsume_times, 0, len(body))
        + body
        + struct.pack(">b", len(topic))
        + topic
        + struct.pack(">h", len(tail))
        + tail
    )
    return struct.pack(">i", 4 + len(data)) + data


def encode_properties(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items() if value)


def decode_properties(text: str) -> dict[str, str]:
    pairs = (piece.partition("\x01") for piece in text.split("\x02"))
    return {name: value for name, _, value in pairs if name and value}


def encode_batch(messages: Sequence[tuple[bytes, Mapping[str, str]]]) -> bytes:
    """The body of a batch."""
    data = b""
    for body, properties in messages:
        tail = encode_properties(properties).encode()
        data += struct.pack(">iiiii", 22 + len(body) + len(tail), 0, 0, 0, len(body)) + body
        data += struct.pack(">h", len(tail)) + tail
    return data


def _batch_items(data: bytes) -> Iterator[tuple[bytes, dict[str, str]]]:
    at = 0
    while at < len(data):
        size, _, _, _, length = struct.unpack_from(">iiiii", data, at)
        body = data[at + 20 : at + 20 + length]
        yield body, decode_properties(data[at + 22 + length : at + size].decode())
        at += size


def offset_id(address: str, position: int) -> str:
    """The id that says where a record is."""
    port = int(address.rpartition(":")[2])
    return (bytes((127, 0, 0, 1)) + struct.pack(">iq", port, position)).hex().upper()


def java_hash(text: str) -> int:
    total = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be")):
        total = (31 * total + unit) & 0xFFFFFFFF
    return total - (1 << 32) if total & 0x80000000 else total


def _tag_codes(expression: str) -> frozenset[int] | None:
    """What a tag expression selects by; None: everything."""
    if expression in ("", "*"):
        return None
    return frozenset(java_hash(tag.strip()) for tag in expression.split("||") if tag.strip())


def _queue_of(command: Command, peer: Peer) -> QueueRef:
    return QueueRef(command.fields["topic"], peer.server.name, int(command.fields["queueId"]))
