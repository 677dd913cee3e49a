"""The settings of one push consumer."""

from dataclasses import dataclass, field
from typing import Final

from skyroute.client.consuming.intervals import Intervals
from skyroute.client.consuming.push.message_buffer import BufferLimits
from skyroute.client.consuming.strategies import AVERAGE, Strategy
from skyroute.client.consuming.subscription import StartPosition
from skyroute.wire.calls.clients import MessageModel

RECONSUME_TIMES: Final = 16
"""Default number of retries before a message becomes a dead letter."""

RECONSUME_FOREVER: Final = (1 << 31) - 1
"""Default of an ordered consumer: its queue waits until the message is consumed."""


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """The checked arguments of a consumer."""

    group: str
    """With the namespace."""
    model: MessageModel = MessageModel.CLUSTERING
    ordered: bool = False
    start: StartPosition = StartPosition.LAST
    strategy: Strategy = AVERAGE
    concurrency: int = 20
    batch_size: int = 1
    pull_batch: int = 32
    reconsume_times_max: int = RECONSUME_TIMES
    consume_timeout_s: float = 900.0
    suspend_s: float = 1.0
    limits: BufferLimits = field(default_factory=BufferLimits)
    intervals: Intervals = field(default_factory=Intervals)

    @property
    def shares(self) -> bool:
        """Whether the members of the group share the queues (clustering), or each reads all (broadcasting)."""
        return self.model is MessageModel.CLUSTERING

    @property
    def locks(self) -> bool:
        """Whether a queue is consumed only while this member has its lock."""
        return self.ordered and self.shares
