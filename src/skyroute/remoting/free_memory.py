"""Gives memory that is free inside the process back to the system.

The C library keeps freed blocks below its mmap threshold for itself, and one small block that is still in use behind
them keeps hundreds of megabytes of them resident.
"""

from typing import Final

TRIM_BYTES: Final = 8 * 1024 * 1024
"""How many freed bytes make it worth while."""

TRIM_GAP_S: Final = 5.0
"""Shortest time between two calls for fewer than `TRIM_AT_ONCE_BYTES`."""

TRIM_AT_ONCE_BYTES: Final = 64 * 1024 * 1024
"""After this many freed bytes no time is waited for: a call takes about 0.2 ms of the loop for each megabyte."""


def trim() -> None:
    """Have the C library return free pages, where it is glibc; others do so of their own accord."""
    import ctypes  # noqa: PLC0415 - most servers never need it

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError, TypeError):
        return


class Trimming:
    """Decides when `trim` is worth while. The time is an argument."""

    __slots__ = ("_freed_before", "_trimmed_at")

    def __init__(self, now: float) -> None:
        self._freed_before = 0
        self._trimmed_at = now

    def is_due(self, freed_bytes: int, now: float) -> bool:
        """Return whether to trim now, given how much was freed in all since the start."""
        freed = freed_bytes - self._freed_before
        if freed < TRIM_BYTES or (freed < TRIM_AT_ONCE_BYTES and now - self._trimmed_at < TRIM_GAP_S):
            return False
        self._freed_before, self._trimmed_at = freed_bytes, now
        return True
