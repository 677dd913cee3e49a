"""From where on the key index lacks keys that the log has."""

from typing import Final

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.damage import DamagedRange
from skyroute.broker.store.key_index import KeyIndex
from skyroute.broker.store.keys import Key, keep_keys
from skyroute.broker.store.log_scan import scan_log

SCANNED_MAX: Final = 1_000
"""Number of records that are looked at for one with keys; where none has any, the index is taken for whole."""


def find_gap(log: CommitLog, index: KeyIndex, stop: int) -> int:
    """Return the position of the first record whose keys are in no file of the index; `stop` where all before it are.

    Only what lies between files is looked at: a file that was removed, or is not sound and was dropped, leaves a gap.
    """
    reached = log.start - 1
    for file in index.files:
        if file.count > 1:
            first = _next_with_keys(log, reached, min(file.begin, stop))
            if first is not None:
                return max(reached, log.start)
            reached = max(reached, file.end)
    return stop if _next_with_keys(log, reached, stop) is None else max(reached, log.start)


def _next_with_keys(log: CommitLog, position: int, stop: int) -> int | None:
    """Return the first record with keys behind the one at a position, and before another; None where there is none."""
    keys: list[Key] = []
    start = max(position, log.start)
    if start >= stop or not log.segments:
        return None
    for number, found in enumerate(scan_log(log, start)):
        if isinstance(found, DamagedRange):
            continue
        at, _, topic, _, _, sys_flag, stored_at_ms, raw = found
        if at >= stop or number >= SCANNED_MAX:
            return None
        if at > position:
            keep_keys(keys, topic, raw, sys_flag, at, stored_at_ms)
            if keys:
                return at
    return None
