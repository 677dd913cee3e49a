"""Decoding a chunk after another one takes no new memory from the system."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from skyroute.pipeline.source.heap import keep_freed_memory

def count_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        arrays = [np.ones(count) for count in (10_000, 30_000, 100_000, 500_000)]
        del arrays
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(count_faults())
assert keep_freed_memory()
count_faults()
print(count_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc returns freed memory so early")
def test_freed_arrays_are_used_again_without_page_faults() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(int, ended.stdout.split())
    assert before > 1_000
    assert after < 100
