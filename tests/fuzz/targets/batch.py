"""Batches: decoding in steps gives the same items, and items survive encoding.

Input: a byte with the size of the steps, then the body of a batch.
"""

from skyroute.message.batch import decode_batch, decode_some, encode_batch
from skyroute.message.errors import BatchError


def check(data: bytes) -> None:
    step, body = (data[0] % 4 + 1, data[1:]) if data else (1, b"")
    try:
        items = decode_batch(body)
    except BatchError:
        items = None
    found, at = [], 0
    try:
        while at < len(body):
            some, after = decode_some(body, at, step)
            assert after > at
            found += some
            at = after
    except BatchError:
        assert items is None
        return
    assert found == items
    encoded = encode_batch(found)
    assert len(encoded) == len(body)
    assert decode_batch(encoded) == found
