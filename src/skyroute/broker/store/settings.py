"""Settings of a store. The defaults are Apache's; Apache's broker does not open files of other sizes."""

from dataclasses import dataclass, field
from typing import Final

from skyroute.broker.store.files.segment import open_segments_allowed

_S: Final = 1_000
_M: Final = 60 * _S
_H: Final = 60 * _M

DELAYS_MS: Final = (
    *(1 * _S, 5 * _S, 10 * _S, 30 * _S),
    *(minutes * _M for minutes in range(1, 11)),
    *(20 * _M, 30 * _M, 1 * _H, 2 * _H),
)
"""The delay of each delay level; the first is level 1."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Sizes, limits and policies."""

    log_segment_bytes: int = 1 << 30
    queue_segment_units: int = 300_000
    batch_segment_units: int = 300_000
    """As above, for batch queues."""
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    index_enabled: bool = True
    index_process: bool = True
    """Under load, a separate process writes the index, if there is a second processor."""
    index_process_after: int = 16
    """Number of full backlogs with keys in a row after which the index moves to its own process."""
    delays_ms: tuple[int, ...] = DELAYS_MS
    sync_flush: bool = False
    """Readers see only records that are on disk; the caller flushes before it responds to a send."""
    reserved_ms: int = 72 * _H
    """Minimum time that messages are kept, unless the disk is full."""
    disk_used_max: float = 0.75
    """Above this use of the disk, expired messages are removed at any hour of the day."""
    disk_used_urgent: float = 0.85
    """Above this use of the disk, the oldest messages are removed, expired or not."""
    disk_used_refuse: float = 0.90
    """Above this use of the disk, appends are refused."""
    expired_segments_max: int = 10
    """Maximum number of segments of the log that one call removes."""
    open_segments_max: int = field(default_factory=open_segments_allowed)
    """Maximum number of open files of log and queues; the others are reopened when they are used."""
