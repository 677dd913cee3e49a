"""POP requests and responses: messages with receipts, and acknowledgements."""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from typing import Annotated, Final

import msgspec

from skyroute.message.reserved_topics import RETRY_PREFIX, pop_retry_topic
from skyroute.wire.calls.pull import PIECE_BYTES_MIN
from skyroute.wire.calls.topics import read_request
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.errors import BodyError, FieldError
from skyroute.wire.fast_path import PreparedResponse
from skyroute.wire.fields import is_name, optional_int, required_int, required_int32, required_name, truth

POP_COUNT_MAX: Final = 32
"""Maximum number of messages in one response; a broker refuses a request for more."""

ORDERED_REVIVE_QUEUE: Final = 999
"""Stands for the revive queue in receipts of ordered messages, which have no check point."""

ACK_BITS_MAX: Final = 1 << 20
"""Largest distance of an acknowledged message from the first one of its batch."""

ACKS_MAX: Final = 10_000
"""Maximum number of acknowledged messages in one request."""

RECEIPT_CHARS_MAX: Final = 1_024
"""Maximum length of a receipt."""

ANSWER_CHARS_MAX: Final = 65_536
"""Maximum length of each list of queues and offsets in the response to a pop."""

ATTEMPT_CHARS_MAX: Final = 1_024
"""Maximum length of an attempt id, which is kept for each ordered queue."""

_INT64_MAX: Final = (1 << 63) - 1
_RECEIPT_FIELDS: Final = 8
_TRUE, _FALSE = "true", "false"


class RetryFlag(IntEnum):
    """The topic that a popped message is in: the topic itself, or a POP retry topic of version 1 or 2."""

    NONE = 0
    V1 = 1
    V2 = 2


def retry_flag(topic: str) -> RetryFlag:
    """Return the flag of a topic, by its name."""
    if not topic.startswith(RETRY_PREFIX):
        return RetryFlag.NONE
    return RetryFlag.V2 if "+" in topic else RetryFlag.V1


def stored_topic(flag: RetryFlag, topic: str, group: str) -> str:
    """Return the topic that has a message with this flag: the topic, or its retry topic for the group."""
    return topic if flag is RetryFlag.NONE else pop_retry_topic(group, topic, version=int(flag))


# ---------------------------------------------------------------------------------------------------------- receipts


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The receipt of a popped message. RocketMQ: the property POP_CK, `extraInfo`, a receipt handle."""

    start_offset: int
    """Offset of the first message of the batch: with time and queue it identifies the check point."""
    popped_at_ms: int
    invisible_ms: int
    revive_queue_id: int
    retry: RetryFlag
    broker_name: str
    queue_id: int
    offset: int
    log_position: int | None = None
    """Set by proxies."""

    @property
    def visible_at_ms(self) -> int:
        """Time at which the message becomes visible again."""
        return self.popped_at_ms + self.invisible_ms

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue_id == ORDERED_REVIVE_QUEUE


def encode_receipt(receipt: Receipt) -> str:
    """Encode a receipt."""
    text = (
        f"{receipt.start_offset} {receipt.popped_at_ms} {receipt.invisible_ms} {receipt.revive_queue_id} "
        f"{int(receipt.retry)} {receipt.broker_name} {receipt.queue_id} {receipt.offset}"
    )
    return text if receipt.log_position is None else f"{text} {receipt.log_position}"


def decode_receipt(text: str) -> Receipt:
    """Decode a receipt.

    Raises:
        FieldError: it is malformed.
    """
    parts = text.split(" ") if len(text) <= RECEIPT_CHARS_MAX else ()
    if len(parts) < _RECEIPT_FIELDS:
        raise FieldError(f"receipt of {len(parts)} fields (expected at least {_RECEIPT_FIELDS}): {text[:80]!r}")
    numbers = {str(at): part for at, part in enumerate(parts)}
    try:
        start, popped, invisible, offset = (required_int(numbers, at) for at in "0127")
        revive, queue_id = required_int32(numbers, "3"), required_int32(numbers, "6")
        retry = RetryFlag(required_int32(numbers, "4"))
        position = required_int(numbers, "8") if len(parts) > _RECEIPT_FIELDS else None
    except (FieldError, ValueError) as error:
        raise FieldError(f"malformed receipt {text[:80]!r}: {error}") from None
    if min(start, popped, invisible, offset, revive, queue_id) < 0 or popped + invisible > _INT64_MAX:
        raise FieldError(f"malformed receipt {text[:80]!r}: a number is out of range")
    if not is_name(parts[5]):
        raise FieldError(f"malformed receipt {text[:80]!r}: the broker name is empty or has control characters")
    return Receipt(start, popped, invisible, revive, retry, parts[5], queue_id, offset, position)


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
        born_at_ms=optional_int(fields, "bornTime", 0, _INT64_MAX),
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
        rest = optional_int(fields, "restNum", 0, _INT64_MAX)
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
        *_visibility(fields),
        required_int(fields, "restNum"),
        tuple(batches),
        counts,
        response.body,
    )


def _visibility(fields: Mapping[str, str]) -> tuple[int, int, int]:
    """Return the pop time, the invisible time and the revive queue of a response."""
    popped, invisible = required_int(fields, "popTime"), required_int(fields, "invisibleTime")
    revive = required_int32(fields, "reviveQid")
    if min(popped, invisible, revive) < 0 or popped + invisible > _INT64_MAX:
        raise FieldError(f"popTime={popped} invisibleTime={invisible} reviveQid={revive}: out of range")
    return popped, invisible, revive


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


# -------------------------------------------------------------------------------------------------------------- acks


class Ack(msgspec.Struct, frozen=True, gc=False):
    """The acknowledgement of one message."""

    group: str
    topic: str
    """The topic that has the message: for retries the retry topic (`stored_topic`)."""
    receipt: Receipt
    queue_id: int
    offset: int


def encode_ack(ack: Ack) -> Request:
    """Encode an acknowledgement."""
    return Request(RequestCode.ACK_MESSAGE, _ack_fields(ack))


def _ack_fields(ack: Ack) -> dict[str, str]:
    return {
        "consumerGroup": ack.group,
        "topic": ack.topic,
        "queueId": str(ack.queue_id),
        "offset": str(ack.offset),
        "extraInfo": encode_receipt(ack.receipt),
    }


def decode_ack(request: Request) -> Ack:
    """Decode an acknowledgement.

    Raises:
        FieldError: a field or the receipt is missing or malformed.
    """
    fields = request.fields
    return Ack(
        required_name(fields, "consumerGroup"),
        required_name(fields, "topic"),
        decode_receipt(fields.get("extraInfo", "")),
        required_int32(fields, "queueId"),
        required_int(fields, "offset"),
    )


class BatchAck(msgspec.Struct, frozen=True, gc=False):
    """Acknowledgements of messages of one queue that were popped together."""

    group: str
    topic: str
    """The topic that was subscribed to; see `retry`."""
    retry: RetryFlag
    queue_id: int
    revive_queue_id: int
    start_offset: int
    popped_at_ms: int
    invisible_ms: int
    offsets: tuple[int, ...]
    """Ascending."""

    @property
    def stored_topic(self) -> str:
        """The topic that has the messages."""
        return stored_topic(self.retry, self.topic, self.group)


class _BatchAckBody(msgspec.Struct):
    """An entry as it is sent."""

    c: str
    t: str
    r: str = "0"
    so: Int64 = 0
    q: Int32 = 0
    rq: Int32 = 0
    pt: Int64 = 0
    it: Int64 = 0
    b: str = ""


class _BatchAcksBody(msgspec.Struct, rename="camel"):
    acks: Annotated[list[_BatchAckBody], msgspec.Meta(max_length=ACKS_MAX)] | None = None
    broker_name: str | None = None


def encode_batch_ack(broker_name: str, acks: Iterable[BatchAck]) -> Request:
    """Encode acknowledgements."""
    entries = [
        _BatchAckBody(
            ack.group,
            ack.topic,
            str(int(ack.retry)),
            ack.start_offset,
            ack.queue_id,
            ack.revive_queue_id,
            ack.popped_at_ms,
            ack.invisible_ms,
            _encode_bits(ack.offsets, ack.start_offset),
        )
        for ack in acks
    ]
    return Request(RequestCode.BATCH_ACK_MESSAGE, body=msgspec.json.encode(_BatchAcksBody(entries, broker_name)))


def decode_batch_ack(request: Request) -> Iterator[BatchAck]:
    """Decode acknowledgements one by one: all of a long request take too long for one turn of a server.

    Raises:
        BodyError: the body is malformed, or acknowledges too many messages. It may be raised at any entry.
    """
    body = read_request(request.body, _BatchAcksBody, "acknowledgements")
    room = ACKS_MAX
    for entry in body.acks or ():
        if not is_name(entry.c) or not is_name(entry.t) or entry.r not in ("0", "1", "2"):
            raise BodyError(f"not an acknowledgement: c={entry.c[:80]!r} t={entry.t[:80]!r} r={entry.r[:80]!r}")
        if min(entry.so, entry.pt, entry.it, entry.q, entry.rq) < 0 or max(entry.so, entry.pt + entry.it) >= 1 << 62:
            raise BodyError(f"a number of an acknowledgement is out of range: t={entry.t[:80]!r}")
        offsets = _decode_bits(entry.b, entry.so, room)
        room -= len(offsets)
        yield BatchAck(
            entry.c, entry.t, RetryFlag(int(entry.r)), entry.q, entry.rq, entry.so, entry.pt, entry.it, offsets
        )


def _encode_bits(offsets: Iterable[int], start: int) -> str:
    bits = 0
    for offset in offsets:
        bits |= 1 << (offset - start)
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()


_SET_BYTES: Final = re.compile(rb"[^\0]").finditer
_SET_BITS: Final = [tuple(bit for bit in range(8) if byte & 1 << bit) for byte in range(256)]


def _decode_bits(text: str, start: int, count_max: int) -> tuple[int, ...]:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise BodyError(f"the bit set of an acknowledgement is not Base64: {text[:80]!r}") from None
    if len(raw) * 8 > ACK_BITS_MAX:
        raise BodyError(f"the bit set of an acknowledgement has {len(raw) * 8} bits (expected at most {ACK_BITS_MAX})")
    bits = int.from_bytes(raw, "little")
    if (count := bits.bit_count()) > count_max:
        raise BodyError(f"{count} more acknowledgements in a request (expected at most {ACKS_MAX} together)")
    if not bits & (bits + 1):  # the usual case: no gaps
        return tuple(range(start, start + count))
    return tuple(start + found.start() * 8 + bit for found in _SET_BYTES(raw) for bit in _SET_BITS[raw[found.start()]])


# ----------------------------------------------------------------------------------------------------- invisible time


class InvisibleTimeChange(msgspec.Struct, frozen=True, gc=False):
    """A request to make a popped message visible at another time: later, or soon (a negative acknowledgement)."""

    ack: Ack
    """Message and receipt; the receipt is no longer valid afterwards."""
    invisible_ms: int
    suspend: bool = False
    """The attempt does not count."""


def encode_change(change: InvisibleTimeChange) -> Request:
    """Encode a change of the invisible time."""
    fields = {**_ack_fields(change.ack), "invisibleTime": str(change.invisible_ms)}
    if change.suspend:
        fields["suspend"] = _TRUE
    return Request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)


def decode_change(request: Request) -> InvisibleTimeChange:
    """Decode a change of the invisible time.

    Raises:
        FieldError: a field or the receipt is missing or malformed.
    """
    fields = request.fields
    return InvisibleTimeChange(decode_ack(request), required_int(fields, "invisibleTime"), truth(fields, "suspend"))


def encode_changed(popped_at_ms: int, invisible_ms: int, revive_queue_id: int) -> Response:
    """Encode the response to a change: the new parts of the receipt."""
    return Response(
        fields={"popTime": str(popped_at_ms), "invisibleTime": str(invisible_ms), "reviveQid": str(revive_queue_id)}
    )


def decode_changed(response: Response, change: InvisibleTimeChange) -> Receipt:
    """Return the new receipt of a message.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields, old = response.fields or {}, change.ack.receipt
    return Receipt(
        change.ack.offset,
        *_visibility(fields),
        old.retry,
        old.broker_name,
        old.queue_id,
        old.offset,
        old.log_position,
    )


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
        optional_int(fields, "bornTime", 0, _INT64_MAX),
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
