"""The messages of many queues in one order, the newest first, a page at a time.

A page goes on where the one before it ended. That place is a moment and a message, which are enough to find every
queue's own place again, however many queues there are. Only the beginnings of bodies are kept.
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, NamedTuple

from skyroute.client.admin import Admin
from skyroute.client.admin.base import Failures, call_each
from skyroute.client.admin.messages import PULL_BATCH
from skyroute.console.cluster_data.body_preview import harmless, preview
from skyroute.console.errors import ConsoleError
from skyroute.console.pages.page_context import ROWS
from skyroute.errors import SkyrouteError
from skyroute.message import property_names as names
from skyroute.message.flags import COMPRESSED
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import group_of

QUEUES_MAX: Final = 256
"""Queues that one page looks at."""
READ_BYTES_MAX: Final = 256 * 1024 * 1024
"""Once a page has read so much it ends, be it full or not."""
LARGE_BYTES: Final = 64 * 1024
"""Where records are larger, they are read one at a time."""
EMPTY_READS_MAX: Final = 32
"""Reads of one queue that find nothing, before it is given up for this page: most of it is gone."""
PREVIEWED_BYTES_MAX: Final = 64 * 1024
"""Larger bodies, if they are compressed, are not unpacked for a list."""


class Place(NamedTuple):
    """Where a message is. Places sort by time, and in the same millisecond by queue and offset."""

    stored_at_ms: int
    broker_name: str
    queue_id: int
    offset: int

    def __str__(self) -> str:
        return f"{self.stored_at_ms}.{self.queue_id}.{self.offset}.{self.broker_name}"


def read_place(text: str) -> Place:
    """Read a place as it stands in an address.

    Raises:
        ConsoleError: it is none.
    """
    try:
        stored_at_ms, queue_id, offset, broker_name = text.split(".", 3)
        return Place(int(stored_at_ms), broker_name, int(queue_id), int(offset))
    except ValueError:
        raise ConsoleError(f"{text[:100]!r} is no place of a message: go back to the list, and follow a link") from None


@dataclass(frozen=True, slots=True)
class Row:
    """What a list shows of a message."""

    topic: str
    message_id: str
    place: Place
    tag: str
    keys: str
    body_bytes: int
    """As it is stored, which may be compressed."""
    preview: str
    reconsume_times: int
    origin: str
    """The topic that it was first sent to."""


def row_of(message: StoredMessage) -> Row:
    """Return what a list shows of a message."""
    stored = message.stored_body
    try:
        large = message.sys_flag & COMPRESSED and len(stored) > PREVIEWED_BYTES_MAX
        text = "" if large else preview(message.body)
    except SkyrouteError:  # the message's own page says why it cannot be unpacked
        text = ""
    place = Place(message.stored_at_ms, message.broker_name, message.queue_id, message.queue_offset)
    return Row(
        message.topic,
        message.message_id,
        place,
        harmless(message.tag or ""),
        harmless(" ".join(message.keys)),
        len(stored),
        text,
        message.reconsume_times,
        origin_of(message),
    )


def origin_of(message: StoredMessage) -> str:
    """Return the topic that a message was sent to, before it was held back, tried again or given up."""
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
    """About how many there are, with these, from here back to the beginning."""
    older: Place | None
    """Where the next page goes on."""
    is_cut: bool
    """Whether the page ends because `READ_BYTES_MAX` were read."""
    queues: int
    """How many there are; the first `QUEUES_MAX` were looked at."""
    failures: Failures
    """Brokers not all of whose queues could be read, and why, by their names."""
    queues_max: int = QUEUES_MAX
    read_bytes_max: int = READ_BYTES_MAX


async def newest_first(
    admin: Admin,
    queues: Sequence[QueueRef],
    begin_ms: int | None = None,
    end_ms: int | None = None,
    before: Place | None = None,
) -> Found:
    """Return the messages of some queues that were stored from one time on and before another, the newest first.

    Raises:
        SkyrouteError: not one of the queues can be read.
    """
    by_name = {str(queue): _Tail(admin, queue, begin_ms, end_ms, before) for queue in queues[:QUEUES_MAX]}
    at_once = min(PULL_BATCH, -(-2 * ROWS // max(1, len(by_name))))

    failures: dict[str, SkyrouteError] = {}

    async def begin(name: str) -> int:
        broker = by_name[name].queue.broker_name
        if broker in failures:  # it need not be waited for again, queue after queue
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
    while len(rows) < ROWS and (ready := [tail for tail in tails if tail.rows]):
        last = max(ready, key=lambda tail: tail.rows[-1].place)
        rows.append(last.rows.pop())
        if not last.rows and last.is_more:
            if is_cut := sum(tail.read_bytes for tail in tails) > READ_BYTES_MAX:
                break
            try:
                await last.read(at_once)
            except SkyrouteError as error:
                failures.setdefault(last.queue.broker_name, error)
                tails.remove(last)
    older = rows[-1].place if rows and any(tail.rows or tail.is_more for tail in tails) else None
    return Found(rows, sum(counts.values()), older, is_cut, len(queues), failures)


class _Tail:
    """The end of a queue, read backwards."""

    def __init__(
        self, admin: Admin, queue: QueueRef, begin_ms: int | None, end_ms: int | None, before: Place | None
    ) -> None:
        self.queue = queue
        self.rows: list[Row] = []
        """Read and not given out, the newest last."""
        self.read_bytes = 0
        self._admin = admin
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._before = before
        self._begin = self._end = 0
        self._record_bytes = 0
        """Of the largest record of those read last."""

    @property
    def is_more(self) -> bool:
        return self._begin < self._end

    async def begin(self, count: int) -> int:
        """Find where to read, and read the first messages; return about how many there are."""
        queue, before, end_ms = self.queue, self._before, self._end_ms
        if before is not None:
            # In the moment of the last message, those of earlier queues are still to come.
            comes_later = (queue.broker_name, queue.queue_id) < (before.broker_name, before.queue_id)
            end_ms = before.stored_at_ms + comes_later
        # Brokers before 5.0 answer with any message of the millisecond, or with the nearest one: a little more is read
        # on both sides, and what does not belong is left out.
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
        """Read backwards until there is something.

        Raises:
            ConsoleError: there are only gaps.
            ClientError, RemotingError: it cannot be read now.
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
                        self._begin = start  # whatever is before it is older still
            self._end = start
            self.rows[:0] = found
            if found:
                return
            empty += self.read_bytes == read_before
            count = PULL_BATCH
        if self.is_more:
            raise ConsoleError(f"there are only gaps before the offset {self._end + empty * PULL_BATCH}")

    def _wants(self, message: StoredMessage) -> bool:
        at_ms = message.stored_at_ms
        place = Place(at_ms, self.queue.broker_name, self.queue.queue_id, message.queue_offset)
        return (
            (self._begin_ms is None or at_ms >= self._begin_ms)
            and (self._end_ms is None or at_ms < self._end_ms)
            and (self._before is None or place < self._before)
        )
