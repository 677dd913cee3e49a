"""How much free memory is kept, and when it is given back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from skyroute.remoting.free_memory import TRIM_AT_ONCE_BYTES, TRIM_BYTES, TRIM_GAP_S, Trimming


def test_few_freed_bytes_never_cause_a_trim() -> None:
    trimming = Trimming(0.0)
    assert not trimming.is_due(TRIM_BYTES - 1, 1e6)
    assert trimming.is_due(TRIM_BYTES, 1e6)
    assert not trimming.is_due(2 * TRIM_BYTES - 1, 2e6), "it counts from the last time"


def test_freed_bytes_wait_for_the_trim_gap() -> None:
    trimming = Trimming(0.0)
    assert not trimming.is_due(TRIM_BYTES, 0.9 * TRIM_GAP_S)
    assert trimming.is_due(TRIM_BYTES, TRIM_GAP_S)
    assert not trimming.is_due(2 * TRIM_BYTES, 1.9 * TRIM_GAP_S)


def test_many_freed_bytes_are_trimmed_at_once() -> None:
    trimming = Trimming(0.0)
    assert trimming.is_due(TRIM_AT_ONCE_BYTES, 0.0)
    assert trimming.is_due(2 * TRIM_AT_ONCE_BYTES, 0.0)


PROGRAM = """
import resource
from skyroute.remoting.free_memory import keep_freed_memory

def count_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [b'x' * size for size in (80_000, 240_000, 800_000, 4_000_000)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(count_faults())
assert keep_freed_memory(64 << 20, 16 << 20)
count_faults()
print(count_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc returns freed memory so early")
def test_freed_blocks_are_used_again_without_page_faults() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(int, ended.stdout.split())
    assert before > 1_000
    assert after < 100
