"""What a consumer was told when it was made, and how often it does what it does by itself."""

from dataclasses import dataclass, field, fields
from typing import Final

from skyroute.client.arguments import check_times_or_none_at_all
from skyroute.client.consuming.push.backlog import BacklogLimits
from skyroute.client.consuming.rebalance import AVERAGE, Strategy
from skyroute.client.consuming.subscription import StartPosition
from skyroute.wire.calls.clients import MessageModel

RECONSUME_TIMES: Final = 16
"""How often a message is given again before it goes to the dead letters, unless the consumer says otherwise."""

RECONSUME_FOREVER: Final = (1 << 31) - 1
"""What an ordered consumer says that was told nothing: its queue waits for as long as it takes."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """How often, and how soon again. The numbers are those of Apache's clients; few have a reason to change them."""

    rebalance_s: float = 20.0
    unbalanced_s: float = 1.0
    """The next try to get the queues that are ours."""
    rebalance_gap_s: float = 0.2
    """Between two rounds, however many news there are."""
    persist_s: float = 5.0
    lock_s: float = 20.0
    failed_pull_s: float = 1.0
    busy_pull_s: float = 0.02
    """After the broker has asked for patience."""
    empty_pull_s: float = 0.01
    """After a broker that was to wait for a message said at once that there is none."""
    failed_send_back_s: float = 5.0
    """After no broker could be told to deliver a message again: it is then tried again here."""
    settle_s: float = 0.5
    """Before asking where to begin with queues that were another member's: it needs a moment to say how far it came."""
    handover_s: float = 1.0
    """How long a queue that another member gets waits for handlers that are at work on it."""
    ordered_handover_s: float = 20.0

    def __post_init__(self) -> None:
        for each in fields(self):
            check_times_or_none_at_all(**{each.name: getattr(self, each.name)})


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """What a consumer was told, with names as brokers know them."""

    group: str
    """With the namespace, if there is one."""
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
    limits: BacklogLimits = field(default_factory=BacklogLimits)
    pace: Intervals = field(default_factory=Intervals)

    @property
    def shares(self) -> bool:
        """Whether the members of the group share the queues out."""
        return self.model is MessageModel.CLUSTERING

    @property
    def locks(self) -> bool:
        """Whether a queue is consumed only while a broker says that it is ours alone."""
        return self.ordered and self.shares
