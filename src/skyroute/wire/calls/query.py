"""Queries for single messages: by key, by unique id, by log position or in a queue."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.clients import Subscription, subscription_members, write_body
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.fields import optional_int, optional_name, required_int, required_name, required_text, truth
from skyroute.wire.queue_maps import queue_members, separated, write_legacy

FOREVER_MS: Final = (1 << 63) - 1
UNIQUE_QUERY_MAX: Final = 32
"""Maximum number of messages with the same unique id in a response."""


def encode_key_query(
    topic: str,
    key: str,
    *,
    count_max: int,
    begin_ms: int = 0,
    end_ms: int = FOREVER_MS,
    unique: bool = False,
    index_type: str | None = None,
    last_key: str | None = None,
) -> Request:
    """Encode a query by key, or with `unique` by unique id.

    `index_type` (`K`: keys, `T`: tags) and `last_key` (go on behind it) mean something to brokers from 5.5 on only, and
    only to those that keep their index in RocksDB.
    """
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": str(count_max),
        "beginTimestamp": str(begin_ms),
        "endTimestamp": str(end_ms),
        "_UNIQUE_KEY_QUERY": "true" if unique else "false",
    }
    if index_type is not None:
        fields["indexType"] = index_type
    if last_key is not None:
        fields["lastKey"] = last_key
    return Request(RequestCode.QUERY_MESSAGE, fields)


class KeyQuery(msgspec.Struct, frozen=True, gc=False):
    """A query by key."""

    topic: str
    key: str
    count_max: int
    begin_ms: int
    end_ms: int
    unique: bool
    """The key is a unique id; the broker decides the maximum number of results."""


def decode_key_query(request: Request) -> KeyQuery:
    """Decode a query by key.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return KeyQuery(
        topic=required_name(fields, "topic"),
        key=required_text(fields, "key"),
        count_max=max(required_int(fields, "maxNum"), 0),
        begin_ms=required_int(fields, "beginTimestamp"),
        end_ms=required_int(fields, "endTimestamp"),
        unique=truth(fields, "_UNIQUE_KEY_QUERY"),
    )


def encode_key_matches(records: bytes, *, last_stored_at_ms: int, last_position: int) -> Response:
    """Encode the found messages, which may be none, and the progress of the index."""
    fields = {
        "indexLastUpdateTimestamp": str(last_stored_at_ms),
        "indexLastUpdatePhyoffset": str(last_position),
    }
    if not records:
        return Response(ResponseCode.QUERY_NOT_FOUND, "can not find message, maybe time range not correct", fields)
    return Response(fields=fields, body=records)


def encode_view(topic: str, log_position: int) -> Request:
    """Encode a query for the message at a log position."""
    return Request(RequestCode.VIEW_MESSAGE_BY_ID, {"topic": topic, "offset": str(log_position)})


def decode_view(request: Request) -> int:
    """Decode the log position of a query.

    Raises:
        FieldError: it is missing or malformed.
    """
    return required_int(request.fields, "offset")


# ------------------------------------------------------------------------------------------------- a queue's units


class UnitsQuery(msgspec.Struct, frozen=True, gc=False):
    """A query for entries of a consume queue."""

    topic: str
    queue_id: int
    offset: int
    count: int
    group: str | None = None
    """The response includes this group's subscription."""


class QueueUnit(msgspec.Struct, frozen=True, gc=False):
    """An entry of a consume queue."""

    position: int
    record_bytes: int
    tag_code: int


def encode_units_query(query: UnitsQuery) -> Request:
    """Encode a query for entries of a consume queue."""
    fields = {
        "topic": query.topic,
        "queueId": str(query.queue_id),
        "index": str(query.offset),
        "count": str(query.count),
    }
    if query.group is not None:
        fields["consumerGroup"] = query.group
    return Request(RequestCode.QUERY_CONSUME_QUEUE, fields)


def decode_units_query(request: Request) -> UnitsQuery:
    """Decode a query for entries of a consume queue.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return UnitsQuery(
        topic=required_name(fields, "topic"),
        queue_id=optional_int(fields, "queueId", 0),
        offset=required_int(fields, "index"),
        count=optional_int(fields, "count", 0),
        group=optional_name(fields, "consumerGroup"),
    )


def encode_units(
    units: Sequence[QueueUnit],
    *,
    min_offset: int,
    max_offset: int,
    group_of: UnitsQuery | None = None,
    subscription: Subscription | None = None,
) -> Response:
    """Encode entries of a consume queue; with `group_of` also that group's subscription."""
    members: dict[str, object] = {}
    if group_of is not None:
        # Java writes the compiled SQL expression here, which is empty without one.
        offline = f"{group_of.group}@{group_of.topic} is not online!"
        members["filterData"] = offline if subscription is None else "null"
    members |= {
        "maxQueueIndex": max_offset,
        "minQueueIndex": min_offset,
        "queueData": [
            {
                "eval": False,
                "physicOffset": unit.position,
                "physicSize": unit.record_bytes,
                "tagsCode": unit.tag_code,
            }
            for unit in units
        ],
    }
    if subscription is not None:
        members["subscriptionData"] = subscription_members(subscription)
    return Response(body=write_body(members))


# ----------------------------------------------------------------------------------------- where consumers have got


def group_offsets_parts(offsets: Iterable[tuple[str, Mapping[QueueRef, int]]]) -> Iterator[str]:
    """Encode the offsets of a group's members by client id, one part per queue."""
    yield '{"consumerTable":{'
    for number, (client_id, table) in enumerate(offsets):
        yield f"{',' if number else ''}{write_legacy(client_id)}:{{"
        yield from separated(f"{write_legacy(queue_members(queue))}:{offset}" for queue, offset in table.items())
        yield "}"
    yield "}}"
