"""Ends a computation that would take minutes: the sign of a quadratic algorithm."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

HANG_S: Final = 120
"""Guarded computations take tenths of a second; a quadratic algorithm takes longer than this even on a fast machine."""


@contextmanager
def hang_guard() -> Iterator[None]:
    """Fail if the block does not end. No test depends on how fast it ends. For the main thread only."""

    def fail(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"still running after {HANG_S} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
