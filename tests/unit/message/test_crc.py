"""Both implementations of CRC-32 have the same results."""

import subprocess
import sys
import zlib

from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.crc import crc32


@given(st.binary(max_size=3000), st.integers(0, 0xFFFFFFFF), st.integers(0, 40))
def test_crc32_equals_zlibs(data: bytes, before: int, start: int) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert crc32(data, before) == zlib.crc32(data, before)
    assert crc32(memoryview(data)[start:]) == zlib.crc32(data[start:])


def test_without_isal_it_is_zlibs() -> None:
    program = (
        "import sys, zlib; sys.modules['isal'] = None; from skyroute.message.crc import crc32; "
        "sys.exit(crc32 is not zlib.crc32)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_with_isal_it_is_isals() -> None:
    assert crc32 is not zlib.crc32
