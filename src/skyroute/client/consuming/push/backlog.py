"""What of one queue was fetched and is not finished yet, and how far the group has come with the queue.

Pure: who fetches, who handles and when is for others to say.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skyroute.message.message import StoredMessage


@dataclass(frozen=True, slots=True)
class BacklogLimits:
    """How much of one queue is kept at hand; beyond any of these nothing more is fetched."""

    messages_max: int = 1_000
    bytes_max: int = 100 * 1024 * 1024
    span_max: int | None = 2_000
    """How far the newest may be ahead of the oldest that is not finished; None in ordered queues, where none is."""


class Backlog:
    """The messages of one queue from being fetched to being finished.

    A message waits until it is taken, and is then in somebody's hands until it is finished or put back. The offset to
    commit never lies beyond a message that is not finished, whether it waits or is in somebody's hands.
    """

    __slots__ = ("_unfinished", "_waiting", "bytes", "position")

    def __init__(self, start: int) -> None:
        self.position = start
        """From where to fetch next."""
        self.bytes = 0
        self._unfinished: dict[int, StoredMessage] = {}
        """By offset; in the order of offsets, because that is how they come."""
        self._waiting: deque[StoredMessage] = deque()

    def __repr__(self) -> str:
        return (
            f"<Backlog waiting={len(self._waiting)} of {self.count} commit={self.commit_offset} next={self.position}>"
        )

    @property
    def count(self) -> int:
        """How many are not finished."""
        return len(self._unfinished)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def commit_offset(self) -> int:
        """Everything before this offset is finished, or was not wanted."""
        return next(iter(self._unfinished), self.position)

    @property
    def newest_offset(self) -> int:
        """The highest offset that is not finished, or the one before `commit_offset`."""
        return next(reversed(self._unfinished), self.position - 1)

    def add(self, messages: Sequence[StoredMessage], next_offset: int) -> None:
        """Take in what a fetch brought, and go on from `next_offset`. What was brought before is passed over."""
        offsets = [message.queue_offset for message in messages]
        if offsets and (offsets[0] < self.position or offsets != sorted(offsets)):
            # A batch that is one record is brought whole, also where only its second half was asked for.
            messages = sorted((m for m in messages if m.queue_offset >= self.position), key=lambda m: m.queue_offset)
        self._unfinished.update({message.queue_offset: message for message in messages})
        self._waiting.extend(messages)
        self.bytes += sum([message.record_bytes for message in messages])
        reached = messages[-1].queue_offset + 1 if messages else 0
        # A broker that goes back says so in another way: with an answer that the offset is illegal.
        self.position = max(self.position, next_offset, reached)

    def take(self, count_max: int) -> list[StoredMessage]:
        """Return the next that wait, in their order; none if none does.

        All have the same topic: what a group tries again may come from several, with a handler each.
        """
        waiting = self._waiting
        if not waiting:
            return []
        first = waiting.popleft()
        taken = [first]
        while len(taken) < count_max and waiting and waiting[0].topic == first.topic:
            taken.append(waiting.popleft())
        return taken

    def put_back(self, messages: Iterable[StoredMessage]) -> None:
        """Let these wait again, before all others; those that were finished meanwhile do not."""
        kept = [message for message in messages if message.queue_offset in self._unfinished]
        self._unfinished.update({message.queue_offset: message for message in kept})
        self._waiting.extendleft(reversed(kept))

    def holds(self, message: StoredMessage) -> bool:
        """Return whether a message is not finished."""
        return message.queue_offset in self._unfinished

    def finish(self, messages: Iterable[StoredMessage]) -> None:
        """Be done with these; with those that were finished before, nothing happens."""
        unfinished = self._unfinished
        for message in messages:
            done = unfinished.pop(message.queue_offset, None)
            if done is not None:
                self.bytes -= done.record_bytes

    def drop_waiting(self) -> None:
        """Give none out any more. They stay unfinished, so that whoever has the queue next gets them."""
        self._waiting.clear()

    def is_full(self, limits: BacklogLimits) -> bool:
        """Return whether nothing more is to be fetched for now."""
        return (
            len(self._unfinished) > limits.messages_max
            or self.bytes > limits.bytes_max
            or (limits.span_max is not None and self.newest_offset - self.commit_offset > limits.span_max)
        )
