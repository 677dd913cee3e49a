"""What goes on, on standard error, for those who wait."""

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUIET_S: Final = 2.0
"""What takes no longer than this needs no word."""
LINE_S: Final = 10.0
"""How often a line is added where lines cannot be replaced."""


class Progress:
    """Tells what is being done and how far it is, from `QUIET_S` on until the block ends."""

    def __init__(self, doing: str) -> None:
        self.doing = doing
        self.spark: SparkSession | None = None
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="progress", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _tell(self) -> None:
        replaces = sys.stderr.isatty()
        pause_s, said = QUIET_S, ""
        while not self._ended.wait(pause_s):
            said = f"{time.monotonic() - self._began:4.0f} s  {self.doing}{self._tasks()}"
            sys.stderr.write(f"\r\x1b[K{said}" if replaces else f"{said}\n")
            sys.stderr.flush()
            pause_s = 0.5 if replaces else LINE_S
        if said and replaces:
            sys.stderr.write("\r\x1b[K")

    def _tasks(self) -> str:
        if self.spark is None:
            return ""
        tracker = self.spark.sparkContext.statusTracker()
        stages = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage)) is not None]
        total, done = sum(stage.numTasks for stage in stages), sum(stage.numCompletedTasks for stage in stages)
        return f": {done} of {total} tasks done" if total else ""
