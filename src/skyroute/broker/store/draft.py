"""A message to store, and where it was stored."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from skyroute.message.positions import LogPosition, QueueOffset


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message to store: a record without position, queue offset and store time, which the store assigns.

    RocketMQ: `MessageExtBrokerInner`.
    """

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
    """Log position of the half message of a committed message."""


class Appended(NamedTuple):
    """Where a message was stored."""

    log_position: LogPosition
    queue_offset: QueueOffset
    record_bytes: int
    stored_at_ms: int

    @property
    def log_end(self) -> int:
        """Once the log is flushed up to here, the message is on disk."""
        return self.log_position + self.record_bytes


class AppendedBatch(NamedTuple):
    """Where the messages of a batch were stored."""

    log_positions: list[int]
    queue_offset: int
    """Offset of the first message; the others follow."""
    log_end: int
    """As in `Appended`."""


appended_at: Callable[[int, int, int, int], Appended] = Appended  # type: ignore[assignment]  # the typed constructor costs time
"""Makes an `Appended` from plain integers: position, offset, size, time."""
