"""Whoever sums a body, the sum is the same."""

import zlib

from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.crc import crc32


@given(st.binary(max_size=3000), st.integers(0, 0xFFFFFFFF), st.integers(0, 40))
def test_it_is_what_zlib_says(data: bytes, before: int, start: int) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert crc32(data, before) == zlib.crc32(data, before)
    assert crc32(memoryview(data)[start:]) == zlib.crc32(data[start:])
