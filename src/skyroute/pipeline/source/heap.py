"""Keeps freed memory in a Spark worker's process."""

import ctypes
import functools
from typing import Final

KEPT_BYTES: Final = 64 << 20
"""Free memory at the end of the heap from which on it is returned to the system."""
HEAP_BLOCK_BYTES: Final = 16 << 20
"""Size from which on a block has a mapping of its own, which is returned when it is freed."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of glibc's `mallopt`."""


@functools.cache
def keep_freed_memory() -> bool:
    """Have malloc keep the memory of freed arrays; return whether it can.

    glibc returns the arrays of each chunk to the system, and every page of the next chunk's is then a page fault:
    almost half of the time of decoding. Other allocators are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, HEAP_BLOCK_BYTES) and mallopt(_TRIM_THRESHOLD, KEPT_BYTES))
