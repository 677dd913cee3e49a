"""Memory of Spark's worker processes."""

import functools
import gc
import sys
from typing import Final

from skyroute.remoting.free_memory import keep_freed_memory

KEPT_BYTES: Final = 64 << 20
"""Freed memory that a worker keeps, for the next chunk of a read or the next rows of a write."""
BLOCK_BYTES: Final = 16 << 20
"""Size from which on a block is returned to the system when it is freed."""


def prepare_worker() -> None:
    """Keep freed memory in this worker, and exempt its modules from garbage collection. Every task calls this."""
    keep_freed_memory(KEPT_BYTES, BLOCK_BYTES)
    _exempt_modules(len(sys.modules))


@functools.cache
def _exempt_modules(_count: int) -> None:
    """Exempt all objects from garbage collection, once for each number of imported modules.

    Spark collects garbage after each task, and only then takes the next one. It has to visit all objects of all
    modules: 25 ms with pandas, which Spark imports.
    """
    gc.freeze()
