"""Decodes the body of a registration: plain JSON, or compressed pieces, in steps."""

import hashlib
import struct
import zlib
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Final, TypeVar, cast, overload

import msgspec

from skyroute.routing.registration import DataVersion, TopicTable
from skyroute.routing.topology import QUEUES_MAX, ROUTE_QUEUES_MAX, Permission, QueueSettings, StaticMapping
from skyroute.wire import fastjson
from skyroute.wire.calls.mapping import MappingBody
from skyroute.wire.codes import V3_0_11, V5_0_0
from skyroute.wire.command import Int32, Request
from skyroute.wire.data_version import Version
from skyroute.wire.errors import BodyError
from skyroute.wire.fields import NAME_CHARS_MAX, is_name, optional_int, truth

INFLATED_BYTES_MAX: Final = 64 * 1024 * 1024
TOPICS_MAX: Final = 300_000
"""Maximum number of topics in one registration: about what fits its longest body."""
FILTER_SERVERS_MAX: Final = 1_000
MAPPED_QUEUES_MAX: Final = 100_000
"""Maximum number of queues of static topics in one registration."""
LINES_A_STEP: Final = 2_000
"""Topics of a compressed body, and mappings of static topics, that are decoded in one step."""
BYTES_A_STEP: Final = 1024 * 1024
"""Bytes of a plain body that are decoded in one step: a few milliseconds."""
CUTS_TRIED_MAX: Final = 8
"""Attempts to find the end of a topic in a part of a plain body. If all fail, the rest is read in one step."""
_TOPIC_BYTES_MIN: Final = len('"t":{},')
_WRAPPER_OBJECTS: Final = 16
"""Upper bound on objects of a body that belong to no topic."""
_INT32: Final = Struct(">i")
_FILTER_TYPES: Final = frozenset({"SINGLE_TAG", "MULTI_TAG"})

T = TypeVar("T")


class _Topic(
    msgspec.Struct,
    gc=False,
    rename={"read_queues": "readQueueNums", "write_queues": "writeQueueNums", "topic_sys_flag": "topicSysFlag"},
):
    read_queues: Int32 = 16
    write_queues: Int32 = 16
    perm: Int32 = Permission.READ | Permission.WRITE
    topic_sys_flag: Int32 = 0


_part_decoder: Final = msgspec.json.Decoder(dict[str, _Topic], strict=False)


class _TopicConfigs(msgspec.Struct, rename="camel"):
    topic_config_table: dict[str, _Topic] = {}
    data_version: Version | None = None
    topic_queue_mapping_info_map: dict[str, MappingBody] | None = None


class _LongConfigs(msgspec.Struct, rename="camel"):
    """As `_TopicConfigs`; the topics are decoded later, in steps."""

    topic_config_table: msgspec.Raw = msgspec.Raw(b"{}")
    data_version: Version | None = None
    topic_queue_mapping_info_map: dict[str, MappingBody] | None = None


class _LongBody(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _LongConfigs | msgspec.UnsetType = msgspec.UNSET
    filter_server_list: list[str] | None = None


class _BareTopicConfigs(_TopicConfigs, kw_only=True, rename="camel"):
    """The whole body of a sender before 3.0.11, or without a version. An empty object is refused."""

    topic_config_table: dict[str, _Topic]


class _Body(msgspec.Struct, rename="camel"):
    topic_config_serialize_wrapper: _TopicConfigs | msgspec.UnsetType = msgspec.UNSET
    filter_server_list: list[str] | None = None


def body_fingerprint(request: Request) -> Generator[None, None, bytes]:
    """Return a hash of the body and of all fields that decide how it is decoded; in steps."""
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
    """Return which of the three body formats a sender of this version uses."""
    return (version >= V3_0_11) + (version >= V5_0_0)


def decode_topic_table(
    request: Request, inflated_bytes_max: int = INFLATED_BYTES_MAX, *, now_ms: int = 0
) -> Generator[None, None, TopicTable]:
    """Decode the body of a registration, in steps: it yields between them, and returns the table.

    A body without a version gets a new one, of `now_ms`.

    Raises:
        FieldError: `bodyCrc32` is malformed.
        BodyError: the checksum is wrong, or the body is invalid.
    """
    body = request.body
    checksum = optional_int(request.fields, "bodyCrc32", 0)
    if checksum:
        yield from _check_sum(body, checksum)
    if not body:
        return TopicTable()
    yield
    try:
        # Brokers of 5.x send compressed bodies marked as plain; no JSON starts like zlib.
        if request.version >= V3_0_11 and (truth(request.fields, "compressed") or _looks_like_zlib(body)):
            inflated = yield from _inflate(body, inflated_bytes_max)
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
                yield  # it may be fastjson's dialect, which is decoded below
        if request.version < V3_0_11:
            configs: _TopicConfigs = decode_json(body, _BareTopicConfigs)
            servers = None
        else:
            decoded = decode_json(body, _Body)
            configs, servers = _wrapped(decoded, body) or _TopicConfigs(), decoded.filter_server_list
        yield
        shared = _Shared()
        topics = shared.settings_of(configs.topic_config_table)
        return (yield from _table(configs, topics, shared, servers, now_ms))
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
    """Return the topics of a body. As in Apache's server, a body without the wrapper has none."""
    if decoded.topic_config_serialize_wrapper is msgspec.UNSET:
        # Unless they are where brokers before 3.0.11 put them: then the version is wrong.
        if b"topicConfigTable" in body:
            raise BodyError(
                f"topicConfigTable is not in topicConfigSerializeWrapper (allowed for versions below {V3_0_11} only)"
            )
        return None
    return decoded.topic_config_serialize_wrapper


class _Shared(dict[tuple[int, int, int, int], QueueSettings]):
    """One object for equal settings: thousands of topics share a few."""

    def settings_of(self, configs: Mapping[str, _Topic]) -> dict[str, QueueSettings]:
        topics: dict[str, QueueSettings] = {}
        for topic, config in configs.items():
            key = (config.read_queues, config.write_queues, config.perm, config.topic_sys_flag)
            settings = self.get(key)
            if settings is None:
                settings = self[key] = QueueSettings(*key)
            topics[topic] = settings
        _check_names(topics)
        return topics


def _decode_long(body: bytes, now_ms: int) -> Generator[None, None, TopicTable]:
    """Decode a long body of standard JSON, the topics in steps."""
    decoded = decode_json(body, _LongBody)
    yield
    configs = _wrapped(decoded, body) or _LongConfigs()
    shared, topics = _Shared(), dict[str, QueueSettings]()
    table, at = memoryview(configs.topic_config_table), 1  # behind the brace that opens it
    while len(table) - at > BYTES_A_STEP and (part := (yield from _decode_part(bytes(table[at : at + BYTES_A_STEP])))):
        topics |= shared.settings_of(part[0])
        at += part[1]
        yield
    rest = bytes(table) if at == 1 else b"{" + bytes(table[at:])
    topics |= shared.settings_of(decode_json(rest, dict[str, _Topic]))
    yield
    return (yield from _table(configs, topics, shared, decoded.filter_server_list, now_ms))


def _decode_part(part: bytes) -> Generator[None, None, tuple[dict[str, _Topic], int] | None]:
    """Decode the topics at the start of a part, and return them with the position of the next one.

    A cut after a brace is between two topics if the bytes before it are valid JSON.
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
) -> Generator[None, None, TopicTable]:
    parts = configs.topic_queue_mapping_info_map or {}
    _check_extent(servers or (), parts.values())
    _check_count(len(topics))
    mappings = yield from _mappings(parts.items())
    _check_names(mappings)
    version = configs.data_version.value() if configs.data_version else DataVersion(timestamp_ms=now_ms)
    filter_servers = None if servers is None else tuple(servers)
    left_out = yield from _leave_out(topics, mappings, shared.values())
    return TopicTable(version, topics, mappings, filter_servers, left_out)


def _mappings(parts: Iterable[tuple[str, MappingBody]]) -> Generator[None, None, dict[str, StaticMapping]]:
    """Return the mappings of static topics by topic."""
    mappings: dict[str, StaticMapping] = {}
    for number, (topic, part) in enumerate(parts, 1):
        mappings[topic] = _mapping(part, topic)
        if number % LINES_A_STEP == 0:
            yield
    return mappings


def _leave_out(
    topics: dict[str, QueueSettings], mappings: dict[str, StaticMapping], kinds: Collection[QueueSettings]
) -> Generator[None, None, dict[str, str]]:
    """Remove topics whose queue counts are out of bounds, and return the reason for each.

    The broker is registered with its other topics. `kinds` are all different settings of the topics.
    """
    reasons: dict[str, str] = {}
    if not all(kind.is_within_bounds() for kind in kinds):
        for topic, settings in topics.items():
            if not settings.is_within_bounds():
                counts = f"{settings.read_queues} read and {settings.write_queues} write queues"
                reasons[topic] = f"{counts} (expected 0 to {QUEUES_MAX})"
    for number, (topic, mapping) in enumerate(mappings.items(), 1):
        if number % LINES_A_STEP == 0:
            yield
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
    _check_mapped_queues(len(parts) + sum(len(part.curr_id_map or ()) for part in parts))
    for server in filter_servers:
        _name("filter server", server)


def _check_names(topics: Mapping[str, object]) -> None:
    # Check all names together; look for the wrong one only if there is one.
    if "".join(topics).isprintable() and "" not in topics and max(map(len, topics), default=0) <= NAME_CHARS_MAX:
        return
    for topic in topics:
        _name("topic", topic)


def _name(what: str, name: str) -> str:
    if not is_name(name):
        raise BodyError(f"{what} is not a name: {name[:80]!r} (expected 1 to {NAME_CHARS_MAX} printable characters)")
    return name


def decode_json(body: bytes, kind: type[T]) -> T:
    """Decode JSON as Apache's brokers write it.

    Raises:
        BodyError: it is invalid.
    """
    try:
        return cast("T", fastjson.decode(body, kind))
    except fastjson.JsonError as error:
        raise BodyError(str(error)) from None


def _looks_like_zlib(body: bytes) -> bool:
    return body[0] == 0x78 and len(body) > 2 and int.from_bytes(body[:2]) % 31 == 0


def _inflate(body: bytes, bytes_max: int) -> Generator[None, None, bytes]:
    inflater = zlib.decompressobj()
    inflated: list[bytes] = []
    left = bytes_max
    for part in _parts(body):
        rest: bytes | memoryview = part
        while rest and left and not inflater.eof:
            try:
                inflated.append(inflater.decompress(rest, min(left, BYTES_A_STEP)))
            except zlib.error as error:
                raise BodyError(f"it cannot be decompressed: {error}") from None
            left -= len(inflated[-1])
            rest = inflater.unconsumed_tail
            if len(inflated[-1]) == BYTES_A_STEP or len(part) == BYTES_A_STEP:
                yield
    if not left and not inflater.eof:
        raise BodyError(f"it decompresses to more than {bytes_max} bytes")
    if not inflater.eof:
        raise BodyError("the compressed stream is truncated")
    return b"".join(inflated)


class _Reader:
    """Reads the pieces of a decompressed body."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def count(self) -> int:
        try:
            (number,) = _INT32.unpack_from(self._data, self._at)
        except struct.error:
            raise BodyError("the decompressed stream is truncated") from None
        self._at += 4
        # Every item takes at least a byte: a larger count is wrong.
        if not 0 <= number <= len(self._data) - self._at:
            raise BodyError(
                f"the decompressed stream has a count of {number} with {len(self._data) - self._at} bytes left"
            )
        return int(number)

    def piece(self) -> bytes:
        length = self.count()
        self._at += length
        return self._data[self._at - length : self._at]


def _decode_compressed(inflated: bytes, *, with_mappings: bool) -> Generator[None, None, TopicTable]:
    reader = _Reader(inflated)
    version = decode_json(reader.piece(), Version).value()
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
        parts.append(decode_json(reader.piece(), MappingBody))
    _check_extent(filter_servers, parts)
    mappings = yield from _mappings((part.topic, part) for part in parts)
    left_out = yield from _leave_out(topics, mappings, shared)
    return TopicTable(version, topics, mappings, filter_servers, left_out)


def _decode_topic_line(line: bytes) -> tuple[str, QueueSettings]:
    """Decode `topic read write perm filter-type [attributes]`. Attributes may contain blanks and are ignored."""
    try:
        columns = line.decode().split(" ", 5)
        topic, filter_type = _name("topic", columns[0]), columns[4]
        settings = QueueSettings(*(_int32(column) for column in columns[1:4]))
    except (UnicodeDecodeError, ValueError, IndexError):
        raise BodyError(
            f"not a topic: {line[:80]!r} (expected name, queue counts, permission and filter type)"
        ) from None
    if filter_type not in _FILTER_TYPES:
        raise BodyError(f"not a topic: {line[:80]!r} (expected name, queue counts, permission and filter type)")
    return topic, settings


def _int32(text: str) -> int:
    # int() alone would also accept blanks, underscores and other scripts' digits.
    if not (text.isascii() and text.removeprefix("-").isdigit()) or len(text) > len("-2147483648"):
        raise ValueError(text)
    number = int(text)
    if not -(1 << 31) <= number < 1 << 31:
        raise ValueError(text)
    return number


def _decode_filter_servers(piece: bytes) -> tuple[str, ...]:
    try:
        return tuple(decode_json(piece, list[str]))
    except BodyError:
        return ()  # as in Apache's server: the list is unused since 4.4, so the registration is accepted
