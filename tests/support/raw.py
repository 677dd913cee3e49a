"""An independent client of the remoting protocol: blocking sockets, both header forms, no code of `skyroute`.

It imports nothing from the product on purpose: it was written from the specification alone, so that a test does not
repeat a mistake of our codec. Request codes are therefore numbers here.
"""

from __future__ import annotations

import json
import socket
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Form = Literal["json", "binary"]

VERSION_3 = 35  # before 3.0.11: the body is a bare topic table
VERSION_4 = 409  # 4.9.8
VERSION_5 = 479  # 5.3.3

LANGUAGES = ("JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST")


class ClosedError(ConnectionError):
    """The server closed the connection while a response was awaited."""


# --------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class Request:
    """A request; the connection adds the request id and the header form."""

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    version: int = VERSION_5


@dataclass(frozen=True, slots=True)
class Command:
    """One received frame: a response, or a request that the server sent to us."""

    code: int
    flag: int
    opaque: int
    remark: str | None
    fields: dict[str, str]
    body: bytes
    form: Form
    language: str
    version: int

    @property
    def is_reply(self) -> bool:
        return bool(self.flag & 1)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & 2)

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def value(self) -> Any:
        """The body as a value; bare integer keys become strings."""
        return loads(self.text)


def encode(request: Request, opaque: int, *, form: Form = "json", flag: int = 0) -> bytes:
    """One whole frame."""
    header = _binary_header(request, opaque, flag) if form == "binary" else _json_header(request, opaque, flag)
    return frame(header, request.body, kind=1 if form == "binary" else 0)


def frame(header: bytes, body: bytes = b"", *, kind: int = 0) -> bytes:
    """Header and body behind the two length words."""
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def _json_header(request: Request, opaque: int, flag: int) -> bytes:
    header = {
        "code": request.code,
        "extFields": dict(request.fields),
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": request.version,
    }
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


def _binary_header(request: Request, opaque: int, flag: int) -> bytes:
    entries = b"".join(_short_text(key) + _long_text(value) for key, value in request.fields.items())
    fixed = struct.pack(">hBhii", request.code, 0, request.version, opaque, flag)
    return fixed + struct.pack(">i", 0) + struct.pack(">i", len(entries)) + entries


def _short_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _long_text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">i", len(data)) + data


def decode(data: bytes) -> Command:
    """One frame without its first length word."""
    (word,) = struct.unpack_from(">I", data)
    kind, length = word >> 24, word & 0xFFFFFF
    header, body = data[4 : 4 + length], data[4 + length :]
    return _from_binary(header, body) if kind == 1 else _from_json(header, body)


def _from_json(header: bytes, body: bytes) -> Command:
    values = json.loads(header)
    fields = values.get("extFields") or {}
    if not all(isinstance(value, str) for value in fields.values()):
        raise ValueError(f"extFields must hold strings only: {fields!r}")
    return Command(
        code=values["code"],
        flag=values["flag"],
        opaque=values["opaque"],
        remark=values.get("remark"),
        fields=fields,
        body=body,
        form="json",
        language=values.get("language", ""),
        version=values.get("version", 0),
    )


def _from_binary(header: bytes, body: bytes) -> Command:
    code, language, version, opaque, flag, remark_length = struct.unpack_from(">hBhiii", header)
    at = 17
    remark = header[at : at + remark_length].decode() if remark_length else None
    at += remark_length
    (total,) = struct.unpack_from(">i", header, at)
    at += 4
    if at + total != len(header):
        raise ValueError(f"header of {len(header)} bytes, but its fields end at {at + total}")
    fields = {}
    while at < len(header):
        (length,) = struct.unpack_from(">h", header, at)
        key = header[at + 2 : at + 2 + length].decode()
        at += 2 + length
        (length,) = struct.unpack_from(">i", header, at)
        fields[key] = header[at + 4 : at + 4 + length].decode()
        at += 4 + length
    return Command(code, flag, opaque, remark, fields, body, "binary", LANGUAGES[language], version)


# ------------------------------------------------------------------------------------------------------- connections


class RawConnection:
    """One connection to a server. Frames that answer no pending call are kept in `strays`."""

    def __init__(self, address: str, *, form: Form = "json", timeout_s: float = 10.0, source: str = "") -> None:
        self.form: Form = form
        self.strays: list[Command] = []
        self._opaque = 0
        bound = (source, 0) if source else None
        self._socket = socket.create_connection(split_address(address), timeout=timeout_s, source_address=bound)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, code: int | Request, fields: Mapping[str, str] | None = None, body: bytes = b"") -> Command:
        """Send a request and return its response."""
        opaque = self.send(code, fields, body)
        while True:
            command = self.receive()
            if command.is_reply and command.opaque == opaque:
                return command
            self.strays.append(command)

    def send_oneway(self, code: int | Request, fields: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send a one-way request: the server must not respond."""
        self.send(code, fields, body, flag=2)

    def send(
        self, code: int | Request, fields: Mapping[str, str] | None = None, body: bytes = b"", *, flag: int = 0
    ) -> int:
        """Write one request without waiting; return its id."""
        request = code if isinstance(code, Request) else Request(code, fields or {}, body)
        self._opaque += 1
        self.write(encode(request, self._opaque, form=self.form, flag=flag))
        return self._opaque

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self) -> Command:
        """Return the next frame of any kind.

        Raises:
            ClosedError: The server closed the connection.
        """
        (length,) = struct.unpack(">I", self._exactly(4))
        return decode(self._exactly(length))

    def is_closed_by_peer(self) -> bool:
        """Wait for the end of the stream; keep frames that still arrive as strays."""
        try:
            while True:
                self.strays.append(self.receive())
        except ClosedError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self._socket.recv(size - len(data))
            except ConnectionResetError as error:
                raise ClosedError("reset by the server") from error
            if not chunk:
                raise ClosedError("closed by the server")
            data += chunk
        return bytes(data)


class Listener:
    """A broker that only listens, and gives out the requests of a name server over any number of connections."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(timeout_s)
        self._accepted: socket.socket | None = None
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._hang_up()
        self._listening.close()

    def receive(self) -> Command:
        """Return the next request."""
        while True:
            if self._accepted is None:
                self._accepted, _ = self._listening.accept()
                self._accepted.settimeout(self._timeout_s)
            prefix = self._accepted.recv(4, socket.MSG_WAITALL)
            if prefix:
                (length,) = struct.unpack(">I", prefix)
                return decode(self._accepted.recv(length, socket.MSG_WAITALL))
            self._hang_up()

    def _hang_up(self) -> None:
        if self._accepted is not None:
            self._accepted.close()
            self._accepted = None


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


# ----------------------------------------------------------------------------------------------------- registrations


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as a broker registers it."""

    name: str
    read: int = 8
    write: int = 8
    perm: int = 6
    sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)

    def config(self, generation: int) -> dict[str, Any]:
        config: dict[str, Any] = {
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read,
            "topicFilterType": "SINGLE_TAG",
            "topicName": self.name,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write,
        }
        return {"attributes": dict(self.attributes), **config} if generation >= 5 else config

    def line(self, generation: int) -> str:
        text = f"{self.name} {self.read} {self.write} {self.perm} SINGLE_TAG"
        return f"{text} {compact(dict(self.attributes))}" if generation >= 5 else text


@dataclass(frozen=True, slots=True)
class DataVersion:
    counter: int = 1
    state: int = 0
    timestamp: int = 1_758_275_140_000

    def wire(self, generation: int = 5) -> dict[str, int]:
        if generation < 5:
            return {"counter": self.counter, "timestamp": self.timestamp}
        return {"counter": self.counter, "stateVersion": self.state, "timestamp": self.timestamp}


@dataclass(frozen=True, slots=True)
class Registration:
    """REGISTER_BROKER in every form that brokers of three generations send."""

    cluster: str
    broker: str
    address: str
    topics: Sequence[Topic]
    broker_id: int = 0
    ha_address: str | None = None
    data_version: DataVersion = DataVersion()
    generation: int = 5
    acting: bool | None = None
    heartbeat_ms: int | None = None
    zone: str | None = None
    deflate: bool = False  # the body is the zlib form
    flag_compressed: bool | None = None  # the header's `compressed` flag; None: as `deflate`
    crc: int | None = None  # None: the right one
    mappings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    filter_servers: Sequence[str] = ()

    def but(self, **changes: Any) -> Registration:
        return replace(self, **changes)

    @property
    def version(self) -> int:
        return {3: VERSION_3, 4: VERSION_4, 5: VERSION_5}[self.generation]

    @property
    def request(self) -> Request:
        body = self.body
        said = self.deflate if self.flag_compressed is None else self.flag_compressed
        fields = {
            "brokerName": self.broker,
            "brokerAddr": self.address,
            "clusterName": self.cluster,
            "haServerAddr": self.ha_address or next_port(self.address),
            "brokerId": str(self.broker_id),
            "compressed": "true" if said else "false",
            "bodyCrc32": str(crc32(body) if self.crc is None else self.crc),
        }
        if self.acting is not None:
            fields["enableActingMaster"] = "true" if self.acting else "false"
        if self.heartbeat_ms is not None:
            fields["heartbeatTimeoutMillis"] = str(self.heartbeat_ms)
        if self.zone is not None:
            fields["__ZONE_NAME"] = self.zone
        return Request(103, fields, body, self.version)

    @property
    def body(self) -> bytes:
        return self._deflated() if self.deflate else compact(self._tree()).encode()

    @property
    def unregistration(self) -> Request:
        return Request(104, self.identity, version=self.version)

    @property
    def identity(self) -> dict[str, str]:
        return {
            "brokerName": self.broker,
            "brokerAddr": self.address,
            "clusterName": self.cluster,
            "brokerId": str(self.broker_id),
        }

    def _tree(self) -> dict[str, Any]:
        wrapper: dict[str, Any] = {
            "dataVersion": self.data_version.wire(self.generation),
            "topicConfigTable": {topic.name: topic.config(self.generation) for topic in self.topics},
        }
        if self.generation < 4:
            return wrapper
        if self.generation >= 5:
            wrapper["mappingDataVersion"] = DataVersion(0).wire()
            wrapper["topicQueueMappingDetailMap"] = {}
            wrapper["topicQueueMappingInfoMap"] = self.mappings
        return {"filterServerList": list(self.filter_servers), "topicConfigSerializeWrapper": wrapper}

    def _deflated(self) -> bytes:
        parts = [_long_text(compact(self.data_version.wire(self.generation))), struct.pack(">i", len(self.topics))]
        parts += [_long_text(topic.line(self.generation)) for topic in self.topics]
        parts.append(_long_text(compact(list(self.filter_servers))))
        if self.generation >= 5:
            parts.append(struct.pack(">i", len(self.mappings)))
            parts += [_long_text(compact(mapping)) for mapping in self.mappings.values()]
        return zlib.compress(b"".join(parts), 9)


def mapping(topic: str, broker: str, queues: int, epoch: int = 1_758_275_140_000) -> dict[str, Any]:
    """A static topic's record; its integer keys go out bare, as Java's do."""
    return {
        "bname": broker,
        "currIdMap": {index: index for index in range(queues)},
        "dirty": False,
        "epoch": epoch,
        "scope": "__global__",
        "topic": topic,
        "totalQueues": queues,
    }


def crc32(data: bytes) -> int:
    return zlib.crc32(data) & 0x7FFFFFFF


def next_port(address: str) -> str:
    host, port = split_address(address)
    return f"{host}:{port + 1}"


# ------------------------------------------------------------------------------------------------ fastjson's dialects


def compact(value: Any) -> str:
    """Compact text as fastjson writes it by default: integer keys stay bare."""
    if isinstance(value, Mapping):
        members = (f"{key if isinstance(key, int) else compact(key)}:{compact(item)}" for key, item in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(compact(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Node:
    """A parsed JSON value that keeps its source text."""

    raw: str = ""
    members: tuple[tuple[str, Node], ...] | None = None
    items: tuple[Node, ...] | None = None

    def value(self) -> Any:
        if self.members is not None:
            return {_bare(key): node.value() for key, node in self.members}
        if self.items is not None:
            return [node.value() for node in self.items]
        return json.loads(self.raw)

    def render(self) -> str:
        if self.members is not None:
            return "{" + ",".join(f"{key}:{node.render()}" for key, node in self.members) + "}"
        if self.items is not None:
            return "[" + ",".join(node.render() for node in self.items) + "]"
        return self.raw

    def child(self, key: str) -> Node | None:
        return next((node for name, node in self.members or () if _bare(name) == key), None)


def _bare(key: str) -> str:
    return str(json.loads(key)) if key.startswith('"') else key


_BLANKS = " \t\r\n"


class _Reader:
    """Parses JSON with optional quotes on map keys. Rejects blanks between tokens unless allowed."""

    def __init__(self, text: str, *, allow_blanks: bool) -> None:
        self._text = text
        self._at = 0
        self._allow_blanks = allow_blanks

    def whole(self) -> Node:
        node = self._value()
        self._blanks()
        if self._at != len(self._text):
            raise self._error("text after the value")
        return node

    def _value(self) -> Node:
        self._blanks()
        match self._peek():
            case "{":
                return Node(members=tuple(self._members()))
            case "[":
                return Node(items=tuple(self._items()))
            case '"':
                return Node(self._string())
            case _:
                return Node(self._word())

    def _members(self) -> Iterator[tuple[str, Node]]:
        self._take("{")
        while not self._try("}"):
            self._blanks()
            key = self._string() if self._peek() == '"' else self._word()
            self._take(":")
            yield key, self._value()
            if not self._try(","):
                self._take("}")
                return

    def _items(self) -> Iterator[Node]:
        self._take("[")
        while not self._try("]"):
            yield self._value()
            if not self._try(","):
                self._take("]")
                return

    def _string(self) -> str:
        start = self._at
        self._at += 1
        while self._peek() != '"':
            self._at += 2 if self._peek() == "\\" else 1
        self._at += 1
        return self._text[start : self._at]

    def _word(self) -> str:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] not in ',:{}[]"' + _BLANKS:
            self._at += 1
        if start == self._at:
            raise self._error("a value was expected")
        return self._text[start : self._at]

    def _peek(self) -> str:
        if self._at >= len(self._text):
            raise self._error("unexpected end")
        return self._text[self._at]

    def _try(self, mark: str) -> bool:
        self._blanks()
        if self._peek() != mark:
            return False
        self._at += 1
        return True

    def _take(self, mark: str) -> None:
        if not self._try(mark):
            raise self._error(f"{mark!r} was expected")

    def _blanks(self) -> None:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in _BLANKS:
            self._at += 1
        if self._at > start and not self._allow_blanks:
            raise self._error("a blank between tokens")

    def _error(self, message: str) -> ValueError:
        return ValueError(f"{message} at {self._at} in {self._text[max(0, self._at - 40) : self._at + 40]!r}")


def loads(text: str) -> Any:
    """Parse strict or legacy text; every map key becomes a string."""
    return _Reader(text, allow_blanks=True).whole().value()


UNORDERED_LISTS = frozenset({"brokerDatas", "queueDatas", "topicList"})
UNORDERED_MAPS = frozenset(
    {
        "brokerAddrTable",
        "brokerAddrs",
        "clusterAddrTable",
        "currIdMap",
        "filterServerTable",
        "table",
        "topicQueueMappingByBroker",
    }
)
_SHARED_TABLES = frozenset({"brokerAddrTable", "clusterAddrTable", "table"})


def canonical(text: str, *, strict: bool = False, keep: str | None = None) -> str:
    """Sort what Java writes in hash order; keep every other byte.

    In the strict dialect map keys have a defined order, so they are not sorted. With `keep`, members of the shared
    tables and items of a topic list that do not begin with it are left out: they belong to other tests.

    Raises:
        ValueError: There is a blank between tokens, or the text is not even lenient JSON.
    """
    return _ordered(_Reader(text, allow_blanks=False).whole(), None, strict=strict, keep=keep).render()


def _ordered(node: Node, name: str | None, *, strict: bool, keep: str | None, in_sets: bool = False) -> Node:
    if node.members is not None:
        members = [
            (key, _ordered(child, _bare(key), strict=strict, keep=keep, in_sets=name == "clusterAddrTable"))
            for key, child in node.members
            if keep is None or name not in _SHARED_TABLES or _bare(key).startswith(keep)
        ]
        if name in UNORDERED_MAPS and not strict:
            members.sort(key=lambda member: _bare(member[0]))
        return Node(members=tuple(members))
    if node.items is not None:
        items = [_ordered(child, None, strict=strict, keep=keep) for child in node.items]
        if keep is not None and name == "topicList":
            items = [item for item in items if str(item.value()).startswith(keep)]
        if name in UNORDERED_LISTS or in_sets:
            items.sort(key=Node.render)
        return Node(items=tuple(items))
    return node
