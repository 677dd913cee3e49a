"""The messages of one queue that were pulled and are not finished, and the offset to commit.

Pure: no I/O and no clock.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from skyroute.message.message import StoredMessage


@dataclass(frozen=True, slots=True)
class BufferLimits:
    """Flow control of one queue: above any of these limits nothing is pulled."""

    messages_max: int = 1_000
    bytes_max: int = 100 * 1024 * 1024
    span_max: int | None = 2_000
    """Maximum distance from the oldest unfinished offset to the newest; None for ordered queues."""


class MessageBuffer:
    """The messages of one queue from the pull to the end of their handler.

    A message waits until it is taken; a taken message is unfinished until it is finished or put back. The offset to
    commit is never behind an unfinished message.
    """

    __slots__ = ("_unfinished", "_waiting", "bytes", "position")

    def __init__(self, start: int) -> None:
        self.position = start
        """Offset of the next pull."""
        self.bytes = 0
        self._unfinished: dict[int, StoredMessage] = {}
        """By offset, in ascending order, because pulls return them in that order."""
        self._waiting: deque[StoredMessage] = deque()

    def __repr__(self) -> str:
        counts = f"waiting={len(self._waiting)} of {self.count}"
        return f"<MessageBuffer {counts} commit={self.commit_offset} next={self.position}>"

    @property
    def count(self) -> int:
        """Number of unfinished messages."""
        return len(self._unfinished)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def commit_offset(self) -> int:
        """The offset before which all messages are finished or filtered out."""
        return next(iter(self._unfinished), self.position)

    @property
    def newest_offset(self) -> int:
        """The highest unfinished offset, or the one before `commit_offset`."""
        return next(reversed(self._unfinished), self.position - 1)

    def add(self, messages: Sequence[StoredMessage], next_offset: int) -> None:
        """Add pulled messages, and continue at `next_offset`. Messages that were added before are skipped."""
        offsets = [message.queue_offset for message in messages]
        if offsets and (offsets[0] < self.position or offsets != sorted(set(offsets))):
            # A batch in one record is returned whole, even if the pull starts in the middle of it.
            by_offset = {message.queue_offset: message for message in messages}
            messages = [by_offset[offset] for offset in sorted(by_offset) if offset >= self.position]
        self._unfinished.update({message.queue_offset: message for message in messages})
        self._waiting.extend(messages)
        self.bytes += sum([message.record_bytes for message in messages])
        reached = messages[-1].queue_offset + 1 if messages else 0
        # An offset moves back only with the pull status OFFSET_ILLEGAL, which the pull loop handles.
        self.position = max(self.position, next_offset, reached)

    def take(self, count_max: int) -> list[StoredMessage]:
        """Return the next waiting messages in order, or [].

        All have the same topic: a retry topic contains messages of several topics, each with its own handler.
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
        """Let messages wait again, before all others. Finished messages are skipped."""
        kept = [message for message in messages if message.queue_offset in self._unfinished]
        self._unfinished.update({message.queue_offset: message for message in kept})
        self._waiting.extendleft(reversed(kept))

    def finish(self, messages: Iterable[StoredMessage]) -> None:
        """Remove messages. Finished messages are skipped."""
        unfinished = self._unfinished
        for message in messages:
            done = unfinished.pop(message.queue_offset, None)
            if done is not None:
                self.bytes -= done.record_bytes

    def drop_waiting(self) -> None:
        """Return no more messages from `take`. The waiting ones stay unfinished, so that the next owner gets them."""
        self._waiting.clear()

    def is_full(self, limits: BufferLimits) -> bool:
        """Return whether flow control stops the pulls."""
        return (
            len(self._unfinished) > limits.messages_max
            or self.bytes > limits.bytes_max
            or (limits.span_max is not None and self.newest_offset - self.commit_offset > limits.span_max)
        )
