"""Bodies of messages in the revive topic: check points of popped messages, and their acknowledgements."""

from typing import Annotated, Final

import msgspec

from skyroute.wire.calls.topics import read_body
from skyroute.wire.command import Int32, Int64

CHECK_POINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"

MESSAGES_MAX: Final = 32
"""Messages of one check point: one bit each in 32 bits."""

_ACKS_MAX: Final = 100_000
_BITS: Final = (1 << MESSAGES_MAX) - 1


class CheckPoint(msgspec.Struct, frozen=True, gc=False):
    """Messages of one queue that were popped together."""

    group: str
    topic: str
    queue_id: int
    start_offset: int
    popped_at_ms: int
    invisible_ms: int
    broker_name: str
    offsets: tuple[int, ...]
    acked: int = 0
    """Acknowledged messages, one bit for each of `offsets`."""
    attempts: int = 0
    """How often a message could not be revived."""
    suspended: bool = False
    """The attempt does not count."""

    @property
    def visible_at_ms(self) -> int:
        """Time at which the messages become visible again."""
        return self.popped_at_ms + self.invisible_ms


class _CheckPointBody(msgspec.Struct):
    t: str
    c: str
    q: Int32
    so: Int64
    pt: Int64
    it: Int64
    n: Annotated[int, msgspec.Meta(ge=0, le=127)]
    bm: Int32 = 0
    bn: str | None = None
    d: Annotated[list[Int32], msgspec.Meta(max_length=127)] | None = None
    rp: str | None = None
    sp: bool = False


class _AckBody(msgspec.Struct, rename="camel"):
    t: str = ""
    c: str = ""
    q: Int32 = 0
    so: Int64 = 0
    ao: Int64 = 0
    pt: Int64 = 0
    bn: str | None = None
    aol: Annotated[list[Int64], msgspec.Meta(max_length=_ACKS_MAX)] | None = None
    # The names of older brokers.
    topic: str = ""
    consumer_group: str = ""
    queue_id: Int32 = 0
    start_offset: Int64 = 0
    ack_offset: Int64 = 0
    pop_time: Int64 = 0
    broker_name: str | None = None
    ack_offset_list: Annotated[list[Int64], msgspec.Meta(max_length=_ACKS_MAX)] | None = None


class CheckPointAck(msgspec.Struct, frozen=True, gc=False):
    """Acknowledged messages of a check point."""

    group: str
    topic: str
    queue_id: int
    start_offset: int
    popped_at_ms: int
    broker_name: str
    offsets: tuple[int, ...]


_encode = msgspec.json.Encoder(order="sorted").encode


def encode_check_point(point: CheckPoint) -> bytes:
    """Encode a check point."""
    bits = point.acked & _BITS
    members: dict[str, object] = {
        "bm": bits - (1 << MESSAGES_MAX) if bits >> (MESSAGES_MAX - 1) else bits,
        "bn": point.broker_name,
        "c": point.group,
        "d": [offset - point.start_offset for offset in point.offsets],
        "it": point.invisible_ms,
        "n": len(point.offsets),
        "pt": point.popped_at_ms,
        "q": point.queue_id,
        "reviveTime": point.visible_at_ms,
        "ro": 0,
        "so": point.start_offset,
        "sp": point.suspended,
        "t": point.topic,
    }
    if point.attempts:
        members["rp"] = str(point.attempts)
    return _encode(members)


def decode_check_point(body: bytes) -> CheckPoint:
    """Decode a check point.

    Raises:
        BodyError: it is malformed.
    """
    read = read_body(body, _CheckPointBody, "a check point")
    offsets = tuple(read.so + difference for difference in (read.d or range(read.n)))
    attempts = int(read.rp) if read.rp and read.rp.isascii() and read.rp.isdigit() and len(read.rp) < 10 else 0
    return CheckPoint(
        *(read.c, read.t, read.q, read.so, read.pt, read.it, read.bn or "", offsets),
        acked=read.bm & _BITS,
        attempts=attempts,
        suspended=read.sp,
    )


def encode_check_point_ack(ack: CheckPointAck) -> bytes:
    """Encode acknowledged messages of a check point; of more than one message, as a batch."""
    members: dict[str, object] = {
        "ao": ack.offsets[0] if len(ack.offsets) == 1 else 0,
        "bn": ack.broker_name,
        "c": ack.group,
        "pt": ack.popped_at_ms,
        "q": ack.queue_id,
        "so": ack.start_offset,
        "t": ack.topic,
    }
    if len(ack.offsets) != 1:
        members["aol"] = ack.offsets
    return _encode(members)


def decode_check_point_ack(body: bytes) -> CheckPointAck:
    """Decode acknowledged messages of a check point.

    Raises:
        BodyError: it is malformed.
    """
    read = read_body(body, _AckBody, "an acknowledgement")
    many = read.aol if read.aol is not None else read.ack_offset_list
    return CheckPointAck(
        read.c or read.consumer_group,
        read.t or read.topic,
        read.q or read.queue_id,
        read.so or read.start_offset,
        read.pt or read.pop_time,
        read.bn or read.broker_name or "",
        (read.ao or read.ack_offset,) if many is None else tuple(many),
    )
