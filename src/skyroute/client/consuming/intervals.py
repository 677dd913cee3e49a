"""Intervals and delays that both consumers share."""

from dataclasses import dataclass, fields

from skyroute.client.arguments import check_times_or_zero


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals and delays of a consumer, in seconds. The defaults are those of Apache's clients.

    Examples:
        >>> consumer = Consumer("billing", intervals=Intervals(rebalance_s=5.0, commit_s=1.0))
    """

    rebalance_s: float = 20.0
    """Between two rebalances when no change is reported."""
    rebalance_retry_s: float = 1.0
    """Before the next rebalance when the last one was incomplete."""
    rebalance_gap_s: float = 0.2
    """Minimum time between two rebalances."""
    commit_s: float = 5.0
    """Between two automatic commits of offsets."""
    lock_renewal_s: float = 20.0
    """Between two renewals of the queue locks of an ordered consumer."""
    failed_pull_s: float = 1.0
    """After a failed pull."""
    flow_control_s: float = 0.02
    """After a broker refuses a pull because of flow control."""
    empty_pull_s: float = 0.01
    """After a broker responds to a long poll at once and without messages."""
    failed_send_back_s: float = 5.0
    """Before a message that no broker accepts for redelivery is handled again by this consumer."""
    takeover_delay_s: float = 0.5
    """Before reading the start offset of queues that another member had: that member commits first."""
    handover_s: float = 1.0
    """How long the handover of a queue waits for running handlers."""
    ordered_handover_s: float = 20.0
    """The same for an ordered consumer."""

    def __post_init__(self) -> None:
        for each in fields(self):
            check_times_or_zero(**{each.name: getattr(self, each.name)})
