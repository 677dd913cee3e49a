"""Decodes some columns of many records, which is faster than decoding whole messages."""

from collections.abc import Sequence
from operator import itemgetter
from struct import error as StructError  # noqa: N812 - the module's own name is too general
from typing import Any, Final

from skyroute.message.compression import unpack
from skyroute.message.flags import COMPRESSED, HOSTS_IPV6
from skyroute.message.layout import HEAD_BYTES, HEAD_FIELDS, MAGIC_V1, MAGIC_V2, compile_heads, find_damage
from skyroute.message.properties import PROPERTIES_BYTES_MAX, decode_properties, find_property
from skyroute.message.property_names import KEYS, TAGS, UNIQUE_ID

COLUMNS: Final = (
    *(name for name in HEAD_FIELDS if name not in ("magic", "body_bytes")),
    "body",
    "stored_body",
    "topic",
    "raw_properties",
    "properties",
    "tag",
    "keys",
    "unique_id",
)
"""Names of columns: attributes of a `StoredMessage`, except that `keys` is one text, as sent."""

_FOUND_IN_PROPERTIES: Final = {"tag": TAGS, "keys": KEYS, "unique_id": UNIQUE_ID}
_OF_PROPERTIES: Final = frozenset({"raw_properties", "properties", *_FOUND_IN_PROPERTIES})
_OF_BODY: Final = frozenset({"body", "stored_body"})
_ALWAYS: Final = frozenset({"record_bytes", "magic", "sys_flag", "body_bytes"})


class ColumnReader:
    """Decodes the same columns of many buffers.

    Raises:
        ValueError: a column is not one of `COLUMNS`.
    """

    __slots__ = ("_heads", "_names", "_places", "columns")

    def __init__(self, columns: Sequence[str]) -> None:
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown:
            raise ValueError(f"unknown columns: {', '.join(unknown)}")
        self.columns = tuple(columns)
        self._names = [name for name in HEAD_FIELDS if name in _ALWAYS or name in columns]
        self._places = {name: place for place, name in enumerate(self._names)}
        self._heads = compile_heads(self._names)

    def read(self, buffer: bytes | bytearray | memoryview) -> list[list[Any]]:
        """Return one list per column, in the order requested, with one value per record.

        Raises:
            RecordError: the buffer does not consist of whole records.
            CompressionError: a body is requested and cannot be decompressed.
        """
        buffer = bytes(buffer)  # no copy if it is bytes already
        heads: list[tuple[Any, ...]] = []
        bodies: list[bytes] = []
        topics: list[str] = []
        properties: list[bytes] = []
        wants_body = not _OF_BODY.isdisjoint(self.columns)
        wants_topic = "topic" in self.columns
        wants_properties = not _OF_PROPERTIES.isdisjoint(self.columns)
        read_head = self._heads[0].unpack_from
        flag_place = self._places["sys_flag"]
        last_topic, topic = b"", ""
        at, end = 0, len(buffer)
        try:
            while at < end:
                head = read_head(buffer, at)
                body_at = at + HEAD_BYTES
                sys_flag = head[flag_place]
                if sys_flag & HOSTS_IPV6:
                    wider = self._heads[sys_flag >> 4 & 3]
                    body_at = at + wider.size
                    head = wider.unpack_from(buffer, at)
                body_bytes = head[-1]
                body_stop = body_at + body_bytes
                if head[1] == MAGIC_V1:
                    topic_at = body_stop + 1
                    topic_stop = topic_at + buffer[body_stop]
                elif head[1] == MAGIC_V2:
                    topic_at = body_stop + 2
                    topic_stop = topic_at + (buffer[body_stop] << 8 | buffer[body_stop + 1])
                else:
                    raise find_damage(buffer, at)
                properties_bytes = buffer[topic_stop] << 8 | buffer[topic_stop + 1]
                stop = at + head[0]
                if (
                    topic_stop + 2 + properties_bytes != stop
                    or stop > end
                    or body_bytes < 0
                    or properties_bytes > PROPERTIES_BYTES_MAX
                ):
                    raise find_damage(buffer, at)
                heads.append(head)
                if wants_body:
                    bodies.append(buffer[body_at:body_stop])
                if wants_topic:
                    raw_topic = buffer[topic_at:topic_stop]
                    if raw_topic != last_topic:
                        last_topic, topic = raw_topic, raw_topic.decode("utf-8", "replace")
                    topics.append(topic)
                if wants_properties:
                    properties.append(buffer[topic_stop + 2 : stop])
                at = stop
        except (StructError, IndexError):
            raise find_damage(buffer, at) from None
        return [self._column(name, heads, bodies, topics, properties) for name in self.columns]

    def _column(
        self,
        name: str,
        heads: list[tuple[Any, ...]],
        bodies: list[bytes],
        topics: list[str],
        properties: list[bytes],
    ) -> list[Any]:
        if name in self._places:
            return list(map(itemgetter(self._places[name]), heads))
        if name in _FOUND_IN_PROPERTIES:
            wanted = _FOUND_IN_PROPERTIES[name]
            return [find_property(raw, wanted) for raw in properties]
        if name == "topic":
            return topics
        if name == "stored_body":
            return bodies
        if name == "body":
            flags = map(itemgetter(self._places["sys_flag"]), heads)
            return [unpack(body, flag) if flag & COMPRESSED else body for body, flag in zip(bodies, flags, strict=True)]
        return properties if name == "raw_properties" else list(map(decode_properties, properties))
