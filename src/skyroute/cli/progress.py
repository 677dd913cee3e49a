"""What goes on, on standard error, for those who wait."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

QUIET_S: Final = 2.0
"""What takes no longer than this needs no word."""
LINE_S: Final = 10.0
"""How often a line is added where lines cannot be replaced."""


class Progress:
    """Tells what is being done and how far it is, from `QUIET_S` on until the block ends.

    Args:
        doing: What is being done.
        how_far: What to say behind that, asked in a thread of its own.
        lines: Whether to tell it in lines where there is no terminal.
    """

    def __init__(self, doing: str, how_far: Callable[[], str] = str, *, lines: bool = True) -> None:
        self.doing = doing
        self.how_far = how_far
        self._replaces = sys.stderr.isatty()
        self._tells = self._replaces or lines
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="progress", daemon=True)

    def __enter__(self) -> Self:
        if self._tells:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._tells:
            self._thread.join()

    def _tell(self) -> None:
        pause_s, said = QUIET_S, ""
        while not self._ended.wait(pause_s):
            said = f"{time.monotonic() - self._began:4.0f} s  {self.doing}{self.how_far()}"
            sys.stderr.write(f"\r\x1b[K{said}" if self._replaces else f"{said}\n")
            sys.stderr.flush()
            pause_s = 0.5 if self._replaces else LINE_S
        if said and self._replaces:
            sys.stderr.write("\r\x1b[K")
