"""Builds queues and index from bytes that another broker's log sends, once their records are whole.

The bytes come cut anywhere. A record whose end is missing waits for the next bytes. Damage of the other broker's log is
skipped as recovery does.
"""

import logging
from struct import Struct
from typing import Final

from skyroute.broker.store.commit_log import CommitLog, ScannedTuple, scan_segment
from skyroute.broker.store.dispatch import BACKLOG_MAX, LONG_PROPERTIES_BYTES, NOT_IN_QUEUE, Dispatcher
from skyroute.broker.store.errors import ForeignLogError
from skyroute.broker.store.files.segment import Segment
from skyroute.broker.store.queues.queue_table import QueueTable
from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.broker.store.recovery.log_scan import find_next_record, inspect, read_record
from skyroute.message.errors import InvalidNameError
from skyroute.message.flags import INNER_BATCH
from skyroute.message.layout import MAGIC_SEGMENT_END, MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, SEGMENT_END_BYTES

logger = logging.getLogger(__name__)

RECORDS_A_STEP: Final = 1_000
"""Records that one step dispatches, which takes a few milliseconds."""
SEARCH_BYTES: Final = 1 << 20
"""Bytes that have to arrive behind a damaged header before the next search for a record."""

DISPATCHED_MAPPED_MAX: Final = 16 << 20
"""Mapped bytes of dispatched records after which their pages are released."""

_WORDS: Final = Struct(">iI")


class ReplicatedLog:
    """Dispatches the records of a slave's log. `position` is behind the last one."""

    def __init__(self, log: CommitLog, queues: QueueTable, dispatcher: Dispatcher, position: int) -> None:
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self.position = position
        self.stored_ms = 0
        """Store time of the newest dispatched record."""
        self._search_at = 0
        """End of the log at which the search behind a damaged header is repeated."""
        self._topics: dict[bytes, str] = {}
        self._mapped_bytes = 0

    def step(self) -> tuple[dict[tuple[str, int], None], bool]:
        """Dispatch up to `RECORDS_A_STEP` records; return the queues with new messages, and whether to call again.

        Raises:
            ForeignLogError: the other broker's log has files of another size.
        """
        arrived: dict[tuple[str, int], None] = {}
        left = RECORDS_A_STEP
        while self.position < self._log.end:
            segment = self._log.find(self.position)
            assert segment is not None, "the log has no hole behind its dispatched records"
            begin, records = self.position, scan_segment(segment, self.position, self._topics, self._log.end)
            is_over = False
            while True:
                try:
                    found = next(records)
                except StopIteration as end:
                    self.position, is_over = end.value
                    break
                self._add(found, arrived)
                self.position = found[0] + found[1]
                left -= 1
                if not left:
                    break
            self._mapped_bytes += self.position - begin
            if is_over or self._mapped_bytes > DISPATCHED_MAPPED_MAX:
                self._mapped_bytes = 0
                segment.release_memory()
            if not left:
                return arrived, True
            if not (self._end_segment(segment) if is_over else self._skip_damage(segment)):
                break
        return arrived, False

    def _end_segment(self, segment: Segment) -> bool:
        if self._log.end < segment.stop:
            return False  # the rest of the file is on its way
        self.position = segment.stop
        return True

    def _skip_damage(self, segment: Segment) -> bool:
        """Return whether the next record was found; otherwise bytes are missing."""
        at, end = self.position - segment.start, min(self._log.end, segment.stop) - segment.start
        if end - at >= SEGMENT_END_BYTES:
            size, magic = _WORDS.unpack_from(segment.content, at)
            is_record = magic in (MAGIC_V1, MAGIC_V2) and size >= RECORD_BYTES_MIN
            if (is_record and at + size > segment.size) or magic == MAGIC_SEGMENT_END:
                raise ForeignLogError(
                    f"the master's log has no file of {segment.size} bytes at {segment.start}: "
                    f"a record or end mark of {size} bytes is at {self.position}; "
                    "set mappedFileSizeCommitLog to the master's value and start with an empty store"
                )
            if is_record and at + size > end:
                return False
            if self._log.end < segment.stop and self._log.end < self._search_at:
                return False
            damaged = inspect(segment, self.position)
            following = find_next_record(segment, self.position) if damaged is None else damaged.end
            if following is not None and following <= self._log.end:
                logger.warning("damaged record received position=%d bytes=%d", self.position, following - self.position)
                self.position = following
                return True
            # Twice as far each time: a master that sends no record would have all of it searched again and again.
            self._search_at = self._log.end + max(SEARCH_BYTES, self._log.end - self.position)
        if self._log.end < segment.stop:
            return False
        logger.warning(
            "damaged end of a file received position=%d bytes=%d", self.position, segment.stop - self.position
        )
        self.position = segment.stop
        return True

    def skip_to_next_record(self) -> bool:
        """Skip what holds up the dispatch, if an intact record is behind it; the rest of the log will not come."""
        for segment in self._log.segments:
            if segment.stop <= self.position:
                continue
            at = max(self.position, segment.start)
            is_next = at > self.position and read_record(segment, at) is not None
            following = at if is_next else find_next_record(segment, at)
            if following is not None and following < self._log.end:
                logger.warning("damaged record received position=%d bytes=%d", self.position, following - self.position)
                self.position = following
                return True
        return False

    def _add(self, found: ScannedTuple, arrived: dict[tuple[str, int], None]) -> None:
        position, size, topic, queue_id, offset, sys_flag, stored_at_ms, raw = found
        self.stored_ms = stored_at_ms
        try:
            queue = self._queues.by_key.get((topic, queue_id)) or self._create(topic, queue_id, sys_flag)
        except InvalidNameError:
            return  # as in recovery: the record stays in the log, in no queue
        dispatcher = self._dispatcher
        if not sys_flag & NOT_IN_QUEUE:
            if offset != queue.next_offset:
                dispatcher.write_up_to(None)
                if not queue.accept_gap(offset, position):
                    logger.warning(
                        "record with an unexpected offset in no queue topic=%s queue=%d offset=%d expected=%d",
                        *(topic, queue_id, offset, queue.next_offset),
                    )
                    dispatcher.add_keys((queue, offset, position, size, raw, sys_flag, stored_at_ms))
                    return
            queue.advance(offset + (queue.messages_in(raw) if sys_flag & INNER_BATCH else 1))
            arrived[topic, queue_id] = None
        dispatcher.pending.append((queue, offset, position, size, raw, sys_flag, stored_at_ms))
        if len(dispatcher.pending) > BACKLOG_MAX or (
            len(raw) > LONG_PROPERTIES_BYTES and dispatcher.count_bytes(len(raw))
        ):
            dispatcher.write_backlog()

    def _create(self, topic: str, queue_id: int, sys_flag: int) -> TopicQueue:
        if sys_flag & INNER_BATCH and not self._queues.has_topic(topic):
            self._queues.make_batch_folder(topic)  # the topic's settings may arrive later than its messages
        return self._queues.find_or_create(topic, queue_id)
