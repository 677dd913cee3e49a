"""Decides how much free memory the process keeps, and returns the rest to the system.

The C library keeps freed blocks below its mmap threshold. One small block in use behind them keeps hundreds of
megabytes resident.
"""

import functools
from typing import Final

TRIM_BYTES: Final = 8 * 1024 * 1024
"""Freed bytes above which to trim."""

TRIM_GAP_S: Final = 5.0
"""Shortest time between two calls for fewer than `TRIM_AT_ONCE_BYTES`."""

TRIM_AT_ONCE_BYTES: Final = 64 * 1024 * 1024
"""Freed bytes above which to trim at once: a call takes about 0.2 ms of the loop per megabyte."""

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of glibc's `mallopt`."""


@functools.cache
def keep_freed_memory(kept_bytes: int, block_bytes: int) -> bool:
    """Have malloc keep up to `kept_bytes` at the end of the heap when they are freed; return whether it can.

    A block of `block_bytes` or more still has a mapping of its own, which is returned to the system when it is freed.
    By default, glibc returns even small blocks early, and every page of the next one is then a page fault: a quarter of
    the time to store a batch, and almost half of the time to decode messages. Other allocators are left as they are.
    """
    import ctypes  # noqa: PLC0415 - the console, for one, never needs it

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, block_bytes) and mallopt(_TRIM_THRESHOLD, kept_bytes))


def trim() -> None:
    """Make glibc return free pages; other C libraries need no call."""
    import ctypes  # noqa: PLC0415 - most servers never need it

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


class Trimming:
    """Decides when to call `trim`. The time is an argument."""

    __slots__ = ("_freed_before", "_trimmed_at")

    def __init__(self, now: float) -> None:
        self._freed_before = 0
        self._trimmed_at = now

    def is_due(self, freed_bytes: int, now: float) -> bool:
        """Return whether to trim now, given the bytes freed since the start."""
        freed = freed_bytes - self._freed_before
        if freed < TRIM_BYTES or (freed < TRIM_AT_ONCE_BYTES and now - self._trimmed_at < TRIM_GAP_S):
            return False
        self._freed_before, self._trimmed_at = freed_bytes, now
        return True
