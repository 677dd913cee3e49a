"""Free memory of Spark's worker processes."""

from typing import Final

from skyroute.remoting.free_memory import keep_freed_memory

KEPT_BYTES: Final = 64 << 20
"""Freed memory that a worker keeps, for the next chunk of a read or the next rows of a write."""
BLOCK_BYTES: Final = 16 << 20
"""Size from which on a block is returned to the system when it is freed."""


def keep_worker_memory() -> None:
    """Keep freed memory in this worker, for the next arrays and batches."""
    keep_freed_memory(KEPT_BYTES, BLOCK_BYTES)
