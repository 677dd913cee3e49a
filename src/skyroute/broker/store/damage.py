"""What recovery found wrong with a log, for logs, tools and operators."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skyroute.broker.store.commit_log import ScannedRecord

RANGES_MAX: Final = 10_000
"""Number of damaged ranges that a report lists; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """A stretch of the log without a sound record. Readers skip it."""

    position: int
    """Where it starts in the log."""
    size: int
    file: Path
    """The segment file."""
    reason: str
    """What is wrong, in a few words."""
    lost: ScannedRecord | None = None
    """The record that was here, where its head is readable and only its body is not what was stored."""

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def file_offset(self) -> int:
        """Where it starts in the file."""
        return self.position - int(self.file.name)


@dataclass(frozen=True, slots=True)
class CutTail:
    """Bytes behind the end of the log that were dropped from it, and the file that keeps them."""

    position: int
    size: int
    file: Path
    """The segment file that held them."""
    kept_in: Path


@dataclass(frozen=True, slots=True)
class DamageReport:
    """All damage known in a log."""

    ranges: tuple[DamagedRange, ...] = ()
    """In order of position, at most `RANGES_MAX`."""
    count: int = 0
    """Number of damaged ranges, listed or not."""
    bytes: int = 0
    """Bytes in damaged ranges, listed or not."""
    cuts: tuple[CutTail, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.count and not self.cuts
