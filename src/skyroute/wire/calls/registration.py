"""What brokers say to name servers about themselves: register, heartbeat, compare versions, say unregistration."""

import hashlib
import zlib
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - the module's own name for it is too plain to use bare
from typing import Any, Final, TypeVar, cast, overload

import msgspec

from skyroute.routing.registration import DataVersion, Registration, RegistrationOutcome, TopicTable
from skyroute.routing.topology import (
    QUEUES_MAX,
    ROUTE_QUEUES_MAX,
    BrokerKey,
    Permission,
    QueueSettings,
    StaticMapping,
)
from skyroute.wire import fastjson
from skyroute.wire.calls.mapping import MappingBody, mapping_members
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import V3_0_11, V5_0_0, RequestCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.errors import BodyError
from skyroute.wire.fastjson import Dialect
from skyroute.wire.fields import (
    NAME_CHARS_MAX,
    is_name,
    optional_int,
    optional_name,
    required_int,
    required_name,
    truth,
)

INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
TOPICS_A_PART: Final = 1_000
"""Topics of a registration written at a time."""

TOPICS_MAX: Final = 300_000
"""The most topics one registration may bring: about what fits its longest body."""
FILTER_SERVERS_MAX: Final = 1_000
MAPPED_QUEUES_MAX: Final = 100_000
"""The most queues of static topics one registration may bring."""
LINES_A_STEP: Final = 2_000
"""How many lines of a compressed table are read before others have their turn."""
BYTES_A_STEP: Final = 1024 * 1024
"""How many bytes of a plain body are read before others have their turn: a few milliseconds."""
CUTS_TRIED_MAX: Final = 8
"""Attempts to find the end of a topic in a part of a plain body. If all fail, the rest is read in one step."""
_TOPIC_BYTES_MIN: Final = len('"t":{},')
_WRAPPER_OBJECTS: Final = 16
"""Objects of a body that are not about any one topic; it has fewer."""
_INT32 = Struct(">i")
_INT64_MAX: Final = (1 << 63) - 1
_FILTER_TYPES: Final = frozenset({"SINGLE_TAG", "MULTI_TAG"})
_PLAIN_FORM: Final = (
    b'{"filterServerList":%b,"topicConfigSerializeWrapper":{"dataVersion":%b,"mappingDataVersion":%b,'
    b'"topicConfigTable":%b,"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":%b}}'
)
_encode_sorted = msgspec.json.Encoder(order="sorted").encode

T = TypeVar("T")


class _Version(msgspec.Struct, gc=False):
    counter: Int64 = 0
    stateVersion: Int64 = 0  # noqa: N815 - the wire's name
    timestamp: Int64 = 0

    def value(self) -> DataVersion:
        return DataVersion(self.stateVersion, self.timestamp, self.counter)


class _Topic(msgspec.Struct, gc=False, rename={"read_queues": "readQueueNums", "write_queues": "writeQueueNums"}):
    read_queues: Int32 = 16
    write_queues: Int32 = 16
    perm: Int32 = Permission.READ | Permission.WRITE
    topicSysFlag: Int32 = 0  # noqa: N815 - the wire's name


_part_decoder: Final = msgspec.json.Decoder(dict[str, _Topic], strict=False)


class _TopicConfigs(msgspec.Struct):
    topicConfigTable: dict[str, _Topic] = {}  # noqa: N815 - the wire's name
    dataVersion: _Version | None = None  # noqa: N815 - the wire's name
    topicQueueMappingInfoMap: dict[str, MappingBody] | None = None  # noqa: N815 - the wire's name


class _LongConfigs(msgspec.Struct):
    """As `_TopicConfigs`; the topics are read later, in steps."""

    topicConfigTable: msgspec.Raw = msgspec.Raw(b"{}")  # noqa: N815 - the wire's name
    dataVersion: _Version | None = None  # noqa: N815 - the wire's name
    topicQueueMappingInfoMap: dict[str, MappingBody] | None = None  # noqa: N815 - the wire's name


class _LongBody(msgspec.Struct):
    topicConfigSerializeWrapper: _LongConfigs | msgspec.UnsetType = msgspec.UNSET  # noqa: N815 - the wire's name
    filterServerList: list[str] | None = None  # noqa: N815 - the wire's name


class _BareTopicConfigs(_TopicConfigs, kw_only=True):
    """The whole body of a very old sender, or of one that forgets its version, which must not pass for an empty one."""

    topicConfigTable: dict[str, _Topic]  # noqa: N815 - the wire's name


class _Body(msgspec.Struct):
    topicConfigSerializeWrapper: _TopicConfigs | msgspec.UnsetType = msgspec.UNSET  # noqa: N815 - the wire's name
    filterServerList: list[str] | None = None  # noqa: N815 - the wire's name


def decode_registration(request: Request) -> Registration:
    """Read the header of a registration. The body is left for `decode_topic_table`: mostly it is one already known.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    heartbeat_ms = optional_int(fields, "heartbeatTimeoutMillis", 0, _INT64_MAX)
    acting = fields.get("enableActingMaster")
    return Registration(
        cluster=required_name(fields, "clusterName"),
        broker_name=required_name(fields, "brokerName"),
        broker_id=required_int(fields, "brokerId"),
        address=required_name(fields, "brokerAddr"),
        ha_address=optional_name(fields, "haServerAddr"),
        zone=optional_name(fields, "__ZONE_NAME"),
        acting_master=None if acting is None else truth(fields, "enableActingMaster"),
        lease_s=heartbeat_ms / 1000 if heartbeat_ms > 0 else None,
    )


def encode_registration(
    registration: Registration, configs: Collection[TopicConfig] | None = None, *, compressed: bool = False
) -> Request:
    """Write a registration as a 5.x broker does; one that is compressed says nothing of `sys_flag` and `ordered`.

    `configs` are the topics with all that a broker keeps of them, in place of the table's.
    """
    table = registration.table or TopicTable()
    if configs is None:
        configs = [
            TopicConfig(topic, said.read_queues, said.write_queues, said.permission, sys_flag=said.sys_flag)
            for topic, said in table.topics.items()
        ]
    body = _compressed_body(table, configs) if compressed else _plain_body(table, configs)
    fields = {
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        "brokerAddr": registration.address,
        "brokerId": str(registration.broker_id),
        "brokerName": registration.broker_name,
        "clusterName": registration.cluster,
        "compressed": _truth(compressed),
        "haServerAddr": registration.ha_address,
        "enableActingMaster": None if registration.acting_master is None else _truth(registration.acting_master),
        "heartbeatTimeoutMillis": None if registration.lease_s is None else str(round(registration.lease_s * 1000)),
        "__ZONE_NAME": registration.zone,
    }
    return Request(
        RequestCode.REGISTER_BROKER, {name: text for name, text in fields.items() if text is not None}, body=body
    )


def _plain_body(table: TopicTable, configs: Collection[TopicConfig]) -> bytes:
    # Only the maps by queue id need Java's dialect.
    return _PLAIN_FORM % (
        fastjson.dumps(list(table.filter_servers or ()), Dialect.LEGACY),
        fastjson.dumps(_version_members(table.version), Dialect.LEGACY),
        fastjson.dumps(_version_members(DataVersion()), Dialect.LEGACY),
        _encode_topics(list(configs)),
        fastjson.dumps({topic: mapping_members(mapping) for topic, mapping in table.mappings.items()}, Dialect.LEGACY),
    )


def _encode_topics(configs: Sequence[TopicConfig]) -> bytes:
    """Write topics, some at a time: msgspec blocks all other threads while it writes."""
    parts = [
        _encode_sorted({config.name: config for config in configs[start : start + TOPICS_A_PART]})[1:-1]
        for start in range(0, len(configs), TOPICS_A_PART)
    ]
    return b"{%b}" % b",".join(parts)


def _compressed_body(table: TopicTable, configs: Collection[TopicConfig]) -> bytes:
    """Write counted pieces, deflated; the section of mappings is there because our version says so."""
    pieces = [_piece(fastjson.dumps(_version_members(table.version), Dialect.LEGACY)), _INT32.pack(len(configs))]
    for config in configs:
        queues = f"{config.read_queues} {config.write_queues} {int(config.permission)}"
        attributes = fastjson.write(config.attributes, Dialect.LEGACY)
        pieces.append(_piece(f"{config.name} {queues} {config.filter_type} {attributes}".encode()))
    pieces.append(_piece(fastjson.dumps(list(table.filter_servers or ()), Dialect.LEGACY)))
    pieces.append(_INT32.pack(len(table.mappings)))
    for mapping in table.mappings.values():
        pieces.append(_piece(fastjson.dumps(mapping_members(mapping), Dialect.LEGACY)))
    return zlib.compress(b"".join(pieces))


def _piece(content: bytes) -> bytes:
    return _INT32.pack(len(content)) + content


def _truth(value: bool) -> str:  # noqa: FBT001 - it is the value itself
    return "true" if value else "false"


def _version_members(version: DataVersion) -> dict[str, Any]:
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp_ms}


def body_fingerprint(request: Request) -> Generator[None, None, bytes]:
    """Identify the body of a registration, together with everything that decides how it is read; in steps."""
    how = f"{request.fields.get('bodyCrc32')} {truth(request.fields, 'compressed')} {_generation(request.version)}"
    digest = hashlib.sha256()
    for part in _parts(request.body):
        digest.update(part)
        if len(part) == BYTES_A_STEP:
            yield
    return digest.digest() + how.encode()


def _parts(body: bytes) -> Iterator[memoryview]:
    view = memoryview(body)
    return (view[at : at + BYTES_A_STEP] for at in range(0, len(view), BYTES_A_STEP))


def _generation(version: int) -> int:
    """Which of the three body formats a sender of this version writes."""
    return (version >= V3_0_11) + (version >= V5_0_0)


def decode_topic_table(
    request: Request, inflated_bytes_max: int = INFLATED_BYTES_MAX, *, now_ms: int = 0
) -> Generator[None, None, TopicTable]:
    """Read the body of a registration, in steps: it yields between them, and returns the table.

    Where it does not say which edition it is, it counts as one of now: as a new one, that is.

    Raises:
        FieldError: `bodyCrc32` is malformed.
        BodyError: the checksum is wrong, or the body cannot be read.
    """
    body = request.body
    checksum = optional_int(request.fields, "bodyCrc32", 0)
    if checksum:
        yield from _check_sum(body, checksum)
    if not body:
        return TopicTable()
    yield
    try:
        # Brokers of 5.x announce a compressed body as plain; no JSON starts as zlib does.
        if request.version >= V3_0_11 and (truth(request.fields, "compressed") or _looks_like_zlib(body)):
            inflated = _inflate(body, inflated_bytes_max)
            yield
            return (yield from _decode_compressed(inflated, with_mappings=request.version >= V5_0_0))
        # A topic is an object with at most one other in it, so this bounds what decoding may cost.
        if len(body) > TOPICS_MAX * _TOPIC_BYTES_MIN:
            yield from _check_braces(body)
        if request.version >= V3_0_11 and len(body) > BYTES_A_STEP:
            try:
                return (yield from _decode_long(body, now_ms))
            except BodyError:
                if len(body) > fastjson.LARGE_BYTES:
                    raise
                yield  # it may be JSON of another form, which is read below
        if request.version < V3_0_11:
            configs: _TopicConfigs = _decode_json(body, _BareTopicConfigs)
            servers = None
        else:
            decoded = _decode_json(body, _Body)
            configs, servers = _wrapped(decoded, body) or _TopicConfigs(), decoded.filterServerList
        yield
        shared = _Shared()
        return _table(configs, shared.settings_of(configs.topicConfigTable), shared, servers, now_ms)
    except BodyError as error:
        raise BodyError(f"Failed to decode RegisterBrokerBody: {error}") from None


def _check_sum(body: bytes, checksum: int) -> Generator[None, None, None]:
    actual = 0
    for part in _parts(body):
        actual = zlib.crc32(part, actual)
        if len(part) == BYTES_A_STEP:
            yield
    if checksum != actual & 0x7FFFFFFF:
        raise BodyError("crc32 not match")


def _check_braces(body: bytes) -> Generator[None, None, None]:
    braces = 0
    for at in range(0, len(body), BYTES_A_STEP):
        braces += body.count(b"{", at, at + BYTES_A_STEP)
        yield
    _check_count((braces - _WRAPPER_OBJECTS) // 2)


@overload
def _wrapped(decoded: _Body, body: bytes) -> _TopicConfigs | None: ...
@overload
def _wrapped(decoded: _LongBody, body: bytes) -> _LongConfigs | None: ...
def _wrapped(decoded: _Body | _LongBody, body: bytes) -> _TopicConfigs | _LongConfigs | None:
    """Return the part about topics; as for Java, a broker that says nothing of them has none."""
    if decoded.topicConfigSerializeWrapper is msgspec.UNSET:
        # Unless they stand where only very old brokers put them: then it meant to say something.
        if b"topicConfigTable" in body:
            raise BodyError(f"topicConfigTable stands bare, as only a sender of a version below {V3_0_11} writes it")
        return None
    return decoded.topicConfigSerializeWrapper


class _Shared(dict[tuple[int, int, int, int], QueueSettings]):
    """One copy of each different settings: thousands of topics share a handful."""

    def settings_of(self, configs: Mapping[str, _Topic]) -> dict[str, QueueSettings]:
        topics: dict[str, QueueSettings] = {}
        for topic, config in configs.items():
            key = (config.read_queues, config.write_queues, config.perm, config.topicSysFlag)
            settings = self.get(key)
            if settings is None:
                settings = self[key] = QueueSettings(*key)
            topics[topic] = settings
        _check_names(topics)
        return topics


def _decode_long(body: bytes, now_ms: int) -> Generator[None, None, TopicTable]:
    """Read a long body of standard JSON, the topics in steps."""
    decoded = _decode_json(body, _LongBody)
    yield
    configs = _wrapped(decoded, body) or _LongConfigs()
    shared, topics = _Shared(), dict[str, QueueSettings]()
    table, at = memoryview(configs.topicConfigTable), 1  # behind the brace that opens it
    while len(table) - at > BYTES_A_STEP and (part := (yield from _decode_part(bytes(table[at : at + BYTES_A_STEP])))):
        topics |= shared.settings_of(part[0])
        at += part[1]
        yield
    rest = bytes(table) if at == 1 else b"{" + bytes(table[at:])
    topics |= shared.settings_of(_decode_json(rest, dict[str, _Topic]))
    yield
    return _table(configs, topics, shared, decoded.filterServerList, now_ms)


def _decode_part(part: bytes) -> Generator[None, None, tuple[dict[str, _Topic], int] | None]:
    """Read the topics at the start of a part, and return them with where the next one starts.

    A cut behind some brace is right if what is before it is JSON: an object that is cut elsewhere is not.
    """
    end = len(part)
    for _ in range(CUTS_TRIED_MAX):
        end = part.rfind(b'},"', 0, end)
        if end < 0:
            break
        try:
            return _part_decoder.decode(b"{%b}}" % part[:end]), end + 2
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield
    return None


def _table(
    configs: _TopicConfigs | _LongConfigs,
    topics: dict[str, QueueSettings],
    shared: _Shared,
    servers: list[str] | None,
    now_ms: int,
) -> TopicTable:
    parts = configs.topicQueueMappingInfoMap or {}
    _check_extent(servers or (), parts.values())
    mappings = {topic: _mapping(part, topic) for topic, part in parts.items()}
    _check_count(len(topics))
    _check_names(mappings)
    version = configs.dataVersion.value() if configs.dataVersion else DataVersion(timestamp_ms=now_ms)
    filter_servers = None if servers is None else tuple(servers)
    return TopicTable(version, topics, mappings, filter_servers, _leave_out(topics, mappings, shared.values()))


def _leave_out(
    topics: dict[str, QueueSettings], mappings: dict[str, StaticMapping], kinds: Collection[QueueSettings]
) -> dict[str, str]:
    """Remove topics whose queue counts are out of bounds, and return the reason for each.

    One such topic is no reason to lose its broker. `kinds` are all different settings among the topics.
    """
    reasons: dict[str, str] = {}
    if not all(kind.is_within_bounds() for kind in kinds):
        for topic, said in topics.items():
            if not said.is_within_bounds():
                counts = f"{said.read_queues} read and {said.write_queues} write queues"
                reasons[topic] = f"{counts} (expected 0 to {QUEUES_MAX})"
    for topic, mapping in mappings.items():
        ids = (*mapping.current_ids.keys(), *mapping.current_ids.values())
        if not (0 <= mapping.total_queues <= ROUTE_QUEUES_MAX and all(0 <= each < ROUTE_QUEUES_MAX for each in ids)):
            reasons[topic] = f"a static topic of {mapping.total_queues} queues (expected 0 to {ROUTE_QUEUES_MAX})"
    for topic in reasons:
        topics.pop(topic, None)
        mappings.pop(topic, None)
    return reasons


def _mapping(part: MappingBody, topic: str) -> StaticMapping:
    mapping = part.value(topic)
    _name("topic", mapping.topic)
    _name("bname", mapping.broker_name)
    _name("scope", mapping.scope)
    return mapping


def _check_count(topics: int) -> None:
    if topics > TOPICS_MAX:
        raise BodyError(f"it has more than {TOPICS_MAX} topics")


def _check_mapped_queues(count: int) -> None:
    if count > MAPPED_QUEUES_MAX:
        raise BodyError(f"it has more than {MAPPED_QUEUES_MAX} queues of static topics")


def _check_extent(filter_servers: Sequence[str], parts: Collection[MappingBody]) -> None:
    if len(filter_servers) > FILTER_SERVERS_MAX:
        raise BodyError(f"it has more than {FILTER_SERVERS_MAX} filter servers")
    _check_mapped_queues(len(parts) + sum(len(part.currIdMap or ()) for part in parts))
    for server in filter_servers:
        _name("filter server", server)


def _check_names(topics: Mapping[str, object]) -> None:
    # One look at all names together; only if something is wrong is it worth finding out which.
    if "".join(topics).isprintable() and "" not in topics and max(map(len, topics), default=0) <= NAME_CHARS_MAX:
        return
    for topic in topics:
        _name("topic", topic)


def _name(what: str, name: str) -> str:
    if not is_name(name):
        raise BodyError(f"{what} is no name: {name[:80]!r}")
    return name


def _decode_json(body: bytes, kind: type[T]) -> T:
    try:
        return cast("T", fastjson.decode(body, kind))
    except fastjson.JsonError as error:
        raise BodyError(str(error)) from None


def _looks_like_zlib(body: bytes) -> bool:
    return body[0] == 0x78 and len(body) > 2 and int.from_bytes(body[:2]) % 31 == 0


def _inflate(body: bytes, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, bytes_max)
    except zlib.error as error:
        raise BodyError(f"it does not inflate: {error}") from None
    if inflater.unconsumed_tail:
        raise BodyError(f"it inflates to more than {bytes_max} bytes")
    if not inflater.eof:
        raise BodyError("the compressed stream is cut short")
    return inflated


class _Reader:
    """Reads counted pieces off an inflated body."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def count(self) -> int:
        try:
            (number,) = _INT32.unpack_from(self._data, self._at)
        except StructError:
            raise BodyError("the inflated stream is cut short") from None
        self._at += 4
        # Every counted thing takes at least a byte, so a larger count cannot be true.
        if not 0 <= number <= len(self._data) - self._at:
            raise BodyError("the inflated stream counts more than it holds")
        return int(number)

    def piece(self) -> bytes:
        length = self.count()
        self._at += length
        return self._data[self._at - length : self._at]


def _decode_compressed(inflated: bytes, *, with_mappings: bool) -> Generator[None, None, TopicTable]:
    reader = _Reader(inflated)
    version = _decode_json(reader.piece(), _Version).value()
    topics: dict[str, QueueSettings] = {}
    shared: dict[QueueSettings, QueueSettings] = {}
    topic_count = reader.count()
    _check_count(topic_count)
    for number in range(topic_count):
        if number % LINES_A_STEP == 0:
            yield
        topic, settings = _decode_topic_line(reader.piece())
        topics[topic] = shared.setdefault(settings, settings)
    filter_servers = _decode_filter_servers(reader.piece())
    parts: list[MappingBody] = []
    part_count = reader.count() if with_mappings else 0
    _check_mapped_queues(part_count)
    for number in range(part_count):
        if number % LINES_A_STEP == 0:
            yield
        parts.append(_decode_json(reader.piece(), MappingBody))
    _check_extent(filter_servers, parts)
    mappings = {part.topic: _mapping(part, part.topic) for part in parts}
    return TopicTable(version, topics, mappings, filter_servers, _leave_out(topics, mappings, shared))


def _decode_topic_line(line: bytes) -> tuple[str, QueueSettings]:
    """Read `topic read write perm filter-type [attributes]`; the attributes may hold blanks and do not matter here."""
    try:
        words = line.decode().split(" ", 5)
        topic, filter_type = _name("topic", words[0]), words[4]
        settings = QueueSettings(*(_int32(word) for word in words[1:4]))
    except (UnicodeDecodeError, ValueError, IndexError):
        raise BodyError(f"not a topic: {line[:80]!r}") from None
    if filter_type not in _FILTER_TYPES:
        raise BodyError(f"not a topic: {line[:80]!r}")
    return topic, settings


def _int32(word: str) -> int:
    # int() alone would also take blanks, underscores and other scripts' digits.
    if not (word.isascii() and word.removeprefix("-").isdigit()) or len(word) > len("-2147483648"):
        raise ValueError(word)
    number = int(word)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(word)
    return number


def _decode_filter_servers(piece: bytes) -> tuple[str, ...]:
    try:
        return tuple(_decode_json(piece, list[str]))
    except BodyError:
        return ()  # As Java: the list has had no use since 4.4, and is not worth losing a broker for.


def encode_registration_reply(outcome: RegistrationOutcome, order_topics: bytes) -> Response:
    """Write what a broker is told: its master, if it is a slave, and the table of ordered topics."""
    fields: dict[str, str] = {}
    if outcome.master_ha_address is not None:
        fields["haServerAddr"] = outcome.master_ha_address
    if outcome.master_address is not None:
        fields["masterAddr"] = outcome.master_address
    return Response(fields=fields, body=order_topics)


@dataclass(frozen=True, slots=True)
class RegistrationReply:
    """What a name server tells a broker that registers."""

    ordered_topics: tuple[str, ...] = ()
    master_address: str | None = None
    master_ha_address: str | None = None


class _OrderTopics(msgspec.Struct):
    table: dict[str, str | None] | None = None


def decode_registration_reply(response: Response) -> RegistrationReply:
    """Read what a name server says to a registration.

    Raises:
        BodyError: it cannot be read.
    """
    fields = response.fields or {}
    table = _decode_json(response.body, _OrderTopics).table if response.body else None
    return RegistrationReply(tuple(table or ()), fields.get("masterAddr"), fields.get("haServerAddr"))


@dataclass(frozen=True, slots=True)
class Unregistration:
    """A broker's word that it is leaving."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


def decode_unregistration(request: Request) -> Unregistration:
    """Read an unregistration.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return Unregistration(
        cluster=required_name(fields, "clusterName"),
        broker_name=required_name(fields, "brokerName"),
        broker_id=required_int(fields, "brokerId"),
        address=required_name(fields, "brokerAddr"),
    )


def _broker_fields(registration: "Registration | Unregistration") -> dict[str, str]:
    return {
        "brokerAddr": registration.address,
        "brokerId": str(registration.broker_id),
        "brokerName": registration.broker_name,
        "clusterName": registration.cluster,
    }


def encode_unregistration(unregistration: Unregistration) -> Request:
    """Write an unregistration."""
    return Request(RequestCode.UNREGISTER_BROKER, _broker_fields(unregistration))


def encode_heartbeat(registration: Registration) -> Request:
    """Say that a broker is alive, and nothing else."""
    return Request(RequestCode.BROKER_HEARTBEAT, _broker_fields(registration))


def encode_version_query(registration: Registration, version: DataVersion) -> Request:
    """Ask whether a name server knows an edition of a broker's topics; it also says that the broker is alive."""
    body = fastjson.dumps(_version_members(version), Dialect.LEGACY)
    return Request(RequestCode.QUERY_DATA_VERSION, _broker_fields(registration), body=body)


def decode_version_reply(response: Response) -> bool:
    """Read whether the name server knows another edition, or none."""
    return truth(response.fields or {}, "changed")


def decode_broker_key(request: Request) -> BrokerKey:
    """Read which broker a heartbeat or a question about versions speaks for.

    Raises:
        FieldError: a field is missing.
    """
    return BrokerKey(required_name(request.fields, "clusterName"), required_name(request.fields, "brokerAddr"))


def decode_data_version(body: bytes) -> DataVersion | None:
    """Read a version sent for comparison; None where none was sent.

    Raises:
        BodyError: it cannot be read.
    """
    return _decode_json(body, _Version).value() if body not in (b"", b"null") else None


def encode_version_reply(known: DataVersion | None, *, changed: bool) -> Response:
    """Write the version known here, and whether it differs from the asker's."""
    body = b"" if known is None else fastjson.dumps(_version_members(known), Dialect.LEGACY)
    return Response(fields={"changed": _truth(changed)}, body=body)
