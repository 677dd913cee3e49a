"""The latest decisions of access control, from the audit logs of servers on this machine."""

import os
from collections.abc import Iterable
from heapq import nlargest
from pathlib import Path
from typing import Final

import msgspec

from skyroute.access.audit import AuditRecord, decode_record

READ_BYTES_MAX: Final = 256 * 1024
"""Bytes read from the end of each file: about a thousand decisions."""
DECISIONS_MAX: Final = 200
"""Decisions that are shown."""


def latest_decisions(paths: Iterable[Path]) -> list[AuditRecord]:
    """Return the latest decisions in these files, newest first. Missing files and invalid lines are skipped."""
    found = (record for path in paths for record in _read(path))
    return nlargest(DECISIONS_MAX, found, key=lambda record: record.time_ms)


def _read(path: Path) -> Iterable[AuditRecord]:
    try:
        with path.open("rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - READ_BYTES_MAX)
            file.seek(begin)
            lines = file.read().splitlines()[1 if begin else 0 :]
    except OSError:
        return
    for line in lines:
        try:
            yield decode_record(line)
        except msgspec.MsgspecError:
            continue
