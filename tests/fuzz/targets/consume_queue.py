"""Consume queues and batch queues: any bytes load, reads end and advance, and a repaired queue takes new messages.

Input: a byte that chooses the kind of queue, the number of files and a missing one, then the bytes of the files.
"""

from typing import Final

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.segment import OpenSegments
from skyroute.broker.store.queues.batch_queue import BatchQueue
from skyroute.broker.store.queues.consume_queue import ConsumeQueue
from skyroute.broker.store.queues.topic_queue import TopicQueue
from tests.fuzz.scratch import empty_folder
from tests.support.disks import NOW_MS, NoSyncDisk

UNITS: Final = 4
OFFSETS_MAX: Final = 32


def open_queue(how: int, content: bytes) -> TopicQueue:
    kind = BatchQueue if how & 1 else ConsumeQueue
    segment_bytes = kind.unit_bytes * UNITS
    folder = empty_folder() / "0"
    folder.mkdir()
    first = how >> 4 & 1
    for number in range(1 + (how >> 1 & 3)):
        if how & 128 and number == 1:
            continue  # a missing file
        part = content[number * segment_bytes : (number + 1) * segment_bytes]
        size = segment_bytes if how & 8 else max(len(part), 1)
        (folder / f"{(first + number) * segment_bytes:020d}").write_bytes(part.ljust(size, b"\0"))
    return kind(folder, "T", 0, UNITS, NoSyncDisk(), OpenSegments(8))


def check(data: bytes) -> None:
    how, content = (data[0], data[1:]) if data else (0, b"")
    queue = open_queue(how, content)
    try:
        queue.load()
    except StoreDamagedError:
        sizes = {path.stat().st_size for path in queue.folder.iterdir()}
        assert len(sizes) == 1, "only several files of one other size belong to other settings"
        assert sizes != {queue.unit_bytes * UNITS}
        return
    try:
        read_through(queue)
        list(queue.units_before(queue.count, 16))
        assert queue.written_end <= queue.end or queue.bad_row is not None or how & 1
        repair(queue, how >> 5 & 3)
    finally:
        queue.close()


def read_through(queue: TopicQueue) -> None:
    """Read as consumers do, from any offset: a read always gets on."""
    first = max(queue.min_offset(0), 0)
    for offset in range(first, min(queue.end, first + OFFSETS_MAX)):
        for units_max in (1, 3, 2 * UNITS):
            found = queue.read(offset, units_max)
            if found is None:
                after = queue.next_segment(offset)
            else:
                _, units, stops = found
                pairs = list(zip(units, stops, strict=False))
                assert pairs
                after = pairs[-1][1]
            assert after > offset, (queue, offset, after)


def repair(queue: TopicQueue, how: int) -> None:
    """Drop what is damaged, and add messages, as recovery does."""
    if queue.bad_row is not None:
        queue.drop_from(queue.bad_row)
        assert queue.bad_row is None
    if how & 1:
        queue.truncate_to(1000)
    elif how & 2:
        queue.truncate_torn(1000, 0, lambda *_: False)
    end = queue.end
    if not 0 <= end < 1 << 40:
        return
    for number in range(UNITS + 1):
        queue.add(end + number, 1 << 40, 100, 0, NOW_MS, 1)
        queue.advance(end + number + 1)
    queue.write()
    assert queue.end == end + UNITS + 1
    assert queue.unit(end + UNITS) == (1 << 40, 100, 0)
