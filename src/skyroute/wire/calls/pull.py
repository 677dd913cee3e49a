"""Pull requests and responses."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.fast_path import PreparedResponse
from skyroute.wire.fields import INT64_MAX, is_name, optional_int, required_int, required_name

PULL_BYTES_MAX: Final = 256 * 1024
"""Default maximum size of a response, as in Java's consumers."""

PIECE_BYTES_MIN: Final = 16 * 1024
"""Smaller pieces of a log are joined before they are written."""

_COMMIT_OFFSET: Final = 1
_SUSPEND: Final = 2
_SUBSCRIPTION: Final = 4
_LITE: Final = 16
_INT32_MAX: Final = (1 << 31) - 1


class PullQuestion(msgspec.Struct, frozen=True, gc=False):
    """A pull request for one queue."""

    group: str
    topic: str
    queue_id: int
    offset: int
    count_max: int
    commit_offset: int | None = None
    """Offset to commit; None for no commit."""
    suspend_ms: int = 0
    """Time of long polling; 0 for none."""
    expression: str | None = None
    """Subscription; None to use that of the heartbeat."""
    expression_type: str = "TAG"
    subscription_version: int = 0
    bytes_max: int = PULL_BYTES_MAX
    lite: bool = False
    broker_name: str | None = None


def encode_pull(question: PullQuestion) -> Request:
    """Encode a pull."""
    flag = 0
    fields = {
        "consumerGroup": question.group,
        "topic": question.topic,
        "queueId": str(question.queue_id),
        "queueOffset": str(question.offset),
        "maxMsgNums": str(question.count_max),
        "commitOffset": str(question.commit_offset or 0),
        "suspendTimeoutMillis": str(question.suspend_ms),
        "subVersion": str(question.subscription_version),
        "expressionType": question.expression_type,
        "maxMsgBytes": str(question.bytes_max),
    }
    if question.commit_offset is not None:
        flag |= _COMMIT_OFFSET
    if question.suspend_ms > 0:
        flag |= _SUSPEND
    if question.expression is not None:
        flag |= _SUBSCRIPTION
        fields["subscription"] = question.expression
    if question.lite:
        flag |= _LITE
    if question.broker_name is not None:
        fields["bname"] = question.broker_name
    fields["sysFlag"] = str(flag)
    return Request(RequestCode.LITE_PULL_MESSAGE if question.lite else RequestCode.PULL_MESSAGE, fields)


class _PullFields(msgspec.Struct, gc=False, rename="camel"):
    """The fields of a pull; on the wire all are text."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    subscription: str = ""
    sub_version: Int64 = 0
    expression_type: str = ""
    max_msg_bytes: Int32 = _INT32_MAX  # older clients do not send it
    bname: str | None = None


def decode_pull(request: Request) -> PullQuestion:
    """Decode a pull.

    Raises:
        FieldError: a field is missing or malformed.
    """
    try:
        said = msgspec.convert(request.fields, _PullFields, strict=False)
    except msgspec.ValidationError:
        said = _read_one_by_one(request.fields)
    if not (is_name(said.consumer_group) and is_name(said.topic)):
        said = _read_one_by_one(request.fields)
    flag = said.sys_flag
    return PullQuestion(
        said.consumer_group,
        said.topic,
        said.queue_id,
        said.queue_offset,
        said.max_msg_nums,
        said.commit_offset if flag & _COMMIT_OFFSET else None,
        max(0, said.suspend_timeout_millis) if flag & _SUSPEND else 0,
        said.subscription if flag & _SUBSCRIPTION else None,
        said.expression_type or "TAG",
        said.sub_version,
        said.max_msg_bytes,
        bool(flag & _LITE),
        said.bname,
    )


def _read_one_by_one(fields: Mapping[str, str]) -> _PullFields:
    """Decode field by field: find the wrong one, or accept unusual values."""
    flag = required_int(fields, "sysFlag")
    return _PullFields(
        required_name(fields, "consumerGroup"),
        required_name(fields, "topic"),
        required_int(fields, "queueId"),
        required_int(fields, "queueOffset"),
        required_int(fields, "maxMsgNums"),
        flag,
        required_int(fields, "commitOffset") if flag & _COMMIT_OFFSET else 0,
        required_int(fields, "suspendTimeoutMillis") if flag & _SUSPEND else 0,
        fields.get("subscription", ""),
        optional_int(fields, "subVersion", 0, INT64_MAX),
        fields.get("expressionType", ""),
        optional_int(fields, "maxMsgBytes", _INT32_MAX),
        fields.get("bname"),
    )


class PullStatus(Enum):
    """The result of a pull; the value is the response code."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


PULL_CODES: Final = frozenset(int(status.value) for status in PullStatus)
"""Response codes of a pull; any other code is an error."""


class PullAnswer(msgspec.Struct, frozen=True, gc=False):
    """The response to a pull: next offset and records."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int = 0
    """Broker id to pull from next."""
    offset_delta: int = 0
    """Number to add to the offsets in the records; not 0 for static topics only."""
    body: bytes = b""
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


def decode_pull_answer(response: Response) -> PullAnswer:
    """Decode the response to a pull. The caller has checked that its code is in `PULL_CODES`.

    Raises:
        FieldError: an offset is missing or malformed.
    """
    fields = response.fields or {}
    return PullAnswer(
        PullStatus(response.code),
        required_int(fields, "nextBeginOffset"),
        required_int(fields, "minOffset"),
        required_int(fields, "maxOffset"),
        optional_int(fields, "suggestWhichBrokerId", 0, INT64_MAX),
        optional_int(fields, "offsetDelta", 0, INT64_MAX),
        response.body,
    )


def encode_pull_answer(answer: PullAnswer, remark: str | None = None, records: Sequence[memoryview] = ()) -> Response:
    """Encode the response to a pull. All four numbers are required: Java's client fails without.

    `records` are pieces of a broker's log, in place of the answer's own body.
    """
    fields = {
        "suggestWhichBrokerId": str(answer.suggested_broker_id),
        "nextBeginOffset": str(answer.next_offset),
        "minOffset": str(answer.min_offset),
        "maxOffset": str(answer.max_offset),
    }
    if answer.topic_sys_flag is not None:
        fields["topicSysFlag"] = str(answer.topic_sys_flag)
    if answer.group_sys_flag is not None:
        fields["groupSysFlag"] = str(answer.group_sys_flag)
    if answer.offset_delta:
        fields["offsetDelta"] = str(answer.offset_delta)
    if not records:
        return Response(answer.status.value, remark, fields, answer.body)
    if sum(map(len, records)) < PIECE_BYTES_MIN * len(records):
        return Response(answer.status.value, remark, fields, b"".join(records))
    return PreparedResponse(answer.status.value, remark, fields, more=records)


# Pulls of static topics, whose logical queues consist of physical queues


def physical_pull(request: Request, queue_id: int, offset: int, commit: int | None, *, suspend: bool) -> Request:
    """Return a pull with another queue and offset, and other offset to commit; without `suspend`, no long polling.

    Raises:
        FieldError: the flags are malformed.
    """
    flag = required_int(request.fields, "sysFlag") & ~_COMMIT_OFFSET
    if commit is not None:
        flag |= _COMMIT_OFFSET
    if not suspend:
        flag &= ~_SUSPEND
    changed = {"queueId": queue_id, "queueOffset": offset, "commitOffset": commit or 0, "sysFlag": flag}
    fields = request.fields | {name: str(value) for name, value in changed.items()}
    return msgspec.structs.replace(request, fields=fields)


class PullPosition(NamedTuple):
    """The code and the offsets of a response to a pull."""

    code: int
    next_offset: int
    min_offset: int
    max_offset: int


def pull_position(response: Response) -> PullPosition | None:
    """Return the code and the offsets of a response to a pull; None if it is an error.

    Raises:
        FieldError: an offset is missing or malformed.
    """
    if response.code not in PULL_CODES:
        return None
    fields = response.fields or {}
    names = ("nextBeginOffset", "minOffset", "maxOffset")
    return PullPosition(response.code, *(required_int(fields, name) for name in names))


def move_pull(response: Response, position: PullPosition, offset_delta: int) -> Response:
    """Return a response to a pull with other code and offsets, and what to add to the offsets in its records."""
    fields = {
        **(response.fields or {}),
        "nextBeginOffset": str(position.next_offset),
        "minOffset": str(position.min_offset),
        "maxOffset": str(position.max_offset),
        "offsetDelta": str(offset_delta),
    }
    return msgspec.structs.replace(response, code=position.code, fields=fields)
