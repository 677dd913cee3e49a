"""Finds the position from which the key index lacks keys of the log."""

from typing import Final

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.index.key_index import KeyIndex
from skyroute.broker.store.index.keys import Key, collect_keys
from skyroute.broker.store.recovery.damage import DamagedRange
from skyroute.broker.store.recovery.log_scan import scan_log

SCANNED_MAX: Final = 1_000
"""Records searched for one with keys; if none has keys, the index counts as complete."""


def find_gap(log: CommitLog, index: KeyIndex, stop: int) -> int:
    """Return the position of the first record that the index lacks; `stop` if it has all records before that.

    Only gaps between files are checked: a file that was removed, or dropped as damaged, leaves a gap.
    """
    reached = log.start - 1
    for file in index.files:
        if file.count > 1:
            if _has_keys(log, reached, min(file.begin, stop)):
                return max(reached, log.start)
            reached = max(reached, file.end)
    return max(reached, log.start) if _has_keys(log, reached, stop) else stop


def _has_keys(log: CommitLog, position: int, stop: int) -> bool:
    """Return whether a record that starts between two positions has keys."""
    keys: list[Key] = []
    for number, found in enumerate(scan_log(log, max(position, log.start))):
        if isinstance(found, DamagedRange):
            continue
        at, _, topic, _, _, sys_flag, stored_at_ms, raw = found
        if at >= stop or number >= SCANNED_MAX:
            return False
        if at > position:
            collect_keys(keys, topic, raw, sys_flag, at, stored_at_ms)
            if keys:
                return True
    return False
