"""Where a queue begins and ends, where a group has got to in it, and when its messages came."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response
from skyroute.wire.fields import required_int, required_int32, required_name, truth
from skyroute.wire.queue_maps import separated

NO_MIN_OFFSET: Final = -1
"""Min offset of a batch queue that never had a message."""


def _queue_fields(queue: QueueRef) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id), "bname": queue.broker_name}


def encode_offset_query(group: str, queue: QueueRef, *, zero_if_not_found: bool | None = None) -> Request:
    """Ask where a group has got to in a queue.

    A broker may answer 0 for a group that never read a young queue; with False it says that it found nothing.
    """
    fields = {"consumerGroup": group, **_queue_fields(queue)}
    if zero_if_not_found is not None:
        fields["setZeroIfNotFound"] = "true" if zero_if_not_found else "false"
    return Request(RequestCode.QUERY_CONSUMER_OFFSET, fields)


def encode_offset_update(group: str, queue: QueueRef, offset: int) -> Request:
    """Say where a group has got to in a queue: the offset it will read next."""
    fields = {"consumerGroup": group, **_queue_fields(queue), "commitOffset": str(offset)}
    return Request(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def encode_max_offset_query(queue: QueueRef) -> Request:
    """Ask for the offset that a queue's next message will have."""
    return Request(RequestCode.GET_MAX_OFFSET, _queue_fields(queue))


def encode_min_offset_query(queue: QueueRef) -> Request:
    """Ask for the offset of the oldest message a queue still has."""
    return Request(RequestCode.GET_MIN_OFFSET, _queue_fields(queue))


def encode_time_search(queue: QueueRef, timestamp_ms: int, *, upper: bool = False) -> Request:
    """Ask for the offset of the first message stored at that time or later; `upper` asks for the last one up to it."""
    fields = {**_queue_fields(queue), "timestamp": str(timestamp_ms), "boundaryType": "UPPER" if upper else "LOWER"}
    return Request(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)


def encode_earliest_time_query(queue: QueueRef) -> Request:
    """Ask when the oldest message of a queue was stored."""
    return Request(RequestCode.GET_EARLIEST_MSG_STORETIME, _queue_fields(queue))


def decode_queue(request: Request) -> QueueRef:
    """Read which queue a question is about; the broker's name is empty where the asker gives none.

    Raises:
        FieldError: a field is missing or malformed.
    """
    return _queue(request.fields)


def _queue(fields: Mapping[str, str]) -> QueueRef:
    return QueueRef(required_name(fields, "topic"), fields.get("bname", ""), required_int32(fields, "queueId"))


class OffsetQuery(msgspec.Struct, frozen=True, gc=False):
    """Who asks where it has got to, and whether a young queue may be answered with 0 (None: as the broker likes)."""

    group: str
    queue: QueueRef
    zero_if_not_found: bool | None


def decode_offset_query(request: Request) -> OffsetQuery:
    """Read the question where a group has got to.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    zero = truth(fields, "setZeroIfNotFound") if "setZeroIfNotFound" in fields else None
    return OffsetQuery(required_name(fields, "consumerGroup"), _queue(fields), zero)


class OffsetUpdate(msgspec.Struct, frozen=True, gc=False):
    """Where a group has got to."""

    group: str
    queue: QueueRef
    offset: int


def decode_offset_update(request: Request) -> OffsetUpdate:
    """Read where a group has got to.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return OffsetUpdate(required_name(fields, "consumerGroup"), _queue(fields), required_int(fields, "commitOffset"))


class TimeSearch(msgspec.Struct, frozen=True, gc=False):
    """A time to find the offset of: of the first message from then on, or with `upper` of the last one up to then."""

    queue: QueueRef
    timestamp_ms: int
    upper: bool


def decode_time_search(request: Request) -> TimeSearch:
    """Read the question for the offset at a time.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    upper = fields.get("boundaryType", "").upper() == "UPPER"
    return TimeSearch(_queue(fields), required_int(fields, "timestamp"), upper)


class CorrectionQuery(msgspec.Struct, frozen=True):
    """Whose offsets of a topic to compare with those of one group."""

    topic: str
    group: str
    left_out: frozenset[str]


def decode_correction_query(request: Request) -> CorrectionQuery:
    """Read the question how far behind a group the others are.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    left_out = frozenset(filter(None, fields.get("filterGroups", "").split(",")))
    return CorrectionQuery(required_name(fields, "topic"), required_name(fields, "compareGroup"), left_out)


def correction_parts(offsets: Iterable[tuple[int, int]]) -> Iterator[str]:
    """Write an offset for each queue."""
    yield '{"correctionOffsets":{'
    yield from separated(f"{queue_id}:{offset}" for queue_id, offset in offsets)
    yield "}}"


def decode_offset(response: Response) -> int:
    """Read the answer that is an offset.

    Raises:
        FieldError: it is missing or malformed.
    """
    return required_int(response.fields or {}, "offset")


def encode_offset(offset: int) -> Response:
    """Answer with an offset."""
    return Response(fields={"offset": str(offset)})


def decode_timestamp(response: Response) -> int:
    """Read the answer that is a time in milliseconds; -1 is none.

    Raises:
        FieldError: it is missing or malformed.
    """
    return required_int(response.fields or {}, "timestamp")


def encode_timestamp(timestamp_ms: int) -> Response:
    """Answer with a time in milliseconds."""
    return Response(fields={"timestamp": str(timestamp_ms)})
