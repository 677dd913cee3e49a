"""A line on standard error that says what a slow command does."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

QUIET_S: Final = 2.0
"""Time after which the first line appears."""
REFRESH_S: Final = 0.5
LINE_S: Final = 10.0
"""Time between lines where standard error is not a terminal."""


class ProgressLine:
    """Prints what is being done and how far it is, from `QUIET_S` on until the block ends.

    Args:
        doing: What is being done.
        how_far: Returns the text after `doing`; called in another thread.
        lines: Whether to print lines where standard error is not a terminal.
    """

    def __init__(self, doing: str, how_far: Callable[[], str] = str, *, lines: bool = True) -> None:
        self.doing = doing
        self.how_far = how_far
        self._is_terminal = sys.stderr.isatty()
        self._is_enabled = self._is_terminal or lines
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._print, name="progress", daemon=True)

    def __enter__(self) -> Self:
        if self._is_enabled:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._is_enabled:
            self._thread.join()

    def _print(self) -> None:
        pause_s, line = QUIET_S, ""
        while not self._ended.wait(pause_s):
            line = f"{time.monotonic() - self._began:4.0f} s  {self.doing}{self.how_far()}"
            sys.stderr.write(f"\r\x1b[K{line}" if self._is_terminal else f"{line}\n")
            sys.stderr.flush()
            pause_s = REFRESH_S if self._is_terminal else LINE_S
        if line and self._is_terminal:
            sys.stderr.write("\r\x1b[K")
