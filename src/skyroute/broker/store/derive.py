"""What follows from a record in the log: a unit of its queue, and its keys in the index."""

from functools import lru_cache
from typing import Final

from skyroute.broker.store.checkpoint import Checkpoint
from skyroute.broker.store.errors import IndexProcessGoneError
from skyroute.broker.store.index_process import IndexProcess
from skyroute.broker.store.key_index import KeyIndex
from skyroute.broker.store.keys import Key, KeyReader, find_value, keep_keys
from skyroute.broker.store.segment import Segment
from skyroute.broker.store.topic_queue import TopicQueue
from skyroute.message.flags import INNER_BATCH, TransactionState
from skyroute.message.properties import find_property
from skyroute.message.property_names import DELAY_LEVEL, TAGS
from skyroute.message.reserved_topics import SCHEDULE_TOPIC
from skyroute.message.tags import tag_code

_TAGS: Final = f"{TAGS}\x01".encode()
WITHOUT_PLACE: Final = int(TransactionState.PREPARED & TransactionState.ROLLED_BACK)
"""The bit of half messages and withdrawn ones: they take no place in their queue."""

BACKLOG_MAX: Final = 256
"""After so many records, what follows from them is written to files without anybody asking."""


Noted = tuple[TopicQueue, int, int, int, bytes, int, int]
"""A record as it is noted: its queue, its offset there, position, size, properties, flag, when it was stored."""


def due_ms(raw_properties: bytes, stored_at_ms: int, delays_ms: tuple[int, ...]) -> int | None:
    """Return when a message of the schedule topic is due, which its unit holds in place of a tag; None if never."""
    try:
        level = min(int(find_property(raw_properties, DELAY_LEVEL) or 0), len(delays_ms))
    except ValueError:
        return None
    return stored_at_ms + delays_ms[level - 1] if level > 0 else None


class Derived:
    """Keeps queues and index up with the log.

    Records are noted as they are appended. Before anybody reads, they are settled: units join their queues, in memory.
    Now and then all is written to files, many at once. Should the process die before, the log still has it; should the
    disk refuse, it waits.
    """

    def __init__(self, index: KeyIndex | None, checkpoint: Checkpoint, delays_ms: tuple[int, ...]) -> None:
        self._index = index
        self.index_process: IndexProcess | None = None
        """Who writes the index in our place."""
        self._checkpoint = checkpoint
        self._delays_ms = delays_ms
        self.noted: list[Noted] = []
        """Records that readers do not see yet."""
        self._unwritten = 0
        """How many are settled and not in files."""
        self._queues: dict[TopicQueue, None] = {}
        self._keys: list[Key] = []
        """What the index keeps of those: their unique ids and their keys."""
        self._newest: tuple[int, int, int] | None = None
        """Position, size and time of the last of them."""
        self.dirty: dict[Segment, None] = {}
        """Segments of queues that hold something which may not be on the disk."""
        self.written_ms = 0
        """When the newest message was stored whose unit and keys are in files."""

    def __len__(self) -> int:
        """Return how many records are noted, or settled and not yet written."""
        return len(self.noted) + self._unwritten

    @property
    def is_written(self) -> bool:
        """All that readers see is in files."""
        return self._newest is None

    def settle(self, up_to: int | None = None) -> None:
        """Show readers the records noted so far, or those before a position of the log."""
        ready, self.noted = self.noted, []
        if up_to is not None and ready and ready[-1][2] >= up_to:
            self.noted = [record for record in ready if record[2] >= up_to]
            del ready[len(ready) - len(self.noted) :]
        if not ready:
            return
        queues, keys = self._queues, None if self._index is None or self.index_process is not None else self._keys
        for queue, queue_offset, position, size, raw_properties, sys_flag, stored_at_ms in ready:
            topic = queue.topic
            if not sys_flag & WITHOUT_PLACE:
                code = 0
                if topic == SCHEDULE_TOPIC:
                    code = due_ms(raw_properties, stored_at_ms, self._delays_ms) or 0
                if not code and (tag := find_value(raw_properties, _TAGS)):
                    code = code_of(tag)
                messages = queue.messages_in(raw_properties) if sys_flag & INNER_BATCH else 1
                queue.add(queue_offset, position, size, code, stored_at_ms, messages)
                queues[queue] = None
            if keys is not None:
                keep_keys(keys, topic, raw_properties, sys_flag, position, stored_at_ms)
        self._unwritten += len(ready)
        *_, (_, _, position, size, _, _, stored_at_ms) = ready
        self._newest = position, size, stored_at_ms

    def write(self, up_to: int | None = None) -> None:
        """Settle, and write what is settled to files.

        Raises:
            StoreWriteError, StoreFullError: some of it is left for the next time.
            IndexProcessGoneError: the same, until somebody has taken over from that process.
        """
        self.settle(up_to)
        for queue in list(self._queues):
            self.dirty.update(dict.fromkeys(queue.write()))
            del self._queues[queue]
        if self._newest is not None:
            position, size, stored_at_ms = self._newest
            if self.index_process is not None:
                if not self.index_process.go_on_to(position + size):
                    raise IndexProcessGoneError
                position, size, *_ = self.index_process.progress
            elif self._index is not None:
                self._index.add(self._keys)
            self.written_ms = stored_at_ms
            self._newest = None
            self._unwritten = 0
            self._checkpoint.note_derived(position, size)

    def take_index_back(self, reader: KeyReader) -> None:
        """Go on where a process was that wrote the index."""
        process, self.index_process = self.index_process, None
        if process is None:
            return
        position = process.progress.end
        while (newest := reader.read(position, process.wanted, self._keys)) is not None:
            self._newest = newest
            position = newest[0] + newest[1]

    def forget(self, queue: TopicQueue) -> None:
        """Drop what waits for a queue that is being removed."""
        self.noted = [record for record in self.noted if record[0] is not queue]
        self._queues.pop(queue, None)
        for segment in queue.segments:
            self.dirty.pop(segment, None)


@lru_cache(maxsize=4096)
def code_of(tag: bytes) -> int:
    """Return the number that stands for a tag in a unit."""
    return tag_code(tag.decode("utf-8", "replace"))
