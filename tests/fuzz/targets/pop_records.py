"""Check points, acknowledgements and receipts of popped messages: refused, or what is read survives encoding.

Input: a byte that chooses the kind, then the body or the receipt.
"""

from collections.abc import Callable
from typing import Any, Final

from skyroute.wire.calls.pop_receipts import Receipt, decode_receipt, encode_receipt
from skyroute.wire.calls.pop_records import (
    decode_check_point,
    decode_check_point_ack,
    encode_check_point,
    encode_check_point_ack,
)
from skyroute.wire.errors import BodyError, FieldError


def decode_text(text: bytes) -> Receipt:
    return decode_receipt(text.decode("utf-8", "replace"))


def encode_text(receipt: Receipt) -> bytes:
    assert receipt.visible_at_ms >= receipt.popped_at_ms >= 0
    return encode_receipt(receipt).encode()


CODECS: Final[tuple[tuple[Callable[[bytes], Any], Callable[[Any], bytes]], ...]] = (
    (decode_check_point, encode_check_point),
    (decode_check_point_ack, encode_check_point_ack),
    (decode_text, encode_text),
)


def check(data: bytes) -> None:
    decode, encode = CODECS[data[0] % len(CODECS)] if data else CODECS[0]
    try:
        found = decode(data[1:])
    except (BodyError, FieldError):
        return
    assert decode(encode(found)) == found
