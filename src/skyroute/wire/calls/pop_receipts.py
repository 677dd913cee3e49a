"""Receipts of popped messages, and the topic that has a message."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec

from skyroute.message.reserved_topics import RETRY_PREFIX, pop_retry_topic
from skyroute.wire.errors import FieldError
from skyroute.wire.fields import INT64_MAX, is_name, required_int, required_int32

ORDERED_REVIVE_QUEUE: Final = 999
"""Stands for the revive queue in receipts of ordered messages, which have no check point."""

RECEIPT_CHARS_MAX: Final = 1_024
"""Maximum length of a receipt."""

_RECEIPT_FIELDS: Final = 8


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
    if min(start, popped, invisible, offset, revive, queue_id) < 0 or popped + invisible > INT64_MAX:
        raise FieldError(f"malformed receipt {text[:80]!r}: a number is out of range")
    if not is_name(parts[5]):
        raise FieldError(f"malformed receipt {text[:80]!r}: the broker name is empty or has control characters")
    return Receipt(start, popped, invisible, revive, retry, parts[5], queue_id, offset, position)


def read_visibility(fields: Mapping[str, str]) -> tuple[int, int, int]:
    """Return pop time, invisible time and revive queue of a response.

    Raises:
        FieldError: one is missing or out of range.
    """
    popped, invisible = required_int(fields, "popTime"), required_int(fields, "invisibleTime")
    revive = required_int32(fields, "reviveQid")
    if min(popped, invisible, revive) < 0 or popped + invisible > INT64_MAX:
        raise FieldError(f"popTime={popped} invisibleTime={invisible} reviveQid={revive}: out of range")
    return popped, invisible, revive
