"""How a store is set up. The defaults are Apache's, and files of other sizes do not open there."""

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
"""How long a message of each delay level waits; the first is level 1."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Sizes, limits and policies."""

    log_segment_bytes: int = 1 << 30
    queue_segment_units: int = 300_000
    batch_segment_units: int = 300_000
    """As above, for queues that keep batches whole."""
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    index_enabled: bool = True
    index_process: bool = True
    """Once there is much to do, and a second processor to do it, a process of its own writes the index."""
    index_process_after: int = 16
    """So many backlogs, and nobody who looks for one after a while, are much to do."""
    delays_ms: tuple[int, ...] = DELAYS_MS
    sync_flush: bool = False
    """Readers are shown only what is on the disk; the caller flushes before it answers."""
    reserved_ms: int = 72 * _H
    """How long messages are kept at least, if the disk allows."""
    disk_used_max: float = 0.75
    """From here on, what is too old goes at any hour of the day."""
    disk_used_urgent: float = 0.85
    """From here on, the oldest goes, however young it is."""
    disk_used_refuse: float = 0.90
    """From here on, nothing more is stored."""
    expired_segments_max: int = 10
    """How many segments go at once."""
    open_segments_max: int = field(default_factory=open_segments_allowed)
    """How many files of the log and of queues are open at once. Others are opened again when they are used."""
