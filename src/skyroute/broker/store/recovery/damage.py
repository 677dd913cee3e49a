"""Damaged ranges and cut tails of the log: for readers, log lines, metrics and tools."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from skyroute.broker.store.commit_log import ScannedRecord
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.files.disk import Disk
from skyroute.wire.fastjson import JsonError, loads

log = logging.getLogger(__name__)

RANGES_MAX: Final = 10_000
"""Number of damaged ranges that a report lists; further ones are only counted."""
CUTS_MAX: Final = 1_000
"""Number of cut tails that a report lists, newest last."""


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """A range of the log without an intact record. Readers skip it."""

    position: int
    """Where it starts in the log."""
    size: int
    file: Path
    """The segment file."""
    reason: str
    """The kind of damage, for people."""
    lost: ScannedRecord | None = None
    """The record that was here, if its header is intact and only its body is damaged."""

    @property
    def end(self) -> int:
        return self.position + self.size

    def cut_at(self, position: int) -> "DamagedRange":
        """Return the part of it before a position."""
        return replace(self, size=min(self.size, position - self.position))

    @property
    def file_offset(self) -> int:
        """Where it starts in the file."""
        return self.position - int(self.file.name)


@dataclass(frozen=True, slots=True)
class CutTail:
    """Bytes that were cut off the end of the log, and the file that keeps them."""

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

    def merge(self, ranges: Sequence[DamagedRange], cuts: Sequence[CutTail], log_span: range) -> "DamageReport":
        """Return this report with new damage added and ranges outside the log removed."""
        starts = {each.position for each in ranges}
        kept = [
            each.cut_at(log_span.stop)
            for each in self.ranges
            if each.position not in starts and each.position in log_span
        ]
        unlisted, unlisted_bytes = self.count - len(self.ranges), self.bytes - sum(each.size for each in self.ranges)
        whole = sorted([*kept, *ranges], key=lambda each: each.position)
        return DamageReport(
            tuple(whole[:RANGES_MAX]),
            unlisted + len(whole),
            unlisted_bytes + sum(each.size for each in whole),
            (*self.cuts, *cuts)[-CUTS_MAX:],
        )


class DamageFile:
    """Saves a report beside the log for the next start, which does not read the whole log."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder = folder
        self._file = JsonFile(folder / "damage.json", disk)

    def load(self) -> DamageReport:
        """Return the saved report; an empty one if the file is missing or damaged."""
        try:
            return self._decode(loads(self._file.path.read_bytes()))
        except FileNotFoundError:
            return DamageReport()
        except (OSError, JsonError, KeyError, TypeError, ValueError, AttributeError) as error:
            log.warning("damage report not readable file=%s reason=%s", self._file.path, error)
            return DamageReport()

    def save(self, report: DamageReport) -> None:
        """Save a report.

        Raises:
            FileWriteError: the previous report is still there.
        """
        if not report.is_empty or self._file.path.exists():
            self._file.save(
                {
                    "count": report.count,
                    "bytes": report.bytes,
                    "ranges": [[each.position, each.size, each.file.name, each.reason] for each in report.ranges],
                    "cuts": [[each.position, each.size, each.file.name, each.kept_in.name] for each in report.cuts],
                }
            )

    def _decode(self, content: Any) -> DamageReport:
        log_folder, cut_folder = self._folder / "commitlog", self._folder / CUT_FOLDER
        ranges = tuple(
            DamagedRange(int(position), int(size), log_folder / str(int(name)).zfill(20), str(reason))
            for position, size, name, reason in content["ranges"][:RANGES_MAX]
        )
        cuts = tuple(
            CutTail(int(position), int(size), log_folder / str(name), cut_folder / str(kept_in))
            for position, size, name, kept_in in content["cuts"][:CUTS_MAX]
        )
        return replace(
            DamageReport(), ranges=ranges, count=int(content["count"]), bytes=int(content["bytes"]), cuts=cuts
        )


CUT_FOLDER: Final = "commitlog.cut"
"""Where cut tails are kept. Apache's broker opens no folder with a file of another size in `commitlog` itself."""
