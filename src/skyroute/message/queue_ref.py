"""The address of one queue of a topic."""

from dataclasses import dataclass
from functools import total_ordering


@total_ordering
@dataclass(frozen=True, slots=True)
class QueueRef:
    """One queue of a topic on one broker group.

    Examples:
        >>> str(QueueRef("Orders", "broker-a", 3))
        'Orders@broker-a:3'

    Queues sort as Apache's clients sort them: all members of a consumer group share queues out by their rank, so every
    member has to see the same order.
    """

    topic: str
    broker_name: str
    queue_id: int

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, QueueRef):
            return NotImplemented
        return self._rank() < other._rank()

    def _rank(self) -> tuple[bytes, bytes, int]:
        # Java compares UTF-16 code units, which sorts characters above U+FFFF before some below.
        return (
            self.topic.encode("utf-16-be", "surrogatepass"),
            self.broker_name.encode("utf-16-be", "surrogatepass"),
            self.queue_id,
        )

    def __str__(self) -> str:
        return f"{self.topic}@{self.broker_name}:{self.queue_id}"

    @property
    def ring_text(self) -> str:
        """The text that Apache's consistent hashing uses for a queue."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"
