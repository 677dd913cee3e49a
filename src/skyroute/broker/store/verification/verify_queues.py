"""Checks the queues of a store against its log.

Each record of the log names its queue and offset. While the log is scanned, the unit there is compared. Afterwards each
queue is read from its first unit to its last, for units without a record.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from skyroute.broker.store.commit_log import ScannedTuple
from skyroute.broker.store.dispatch import NOT_IN_QUEUE, unit_code
from skyroute.broker.store.files.read_only import segments_in
from skyroute.broker.store.files.segment import OpenSegments, Segment
from skyroute.broker.store.queues.batch_queue import BatchQueue, messages_in_batch
from skyroute.broker.store.queues.consume_queue import ConsumeQueue
from skyroute.broker.store.queues.queue_ledger import KnownQueues
from skyroute.broker.store.queues.unit_rows import NO_MESSAGE_BYTES, UNIT
from skyroute.broker.store.settings import DELAYS_MS
from skyroute.broker.store.verification.findings import Report
from skyroute.message.flags import INNER_BATCH
from skyroute.message.reserved_topics import SCHEDULE_TOPIC

BAD_UNITS_MAX: Final = 100
"""Number of bad units listed per queue; further ones are only counted."""

WITHOUT_UNIT_MAX: Final = 10_000
"""Number of records without a unit that are listed."""

_READ_BYTES: Final = 1 << 16
_BATCH_UNIT: Final = Struct(">qiqqqh")
"""A unit of a batch queue up to the number of messages; the rest is for compacted topics."""
_EXT_ADDRESS_MAX: Final = -(1 << 31) - 1
"""Maximum of the filter bitmap address that Apache's broker may store in place of a tag code."""

_COST: Final = "readers miss some messages of this queue, or get others; the log still has them"
_ADVICE: Final = "the broker rebuilds what it finds damaged at its next start; skyroute store repair rebuilds all of it"

HasRecord = Callable[[int, int, str, int, int], bool]
"""Whether the log has an intact record with this position, size, topic, queue id and offset."""


class KnownLog(NamedTuple):
    """What is known of a log before it is scanned."""

    start: int
    """The position of its oldest byte."""
    derived_end: int | None
    """Position from which units and keys may be missing after a crash; None after a clean stop."""
    ledger: KnownQueues | None
    """The queues in the ledger; None without an up-to-date ledger."""


class _Queue:
    """One queue: its files, and the results so far."""

    __slots__ = ("bad", "bad_count", "is_batch", "last_offset", "matched", "pending", "row", "segments", "unit_bytes")

    def __init__(self, segments: list[Segment], *, is_batch: bool) -> None:
        self.segments = segments
        self.is_batch = is_batch
        self.unit_bytes = BatchQueue.unit_bytes if is_batch else ConsumeQueue.unit_bytes
        self.matched = 0
        self.bad: dict[int, str] = {}
        """Damage by row."""
        self.bad_count = 0
        self.pending = 0
        """Records at the end of the log that have no unit yet, because the broker did not stop cleanly."""
        self.last_offset = -1
        self.row = -1
        """The next row of a batch queue to compare."""

    def unit(self, row: int) -> bytes:
        """Return a unit; nothing if no file has it."""
        at = row * self.unit_bytes
        number = bisect_right(self.segments, at, key=_start_of) - 1
        if number < 0 or at + self.unit_bytes > self.segments[number].stop:
            return b""
        segment = self.segments[number]
        return segment.read(at - segment.start, self.unit_bytes)

    def note_bad(self, row: int, what: str) -> None:
        if row not in self.bad:
            self.bad_count += 1
            if len(self.bad) < BAD_UNITS_MAX:
                self.bad[row] = what

    def units(self) -> Iterator[tuple[int, int, int]]:
        """Yield row, position and size of all units that are not zero."""
        size, zeros = self.unit_bytes, bytes(_READ_BYTES)
        for segment in self.segments:
            whole = segment.size - segment.size % size
            step = _READ_BYTES - _READ_BYTES % size
            for at in range(0, whole, step):
                chunk = segment.read(at, min(step, whole - at))
                if chunk == zeros[: len(chunk)]:
                    continue
                for start in range(0, len(chunk) - size + 1, size):
                    if chunk[start : start + size] != zeros[:size]:
                        position, record_bytes, _ = UNIT.unpack_from(chunk, start)
                        yield (segment.start + at + start) // size, position, record_bytes


class QueueCheck:
    """Compares all queues with the log, record by record."""

    def __init__(
        self, folder: Path, opened: OpenSegments, report: Report, log: KnownLog, topics: frozenset[str] | None
    ) -> None:
        """Find the queues of a store. `topics` are those of the broker; None if their table is damaged."""
        self._folder = folder
        self._report = report
        self._topics = topics
        self._log_start, self._derived_end, ledger = log
        self._ledger = ledger or KnownQueues()
        self._has_ext = (folder / "consumequeue_ext").is_dir()
        self._queues: dict[tuple[str, int], _Queue] = {}
        self._lost: dict[tuple[str, int], int] = {}
        """Number of records of queues that have no folder."""
        self.without_unit: list[tuple[str, int, int]] = []
        """Topic, position and size of intact records without a unit; at most `WITHOUT_UNIT_MAX`."""
        for is_batch, root in ((False, folder / "consumequeue"), (True, folder / "batchconsumequeue")):
            for topic in sorted(root.iterdir()) if root.is_dir() else ():
                for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
                    if queue.name.isdecimal():
                        segments = segments_in(queue, opened)
                        self._queues[topic.name, int(queue.name)] = _Queue(segments, is_batch=is_batch)
        self._check_files()

    @property
    def queues(self) -> dict[tuple[str, int], _Queue]:
        return self._queues

    def _check_files(self) -> None:
        for is_batch in (False, True):
            found = [queue for queue in self._queues.values() if queue.is_batch is is_batch]
            sizes = [segment.size for queue in found for segment in queue.segments]
            usual = max(sizes, default=0)
            for segment in (segment for queue in found for segment in queue.segments):
                unit_bytes = found[0].unit_bytes
                if segment.size != usual or segment.start % unit_bytes or segment.size % unit_bytes:
                    what = f"the file has {segment.size} bytes, others have {usual}"
                    self._report.add("queue", self._name(segment.path), None, what, _COST, _ADVICE)
            for queue in found:
                for before, after in pairwise(queue.segments):
                    if before.start + usual < after.start:
                        missing = before.path.with_name(f"{before.start + usual:020d}")
                        what = f"the file is missing, {after.path.name} follows"
                        self._report.add("queue", self._name(missing), None, what, _COST, _ADVICE)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._folder))

    # ----------------------------------------------------------------------------------------------- log against queues

    def check(self, record: ScannedTuple, has_record: HasRecord) -> None:
        """Compare the unit of an intact record."""
        position, size, topic, queue_id, offset, sys_flag, stored_at_ms, raw = record
        if sys_flag & NOT_IN_QUEUE or position < self._ledger.deleted.get(topic, 0):
            return
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            self._lost[topic, queue_id] = self._lost.get((topic, queue_id), 0) + 1
            if self._topics is None or topic in self._topics:
                self._note_without_unit(topic, position, size)
            return
        if offset == 0 and queue.last_offset >= 0:
            self._drop_findings(topic)
        queue.last_offset = offset
        code = unit_code(topic, raw, stored_at_ms, DELAYS_MS)
        if queue.is_batch:
            messages = messages_in_batch(raw) if sys_flag & INNER_BATCH else 1
            has_unit = self._check_batch(queue, (position, size, code, stored_at_ms, offset, messages))
        else:
            has_unit = self._check_message(record, queue, code, has_record)
        if not has_unit:
            self._note_without_unit(topic, position, size)

    def _note_without_unit(self, topic: str, position: int, size: int) -> None:
        if len(self.without_unit) < WITHOUT_UNIT_MAX:
            self.without_unit.append((topic, position, size))

    def _check_message(self, record: ScannedTuple, queue: _Queue, code: int, has_record: HasRecord) -> bool:
        """Compare the unit of a message; return whether it has one."""
        position, size, topic, queue_id, offset, _, stored_at_ms, _ = record
        unit = queue.unit(offset)
        if unit == UNIT.pack(position, size, code):
            queue.matched += 1
            return True
        found = UNIT.unpack(unit) if unit else (0, 0, 0)
        if found[:2] == (position, size) and self._is_other_code(found[2], topic, stored_at_ms):
            queue.matched += 1
        elif found[:2] == (position, size):
            queue.matched += 1
            queue.note_bad(offset, f"it has tag code {found[2]} (expected {code} from its record)")
        elif found[:2] == (0, 0):
            return self._is_pending(queue, offset, position)
        elif not (found[0] > position and has_record(found[0], found[1], topic, queue_id, offset)):
            queue.note_bad(
                offset, f"points to {found[0]} ({found[1]} bytes), its record is at {position} ({size} bytes)"
            )
            return False
        return True

    def _drop_findings(self, topic: str) -> None:
        """Drop the findings of a topic that was deleted and created again: its old records have no units."""
        for key in [key for key in self._lost if key[0] == topic]:
            del self._lost[key]
        self.without_unit = [each for each in self.without_unit if each[0] != topic]
        for queue in (queue for key, queue in self._queues.items() if key[0] == topic):
            queue.bad.clear()
            queue.bad_count = queue.pending = 0

    def _is_other_code(self, code: int, topic: str, stored_at_ms: int) -> bool:
        """Return whether a code can be in place of the tag code: a due time, or the address of a filter bitmap."""
        if topic == SCHEDULE_TOPIC:
            return code >= stored_at_ms  # the due time with delay levels other than the defaults
        return self._has_ext and code <= _EXT_ADDRESS_MAX

    def _is_pending(self, queue: _Queue, row: int, position: int) -> bool:
        """Return whether a unit is empty because of a crash; the next start writes it."""
        if self._derived_end is not None and position >= self._derived_end:
            queue.pending += 1
            return True
        queue.note_bad(row, f"the unit is empty, its record is at {position}")
        return False

    def _check_batch(self, queue: _Queue, expected: tuple[int, int, int, int, int, int]) -> bool:
        """Compare the unit of a batch; return whether it has one."""
        position = expected[0]
        if queue.row < 0:
            queue.row = queue.segments[0].start // queue.unit_bytes if queue.segments else 0
        unit = queue.unit(queue.row)
        while unit and any(unit) and UNIT.unpack_from(unit)[0] < position:
            following = queue.unit(queue.row + 1)
            is_next_too_far = not following or not any(following) or UNIT.unpack_from(following)[0] > position
            if is_next_too_far and UNIT.unpack_from(unit)[0] >= self._log_start:
                break  # the unit of this batch, damaged
            queue.row += 1
            unit = following
        if unit[: _BATCH_UNIT.size] == _BATCH_UNIT.pack(*expected):
            queue.matched += 1
            queue.row += 1
            return True
        if not unit or not any(unit):
            return self._is_pending(queue, queue.row, position)
        queue.note_bad(queue.row, f"it has {_BATCH_UNIT.unpack_from(unit)} (expected {expected} from its record)")
        queue.matched += UNIT.unpack_from(unit)[:2] == expected[:2]
        queue.row += 1
        return False

    # ----------------------------------------------------------------------------------------------- queues against log

    def finish(self, log_end: int, has_record: HasRecord, is_damaged: Callable[[int], bool]) -> None:
        """Find units without a record, and report all findings. Called after the last record of the log."""
        pending = 0
        for (topic, queue_id), queue in self._queues.items():
            self._check_units(topic, queue_id, queue, log_end, has_record, is_damaged)
            pending += queue.pending
            if queue.bad_count:
                row, what = min(queue.bad.items())
                at = row * queue.unit_bytes
                segment = next((each for each in queue.segments if each.start <= at < each.stop), None)
                name = self._name(segment.path) if segment else self._queue_name(topic, queue_id, queue)
                more = f"; {queue.bad_count - 1} more units of this queue are wrong" if queue.bad_count > 1 else ""
                offset = at - segment.start if segment else None
                self._report.add("queue", name, offset, f"unit {row}: {what}{more}", _COST, _ADVICE)
        self._report.checked["queues"] += len(self._queues)
        if pending:
            self._report.notes.append(
                f"{pending} records at the end of the log have no unit yet; the next start adds them"
            )
        self._report_lost()

    def _check_units(
        self,
        topic: str,
        queue_id: int,
        queue: _Queue,
        log_end: int,
        has_record: HasRecord,
        is_damaged: Callable[[int], bool],
    ) -> None:
        in_log = count = 0
        last_row, before = -1, -1
        for row, position, size in queue.units():
            count += 1
            if last_row >= 0 and row != last_row + 1 and before < self._log_start:
                # Records in the log have been compared; for expired ones, only the order of rows shows a gap.
                queue.note_bad(last_row + 1, "the unit is empty, and others follow")
            last_row = row
            if size == NO_MESSAGE_BYTES:
                continue
            if row not in queue.bad and (what := _find_fault(position, size, before, log_end)):
                queue.note_bad(row, what)
            elif position >= self._log_start:
                in_log += 1
            if 0 <= position < log_end:
                before = position
        self._report.checked["units"] += count
        self._check_ends(topic, queue_id, queue, last_row)
        if in_log == queue.matched:
            return
        for row, position, size in queue.units():
            if size == NO_MESSAGE_BYTES or not self._log_start <= position < log_end or row in queue.bad:
                continue
            offset = row
            if queue.is_batch:
                offset = _BATCH_UNIT.unpack_from(queue.unit(row))[4]
            if not has_record(position, size, topic, queue_id, offset) and not is_damaged(position):
                queue.note_bad(row, f"it points to {position} ({size} bytes), which is no record of this queue")

    def _check_ends(self, topic: str, queue_id: int, queue: _Queue, last_row: int) -> None:
        """Compare the ends of a queue with the ledger."""
        known = self._ledger.queues.get((topic, queue_id))
        if known is None or queue.is_batch:
            return
        if last_row + 1 < known.flushed_end:
            queue.note_bad(last_row + 1, f"the unit is empty, the queue ended at {known.flushed_end}")
        first = queue.segments[0].start // queue.unit_bytes if queue.segments else 0
        if first > known.first:
            queue.note_bad(known.first, f"the unit is missing, the queue started here and not at {first}")

    def _queue_name(self, topic: str, queue_id: int, queue: _Queue) -> str:
        return f"{'batchconsumequeue' if queue.is_batch else 'consumequeue'}/{topic}/{queue_id}"

    def _report_lost(self) -> None:
        unknown: dict[str, int] = {}
        for (topic, queue_id), records in sorted(self._lost.items()):
            if self._topics is not None and topic not in self._topics:
                unknown[topic] = unknown.get(topic, 0) + records
                continue
            what = f"the queue has no files, and the log has {records} records of it"
            if queue_id < 0:
                what = f"{records} records of the log have this queue number, which is damaged"
            self._report.add("queue", f"consumequeue/{topic}/{queue_id}", None, what, _COST, _ADVICE)
        for topic, records in unknown.items():
            self._report.notes.append(
                f"the log has {records} records of topic {topic!r}, which the broker does not have"
            )
        for topic in sorted({topic for topic, _ in self._queues} - (self._topics or frozenset())):
            if self._topics is not None:
                self._report.notes.append(f"topic {topic!r} has queues, but is not in topics.json")


def _find_fault(position: int, size: int, before: int, log_end: int) -> str:
    """Return the damage of a unit, compared with the unit before it and the end of the log; nothing if it is intact."""
    if position < 0 or size <= 0:
        return f"points to {position} ({size} bytes)"
    if position >= log_end:
        return f"points to {position}, behind the end of the log at {log_end}"
    return f"points to {position}, the unit in front of it to {before}" if position < before else ""


def _start_of(segment: Segment) -> int:
    return segment.start
