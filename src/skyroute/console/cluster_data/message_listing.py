"""Lists the messages of many queues, newest first, one page at a time.

A page continues where the one before it ended. That position has a time and a message, which are enough to find the
position in every queue again. Only the beginnings of bodies are kept.
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, NamedTuple

from skyroute.client.admin import Admin
from skyroute.client.admin.base import Failures, call_each
from skyroute.client.admin.messages import PULL_BATCH
from skyroute.console.cluster_data.body_preview import escape_invisible, preview
from skyroute.console.config import ROWS_A_PAGE
from skyroute.console.errors import ConsoleError
from skyroute.errors import SkyrouteError
from skyroute.message import property_names as names
from skyroute.message.flags import COMPRESSED
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import group_of

QUEUES_MAX: Final = 256
"""Queues that one page reads."""
READ_BYTES_MAX: Final = 256 * 1024 * 1024
"""A page ends after reading this much, full or not."""
LARGE_BYTES: Final = 64 * 1024
"""Larger records are read one at a time."""
EMPTY_READS_MAX: Final = 32
"""Reads of one queue without a message before the page gives up: most of the queue is deleted."""
PREVIEWED_BYTES_MAX: Final = 64 * 1024
"""Larger compressed bodies are not decompressed for a list."""


class Position(NamedTuple):
    """The position of a message. Positions sort by time, and in the same millisecond by queue and offset."""

    stored_at_ms: int
    broker_name: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.stored_at_ms}.{self.queue_id}.{self.offset}.{self.broker_name}"


def parse_position(text: str) -> Position:
    """Read a position from an address.

    Raises:
        ConsoleError: it is not a position.
    """
    try:
        stored_at_ms, queue_id, offset, broker_name = text.split(".", 3)
        return Position(int(stored_at_ms), broker_name, int(queue_id), int(offset))
    except ValueError:
        raise ConsoleError(f"{text[:100]!r} is not a message position: go back to the list and follow a link") from None


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a list."""

    topic: str
    message_id: str
    position: Position
    tag: str
    keys: str
    body_bytes: int
    """Stored size, which may be compressed."""
    preview: str
    reconsume_times: int
    origin: str
    """The original topic."""


def row_of(message: StoredMessage) -> Row:
    """Return the row of a message."""
    stored = message.stored_body
    try:
        large = message.sys_flag & COMPRESSED and len(stored) > PREVIEWED_BYTES_MAX
        text = "" if large else preview(message.body)
    except SkyrouteError:  # the message's page shows the error
        text = ""
    position = Position(message.stored_at_ms, message.broker_name, message.queue_id, message.queue_offset)
    return Row(
        message.topic,
        message.message_id,
        position,
        escape_invisible(message.tag or ""),
        escape_invisible(" ".join(message.keys)),
        len(stored),
        text,
        message.reconsume_times,
        origin_of(message),
    )


def origin_of(message: StoredMessage) -> str:
    """Return the topic a message was sent to before it was delayed, retried or moved to a dead-letter queue."""
    for name in (names.RETRY_TOPIC, names.DLQ_ORIGIN_TOPIC, names.REAL_TOPIC):
        topic = message.find_property(name)
        if topic and group_of(topic) is None:
            return topic
    return message.topic


@dataclass(frozen=True, slots=True)
class Found:
    """One page of messages."""

    rows: Sequence[Row]
    count: int
    """Approximate number of messages from here to the oldest one."""
    older: Position | None
    """Where the next page continues."""
    is_cut: bool
    """Whether the page ends because of `READ_BYTES_MAX`."""
    queues: int
    """Number of queues; the first `QUEUES_MAX` were read."""
    failures: Failures
    """Errors of brokers some of whose queues could not be read, by broker name."""
    queues_max: int = QUEUES_MAX
    read_bytes_max: int = READ_BYTES_MAX


async def newest_first(
    admin: Admin,
    queues: Sequence[QueueRef],
    begin_ms: int | None = None,
    end_ms: int | None = None,
    before: Position | None = None,
) -> Found:
    """Return the messages of some queues stored since `begin_ms` and before `end_ms`, newest first.

    Raises:
        SkyrouteError: none of the queues can be read.
    """
    by_name = {str(queue): _QueueTail(admin, queue, begin_ms, end_ms, before) for queue in queues[:QUEUES_MAX]}
    at_once = min(PULL_BATCH, -(-2 * ROWS_A_PAGE // max(1, len(by_name))))

    failures: dict[str, SkyrouteError] = {}

    async def begin(name: str) -> int:
        broker = by_name[name].queue.broker_name
        if broker in failures:  # do not wait for it again for every queue
            raise failures[broker]
        try:
            return await by_name[name].begin(at_once)
        except SkyrouteError as error:
            failures.setdefault(broker, error)
            raise

    counts, _ = await call_each(by_name, begin)
    tails = [by_name[name] for name in counts]
    rows: list[Row] = []
    is_cut = False
    while len(rows) < ROWS_A_PAGE and (ready := [tail for tail in tails if tail.rows]):
        last = max(ready, key=lambda tail: tail.rows[-1].position)
        rows.append(last.rows.pop())
        if not last.rows and last.is_more:
            if is_cut := sum(tail.read_bytes for tail in tails) > READ_BYTES_MAX:
                break
            try:
                await last.read(at_once)
            except SkyrouteError as error:
                failures.setdefault(last.queue.broker_name, error)
                tails.remove(last)
    older = rows[-1].position if rows and any(tail.rows or tail.is_more for tail in tails) else None
    return Found(rows, sum(counts.values()), older, is_cut, len(queues), failures)


class _QueueTail:
    """Reads a queue backwards."""

    def __init__(
        self, admin: Admin, queue: QueueRef, begin_ms: int | None, end_ms: int | None, before: Position | None
    ) -> None:
        self.queue = queue
        self.rows: list[Row] = []
        """Read and not returned yet, the newest last."""
        self.read_bytes = 0
        self._admin = admin
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._before = before
        self._begin = self._end = 0
        self._record_bytes = 0
        """Size of the largest record of the last read."""

    @property
    def is_more(self) -> bool:
        return self._begin < self._end

    async def begin(self, count: int) -> int:
        """Find the offsets to read, and read the first messages; return the approximate number of messages."""
        queue, before, end_ms = self.queue, self._before, self._end_ms
        if before is not None:
            # In the millisecond of the last message, messages of earlier queues are still to come.
            comes_later = (queue.broker_name, queue.queue_id) < (before.broker_name, before.queue_id)
            end_ms = before.stored_at_ms + comes_later
        # Brokers before 5.0 return any message of the millisecond, or the nearest one: read a little more on both
        # sides, and skip what does not match.
        begin_ms = None if self._begin_ms is None else max(0, self._begin_ms - 1)
        begin, end = await self._admin.span(queue, begin_ms, end_ms)
        self._begin, self._end = begin, end + (end_ms is not None)
        if before is not None and (queue.broker_name, queue.queue_id) == (before.broker_name, before.queue_id):
            self._end = end = before.offset
        if self.is_more:
            await self.read(1)
        if self.is_more and count > 1 and self._record_bytes <= LARGE_BYTES:
            await self.read(count - 1)
        return max(0, end - begin)

    async def read(self, count: int) -> None:
        """Read backwards until a message matches.

        Raises:
            ConsoleError: `EMPTY_READS_MAX` reads found no message.
            ClientError, RemotingError: the queue cannot be read.
        """
        empty = 0
        while self.is_more and empty < EMPTY_READS_MAX:
            start = max(self._begin, self._end - (count if self._record_bytes <= LARGE_BYTES else 1))
            found: list[Row] = []
            read_before = self.read_bytes
            async with aclosing(self._admin.read(self.queue, start, self._end)) as parts:
                async for messages in parts:
                    self._record_bytes = max(message.record_bytes for message in messages)
                    self.read_bytes += sum(message.record_bytes for message in messages)
                    found += [row_of(each) for each in messages if each.queue_offset >= start and self._wants(each)]
                    if self._begin_ms is not None and messages[0].stored_at_ms < self._begin_ms:
                        self._begin = start  # all before it are older
            self._end = start
            self.rows[:0] = found
            if found:
                return
            empty += self.read_bytes == read_before
            count = PULL_BATCH
        if self.is_more:
            raise ConsoleError(f"no messages below offset {self._end + empty * PULL_BATCH}: they may be deleted")

    def _wants(self, message: StoredMessage) -> bool:
        at_ms = message.stored_at_ms
        position = Position(at_ms, self.queue.broker_name, self.queue.queue_id, message.queue_offset)
        return (
            (self._begin_ms is None or at_ms >= self._begin_ms)
            and (self._end_ms is None or at_ms < self._end_ms)
            and (self._before is None or position < self._before)
        )
