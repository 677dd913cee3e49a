"""A figure, its target, and the processes that it is measured on."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """One figure of a run."""

    what: str
    value: float | str
    at_most: float | None = None
    at_least: float | None = None
    unit: str = ""

    @property
    def is_met(self) -> bool:
        if isinstance(self.value, str):
            return True
        return (self.at_most is None or self.value <= self.at_most) and (
            self.at_least is None or self.value >= self.at_least
        )

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else f"{self.value:,.4g}"
        if isinstance(self.value, int):
            value = f"{self.value:,}"
        target = "" if self.at_most is None else f" (target <= {self.at_most:g})"
        if self.at_least is not None:
            target = f" (target >= {self.at_least:,.0f})"
        if target:
            target += "  met" if self.is_met else "  NOT MET"
        return f"{self.what}: {value} {self.unit}".rstrip() + target


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process holds."""

    rss_mb: float
    files: int
    threads: int
    own_mb: float = 0.0
    """Memory without mapped files: a broker maps its log, and the kernel drops those pages at will."""

    @classmethod
    def of(cls, pid: int) -> Usage:
        status = Path(f"/proc/{pid}/status").read_text()
        numbers = {name: int(value) for name, value in re.findall(r"(VmRSS|RssAnon|Threads):\s+(\d+)", status)}
        files = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - names are all that is wanted
        rss_mb, own_mb = (numbers[name] * 1024 / 1e6 for name in ("VmRSS", "RssAnon"))
        return cls(rss_mb, files, numbers["Threads"], own_mb)


def percentile_ms(times_s: Sequence[float], percent: float) -> float:
    """Return a percentile in milliseconds."""
    ordered = sorted(times_s)
    return 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)
