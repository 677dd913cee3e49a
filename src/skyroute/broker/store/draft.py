"""A message on its way into the store, and where it came to lie."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from skyroute.message.positions import LogPosition, QueueOffset


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message that is to be stored: all that a record holds, but for what the store itself gives."""

    topic: str
    queue_id: int
    body: bytes
    raw_properties: bytes
    born_at_ms: int
    raw_born_host: bytes
    raw_store_host: bytes
    sys_flag: int = 0
    flag: int = 0
    reconsume_times: int = 0
    prepared_position: int = 0
    """Of a committed message, where its half stands in the log."""


class Appended(NamedTuple):
    """Where a message was stored."""

    log_position: LogPosition
    queue_offset: QueueOffset
    record_bytes: int
    stored_at_ms: int

    @property
    def log_end(self) -> int:
        """Once the log is flushed up to here, the message is on the disk."""
        return self.log_position + self.record_bytes


class AppendedBatch(NamedTuple):
    """Where messages were stored that stay together."""

    log_positions: list[int]
    queue_offset: int
    """Of the first; the others follow."""
    log_end: int
    """As of one message."""


appended_at: Callable[[int, int, int, int], Appended] = Appended  # type: ignore[assignment]  # naming numbers costs time
"""Makes one of plain numbers: position, offset, size, time."""
