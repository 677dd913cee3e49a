"""Acknowledgements of popped messages, and changes of their invisible time."""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Final

import msgspec

from skyroute.wire.calls.pop_receipts import (
    Receipt,
    RetryFlag,
    decode_receipt,
    encode_receipt,
    read_visibility,
    stored_topic,
)
from skyroute.wire.calls.topics import read_request
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.errors import BodyError
from skyroute.wire.fields import is_name, required_int, required_int32, required_name, truth

ACK_BITS_MAX: Final = 1 << 20
"""Largest distance of an acknowledged message from the first one of its batch."""

ACKS_MAX: Final = 10_000
"""Maximum number of acknowledged messages in one request."""
_TRUE, _FALSE = "true", "false"


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
        *read_visibility(fields),
        old.retry,
        old.broker_name,
        old.queue_id,
        old.offset,
        old.log_position,
    )
