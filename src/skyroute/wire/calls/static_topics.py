"""Static topics: which physical queues a logical queue consists of, and the requests that set and return it.

A logical queue keeps its id and its offsets when it moves to another broker. It consists of items, oldest first: each
is a physical queue on one broker, and where its first message is in the logical queue. The last item takes the sends;
its broker is the leader of the logical queue.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from skyroute.routing.topology import QUEUES_MAX, ROUTE_QUEUES_MAX, StaticMapping
from skyroute.wire import fastjson
from skyroute.wire.calls.topics import TopicConfig, encode_topic_update, read_body
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.errors import BodyError
from skyroute.wire.fields import is_name

MAPPING_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of the body that sets the mapping of a static topic: about 6,000 items."""

UNDECIDED: Final = -1
"""Logical offset of a new item while the queue moves: it takes sends, and consumers do not read it yet."""

_BARE_KEY: Final = re.compile(rb"([{,])(\d{1,10}):")


class MappingItem(
    msgspec.Struct,
    frozen=True,
    rename={
        **{"generation": "gen", "queue_id": "queueId", "broker_name": "bname", "logical_start": "logicOffset"},
        **{"start": "startOffset", "end": "endOffset", "start_time": "timeOfStart", "end_time": "timeOfEnd"},
    },
):
    """One physical queue of a logical queue. All but the offsets of the last item never change."""

    generation: Int32 = 0
    queue_id: Int32 = 0
    broker_name: str = ""
    logical_start: Int64 = 0
    """Logical offset of its first message; `UNDECIDED` while the queue moves."""
    start: Int64 = 0
    """Physical offset of its first message."""
    end: Int64 = -1
    """Physical offset after its last message; -1 if it is not fixed."""
    start_time: Int64 = -1
    end_time: Int64 = -1

    @property
    def is_decided(self) -> bool:
        """Whether the item has a logical offset, so that consumers can read it."""
        return self.logical_start >= 0

    @property
    def delta(self) -> int:
        """The number to add to a physical offset."""
        return self.logical_start - self.start

    def to_logical(self, physical: int) -> int:
        """Return the logical offset of a physical one; offsets before the item become its start."""
        return self.logical_start + max(physical - self.start, 0)

    def to_physical(self, logical: int) -> int:
        """Return the physical offset of a logical one; offsets before the item become its start."""
        return self.start + max(logical - self.logical_start, 0)

    @property
    def logical_end(self) -> int:
        """Logical offset after its last message, as far as the mapping says; its start if the end is not fixed."""
        return self.logical_start + max(self.end - self.start, 0)


Items = tuple[MappingItem, ...]


class QueueMapping(
    msgspec.Struct,
    frozen=True,
    rename={
        **{"broker_name": "bname", "total_queues": "totalQueues", "hosted": "hostedQueues", "current_ids": "currIdMap"},
    },
):
    """A static topic on one broker: the logical queues that it leads, or led before they moved."""

    topic: str
    broker_name: str
    total_queues: Int32 = 0
    epoch: Int64 = 0
    scope: str = "__global__"
    dirty: bool = False
    hosted: dict[Int32, Items] = {}
    """Items by logical queue id, oldest first."""
    current_ids: dict[Int32, Int32] = {}
    """Not used; Java's class has it."""

    def led_items(self, queue_id: int) -> Items:
        """Return the items of a logical queue if this broker is its leader; else nothing."""
        items = self.hosted.get(queue_id, ())
        return items if items and items[-1].broker_name == self.broker_name else ()

    def summary(self) -> StaticMapping:
        """Return what name servers get: the queues that this broker leads."""
        ids = {queue_id: items[-1].queue_id for queue_id in self.hosted if (items := self.led_items(queue_id))}
        return StaticMapping(
            self.topic,
            self.broker_name,
            self.total_queues,
            self.epoch,
            self.scope,
            self.dirty,
            dict(sorted(ids.items())),
        )


def find_item(items: Items, logical: int) -> MappingItem | None:
    """Return the item that has a logical offset: the first one for offsets before it, the last for those behind."""
    decided = [item for item in items if item.is_decided]
    return next((item for item in reversed(decided) if logical >= item.logical_start), decided[0] if decided else None)


def next_item(items: Items, current: MappingItem) -> MappingItem | None:
    """Return the item after another one; None if there is none that consumers can read."""
    at = items.index(current) + 1
    return items[at] if at < len(items) and items[at].is_decided else None


def check_items(items: Sequence[MappingItem]) -> None:
    """Check that the items of a logical queue follow each other.

    Raises:
        BodyError: they do not.
    """
    later: MappingItem | None = None
    for item in reversed(items):
        if item.generation < 0 or item.start < 0 or not 0 <= item.queue_id < QUEUES_MAX:
            raise BodyError(f"generation, start offset or queue id out of range: {item}")
        if not is_name(item.broker_name):
            raise BodyError(f"bname is not a name: {item.broker_name[:80]!r}")
        if item.end != -1 and item.end < item.start:
            raise BodyError(f"the end offset is before the start offset: {item}")
        if later is not None:
            if not item.is_decided:
                raise BodyError(f"only the last item may have no logical offset: {item}")
            if item.generation >= later.generation:
                raise BodyError(f"generations do not increase: {item.generation}, {later.generation}")
            if later.is_decided and item.logical_end >= later.logical_start:
                raise BodyError(f"logical offsets do not increase: {item.logical_end}, {later.logical_start}")
        later = item


def encode_static_topic_update(config: TopicConfig, mapping: QueueMapping, *, force: bool = False) -> Request:
    """Encode a request to create or change a static topic on one broker."""
    fields = encode_topic_update(config).fields | {"force": "true" if force else "false"}
    return Request(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields, body=msgspec.json.encode(mapping))


def decode_mapping(body: bytes) -> QueueMapping:
    """Decode the mapping of a static topic.

    Raises:
        BodyError: it is invalid, or too long.
    """
    if len(body) > MAPPING_BYTES_MAX:
        raise BodyError(f"a mapping of {len(body)} bytes (expected at most {MAPPING_BYTES_MAX})")
    try:  # Java writes numeric keys without quotes. A text with such a part is not a name.
        mapping: QueueMapping = fastjson.decode(_BARE_KEY.sub(rb'\1"\2":', body), QueueMapping, 0)
    except fastjson.JsonError as error:
        raise BodyError(f"not a mapping of a static topic: {error}") from None
    if not 0 <= mapping.total_queues <= ROUTE_QUEUES_MAX:
        raise BodyError(f"totalQueues={mapping.total_queues} (expected 0 to {ROUTE_QUEUES_MAX})")
    for queue_id, items in mapping.hosted.items():
        if not 0 <= queue_id < mapping.total_queues:
            raise BodyError(f"logical queue {queue_id} (expected 0 to {mapping.total_queues - 1})")
        check_items(items)
    return mapping


class _ConfigAndMapping(msgspec.Struct, rename="camel"):
    mapping_detail: QueueMapping | None = None


def encode_config_and_mapping(config: TopicConfig, mapping: QueueMapping) -> Response:
    """Encode the settings of a static topic with its mapping."""
    return Response(body=msgspec.json.encode({**msgspec.to_builtins(config), "mappingDetail": mapping}))


def decode_config_mapping(body: bytes) -> QueueMapping | None:
    """Decode the mapping in the settings of a topic; None for a topic that is not static.

    Raises:
        BodyError: it is invalid.
    """
    return read_body(body, _ConfigAndMapping, "a topic's settings").mapping_detail


def mapping_pieces(mappings: Mapping[str, QueueMapping]) -> Iterator[bytes]:
    """Encode mappings by topic, as members of a JSON object."""
    for at, (topic, mapping) in enumerate(mappings.items()):
        yield (b"," if at else b"") + msgspec.json.encode({topic: mapping})[1:-1]


def force_wanted(fields: Mapping[str, str]) -> bool:
    """Return whether a request replaces a mapping without checks."""
    return fields.get("force", "").lower() == "true"
