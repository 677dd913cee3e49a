"""Returns free memory of the process to the system.

The C library keeps freed blocks below its mmap threshold. One small block in use behind them keeps hundreds of
megabytes resident.
"""

from typing import Final

TRIM_BYTES: Final = 8 * 1024 * 1024
"""Freed bytes above which to trim."""

TRIM_GAP_S: Final = 5.0
"""Shortest time between two calls for fewer than `TRIM_AT_ONCE_BYTES`."""

TRIM_AT_ONCE_BYTES: Final = 64 * 1024 * 1024
"""Freed bytes above which to trim at once: a call takes about 0.2 ms of the loop per megabyte."""


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
