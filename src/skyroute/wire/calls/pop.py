"""POP requests and responses: pops, notifications, and looks at waiting pops and next messages."""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Final

import msgspec

from skyroute.wire.calls.pop_receipts import Receipt, RetryFlag, read_visibility
from skyroute.wire.calls.pull import PIECE_BYTES_MIN
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import FieldError
from skyroute.wire.fast_path import PreparedResponse
from skyroute.wire.fields import INT64_MAX, optional_int, required_int, required_int32, required_name, truth

POP_COUNT_MAX: Final = 32
"""Maximum number of messages in one response; a broker refuses a request for more."""

ANSWER_CHARS_MAX: Final = 65_536
"""Maximum length of each list of queues and offsets in the response to a pop."""

ATTEMPT_CHARS_MAX: Final = 1_024
"""Maximum length of an attempt id, which is kept for each ordered queue."""

_TRUE, _FALSE = "true", "false"


# --------------------------------------------------------------------------------------------------------------- pop


class InitMode(IntEnum):
    """Where a group starts in a queue in which it has no offset."""

    MIN = 0
    MAX = 1


class PopQuestion(msgspec.Struct, frozen=True, gc=False):
    """A request for messages of one queue, or of all queues of a topic."""

    group: str
    topic: str
    invisible_ms: int
    count_max: int = POP_COUNT_MAX
    queue_id: int = -1
    """-1 for all queues."""
    poll_ms: int = 0
    """Time of long polling; 0 for none."""
    born_at_ms: int = 0
    """Send time of the request; 0 for the time of its arrival. Long polling counts from it."""
    init_mode: int = InitMode.MIN
    expression: str | None = None
    expression_type: str | None = None
    ordered: bool = False
    attempt_id: str | None = None
    """With `ordered`: a repeated request has the same id, and gets the same messages again."""


def encode_pop(question: PopQuestion) -> Request:
    """Encode a pop."""
    fields = {
        "consumerGroup": question.group,
        "topic": question.topic,
        "queueId": str(question.queue_id),
        "maxMsgNums": str(question.count_max),
        "invisibleTime": str(question.invisible_ms),
        "pollTime": str(question.poll_ms),
        "bornTime": str(question.born_at_ms),
        "initMode": str(int(question.init_mode)),
        "order": _TRUE if question.ordered else _FALSE,
    }
    if question.expression is not None:
        fields["exp"] = question.expression
        fields["expType"] = question.expression_type or "TAG"
    if question.attempt_id is not None:
        fields["attemptId"] = question.attempt_id
    return Request(RequestCode.POP_MESSAGE, fields)


def decode_pop(request: Request) -> PopQuestion:
    """Decode a pop.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return PopQuestion(
        group=required_name(fields, "consumerGroup"),
        topic=required_name(fields, "topic"),
        invisible_ms=required_int(fields, "invisibleTime"),
        count_max=required_int32(fields, "maxMsgNums"),
        queue_id=max(-1, required_int32(fields, "queueId")),
        poll_ms=max(0, required_int(fields, "pollTime")),
        born_at_ms=optional_int(fields, "bornTime", 0, INT64_MAX),
        init_mode=required_int32(fields, "initMode"),
        expression=fields.get("exp") or None,
        expression_type=fields.get("expType") or None,
        ordered=truth(fields, "order"),
        attempt_id=_attempt_id(fields),
    )


def _attempt_id(fields: Mapping[str, str]) -> str | None:
    text = fields.get("attemptId")
    if text and len(text) > ATTEMPT_CHARS_MAX:
        raise FieldError(f"attemptId has {len(text)} characters (expected at most {ATTEMPT_CHARS_MAX})")
    return text or None


class PopStatus(Enum):
    """The result of a pop; the value is the response code."""

    FOUND = ResponseCode.SUCCESS
    POLLING_FULL = ResponseCode.POLLING_FULL
    """Too many pops wait: there was no long polling."""
    NOT_FOUND = ResponseCode.POLLING_TIMEOUT


POP_CODES: Final = frozenset({*(int(status.value) for status in PopStatus), int(ResponseCode.PULL_NOT_FOUND)})
"""Response codes of a pop; any other code is an error."""


class PoppedBatch(msgspec.Struct, frozen=True, gc=False):
    """Messages of one queue in a response."""

    retry: RetryFlag
    queue_id: int
    start_offset: int
    offsets: tuple[int, ...]


class PopAnswer(msgspec.Struct, frozen=True, gc=False):
    """The response to a pop."""

    status: PopStatus
    popped_at_ms: int = 0
    invisible_ms: int = 0
    revive_queue_id: int = 0
    rest_count: int = 0
    """Messages left in the queues that the request asked for."""
    batches: tuple[PoppedBatch, ...] = ()
    order_counts: Mapping[tuple[RetryFlag, int, int | None], int] = {}
    """Times that ordered messages were popped before, by flag, queue and offset; without an offset, the least of the
    queue, for old clients."""
    body: bytes = b""

    def receipts(self, broker_name: str) -> dict[tuple[RetryFlag, int, int], Receipt]:
        """Return the receipts of the messages by flag of the topic, queue and offset.

        A message of a retry topic has its receipt in the property POP_CK, with which it takes precedence.
        """
        return {
            (batch.retry, batch.queue_id, offset): Receipt(
                batch.start_offset,
                self.popped_at_ms,
                self.invisible_ms,
                self.revive_queue_id,
                batch.retry,
                broker_name,
                batch.queue_id,
                offset,
            )
            for batch in self.batches
            for offset in batch.offsets
        }

    def order_count(self, flag: RetryFlag, queue_id: int, offset: int) -> int:
        """Return how often an ordered message was popped before."""
        counts = self.order_counts
        return counts.get((flag, queue_id, offset), counts.get((flag, queue_id, None), 0))


def encode_pop_answer(answer: PopAnswer, remark: str | None = None, records: Sequence[memoryview] = ()) -> Response:
    """Encode the response to a pop. `records` are pieces of a broker's log, in place of the answer's own body."""
    fields = {
        "popTime": str(answer.popped_at_ms),
        "invisibleTime": str(answer.invisible_ms),
        "reviveQid": str(answer.revive_queue_id),
        "restNum": str(answer.rest_count),
    }
    if answer.batches:
        fields["startOffsetInfo"] = ";".join([f"{b.retry:d} {b.queue_id} {b.start_offset}" for b in answer.batches])
        fields["msgOffsetInfo"] = ";".join(
            [f"{b.retry:d} {b.queue_id} {','.join(map(str, b.offsets))}" for b in answer.batches]
        )
    if answer.order_counts:
        fields["orderCountInfo"] = ";".join(
            f"{flag:d} {queue_id if offset is None else f'qo{queue_id}%{offset}'} {count}"
            for (flag, queue_id, offset), count in answer.order_counts.items()
        )
    code = answer.status.value
    if not records:
        return Response(code, remark, fields, answer.body)
    if sum(map(len, records)) < PIECE_BYTES_MIN * len(records):
        return Response(code, remark, fields, b"".join(records))
    return PreparedResponse(code, remark, fields, more=records)


def decode_pop_answer(response: Response) -> PopAnswer:
    """Decode the response to a pop. The caller has checked that its code is in `POP_CODES`.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = response.fields or {}
    if response.code != ResponseCode.SUCCESS:
        full = response.code == ResponseCode.POLLING_FULL
        rest = optional_int(fields, "restNum", 0, INT64_MAX)
        return PopAnswer(PopStatus.POLLING_FULL if full else PopStatus.NOT_FOUND, rest_count=rest)
    starts = {
        (flag, queue): _number("startOffsetInfo", start) for flag, queue, start in _triples(fields, "startOffsetInfo")
    }
    batches = []
    for flag, queue, offsets in _triples(fields, "msgOffsetInfo"):
        if (flag, queue) not in starts:
            raise FieldError(f"msgOffsetInfo has queue {queue[:80]!r}, startOffsetInfo does not")
        queue_id = _number("msgOffsetInfo", queue)
        found = tuple(_number("msgOffsetInfo", offset) for offset in offsets.split(","))
        batches.append(PoppedBatch(flag, queue_id, starts[flag, queue], found))
    counts: dict[tuple[RetryFlag, int, int | None], int] = {}
    for flag, key, count in _triples(fields, "orderCountInfo"):
        queue, _, offset = key.removeprefix("qo").partition("%")
        at = _number("orderCountInfo", offset) if offset else None
        counts[flag, _number("orderCountInfo", queue), at] = _number("orderCountInfo", count)
    return PopAnswer(
        PopStatus.FOUND,
        *read_visibility(fields),
        required_int(fields, "restNum"),
        tuple(batches),
        counts,
        response.body,
    )


def _triples(fields: Mapping[str, str], name: str) -> Iterable[tuple[RetryFlag, str, str]]:
    text = fields.get(name) or ""
    if len(text) > ANSWER_CHARS_MAX:
        raise FieldError(f"{name} has {len(text)} characters (expected at most {ANSWER_CHARS_MAX})")
    for entry in text.split(";") if text else ():
        parts = entry.split(" ")
        if len(parts) != 3 or parts[0] not in ("0", "1", "2"):
            raise FieldError(f"{name} is malformed: {entry[:80]!r}")
        yield RetryFlag(int(parts[0])), parts[1], parts[2]


def _number(name: str, text: str) -> int:
    number = required_int({name: text}, name)
    if number < 0:
        raise FieldError(f"{name} is {number}: expected a number from 0 up")
    return number


# ------------------------------------------------------------------------------------- notification, polling and peek


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A request to wait until a pop would find messages."""

    group: str
    topic: str
    queue_id: int = -1
    poll_ms: int = 0
    born_at_ms: int = 0
    ordered: bool = False
    attempt_id: str | None = None
    expression: str | None = None
    expression_type: str | None = None


def encode_notification(question: Notification) -> Request:
    """Encode a notification request."""
    fields = {
        "consumerGroup": question.group,
        "topic": question.topic,
        "queueId": str(question.queue_id),
        "pollTime": str(question.poll_ms),
        "bornTime": str(question.born_at_ms),
        "order": _TRUE if question.ordered else _FALSE,
    }
    if question.attempt_id is not None:
        fields["attemptId"] = question.attempt_id
    if question.expression is not None:
        fields["exp"] = question.expression
        fields["expType"] = question.expression_type or "TAG"
    return Request(RequestCode.NOTIFICATION, fields)


def decode_notification(request: Request) -> Notification:
    """Decode a notification request.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return Notification(
        required_name(fields, "consumerGroup"),
        required_name(fields, "topic"),
        max(-1, required_int32(fields, "queueId")),
        max(0, required_int(fields, "pollTime")),
        optional_int(fields, "bornTime", 0, INT64_MAX),
        truth(fields, "order"),
        _attempt_id(fields),
        fields.get("exp") or None,
        fields.get("expType") or None,
    )


def encode_notified(*, has_message: bool, polling_full: bool = False) -> Response:
    """Encode the response to a notification request."""
    return Response(
        fields={"hasMsg": _TRUE if has_message else _FALSE, "pollingFull": _TRUE if polling_full else _FALSE}
    )


def decode_notified(response: Response) -> tuple[bool, bool]:
    """Return whether there are messages, and whether too many requests wait."""
    fields = response.fields or {}
    return truth(fields, "hasMsg"), truth(fields, "pollingFull")


class QueueQuestion(msgspec.Struct, frozen=True, gc=False):
    """A request about a queue of a group: the number of waiting pops, or a look at its next messages."""

    group: str
    topic: str
    queue_id: int = -1
    count_max: int = 1
    """For a peek."""


def encode_polling_info(question: QueueQuestion) -> Request:
    """Encode a request for the number of waiting pops."""
    fields = {"consumerGroup": question.group, "topic": question.topic, "queueId": str(question.queue_id)}
    return Request(RequestCode.POLLING_INFO, fields)


def decode_polling_info(request: Request) -> QueueQuestion:
    """Decode a request for the number of waiting pops.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return QueueQuestion(
        required_name(fields, "consumerGroup"),
        required_name(fields, "topic"),
        max(-1, required_int32(fields, "queueId")),
    )


def encode_polling_count(waiting: int) -> Response:
    """Encode the number of waiting pops."""
    return Response(fields={"pollingNum": str(waiting)})


def decode_polling_count(response: Response) -> int:
    """Return the number of waiting pops.

    Raises:
        FieldError: it is missing or malformed.
    """
    return required_int(response.fields or {}, "pollingNum")


def encode_peek(question: QueueQuestion) -> Request:
    """Encode a look at the next messages."""
    fields = {
        "consumerGroup": question.group,
        "topic": question.topic,
        "queueId": str(question.queue_id),
        "maxMsgNums": str(question.count_max),
    }
    return Request(RequestCode.PEEK_MESSAGE, fields)


def decode_peek(request: Request) -> QueueQuestion:
    """Decode a look at the next messages.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return QueueQuestion(
        required_name(fields, "consumerGroup"),
        required_name(fields, "topic"),
        max(-1, required_int32(fields, "queueId")),
        required_int32(fields, "maxMsgNums"),
    )
