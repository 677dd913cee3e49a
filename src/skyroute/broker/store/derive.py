"""What follows from a record in the log: a unit of its queue, and its keys in the index."""

import logging
from collections.abc import Callable, Generator
from functools import lru_cache
from pathlib import Path
from typing import Final

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.files.checkpoint import Checkpoint
from skyroute.broker.store.files.segment import Segment
from skyroute.broker.store.index.index_process import IndexProcess, Progress
from skyroute.broker.store.index.key_index import KeyIndex
from skyroute.broker.store.index.keys import Key, KeyReader, find_value, keep_keys
from skyroute.broker.store.queues.queue_ledger import QueueLedger
from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.broker.store.settings import StoreSettings
from skyroute.message.flags import INNER_BATCH, TransactionState
from skyroute.message.properties import find_property
from skyroute.message.property_names import DELAY_LEVEL, TAGS
from skyroute.message.reserved_topics import SCHEDULE_TOPIC
from skyroute.message.tags import tag_code

log = logging.getLogger(__name__)

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

    Where there is much to do, a process of its own writes the index: see `index_process`.
    """

    def __init__(
        self,
        folder: Path,
        settings: StoreSettings,
        log: CommitLog,
        index: KeyIndex | None,
        checkpoint: Checkpoint,
        ledger: QueueLedger,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._log = log
        self._index = index
        self._checkpoint = checkpoint
        self.ledger = ledger
        self.index_process: IndexProcess | None = None
        """Who writes the index in our place."""
        self._index_seen: Progress | None = None
        """How far that was when we last looked at what it wrote."""
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
        self.lacks_units = False
        """In recovery: units of records whose keys were added may be missing, so no note is taken of how far it is."""
        self.written_ms = 0
        """When the newest message was stored whose unit and keys are in files."""

    def __len__(self) -> int:
        """Return how many records are noted, or settled and not yet written."""
        return len(self.noted) + self._unwritten

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
                    code = due_ms(raw_properties, stored_at_ms, self._settings.delays_ms) or 0
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
            FileWriteError: some of it is left for the next time.
        """
        self.settle(up_to)
        for queue in list(self._queues):
            self.dirty.update(dict.fromkeys(queue.write()))
            self.ledger.note(queue)
            del self._queues[queue]
        if self._newest is not None:
            position, size, stored_at_ms = self._newest
            if self.index_process is not None and not self.index_process.go_on_to(position + size):
                self._take_index_back()
            if self.index_process is not None:
                position, size, *_ = self.index_process.progress
            elif self._index is not None:
                self._index.add(self._keys)
            self.written_ms = stored_at_ms
            self._newest = None
            self._unwritten = 0
            if not self.lacks_units:
                self._checkpoint.note_derived(position, size)

    # --------------------------------------------------------------------------------------------------- for recovery

    def add_unit(self, record: Noted) -> None:
        """Add a record's unit to its queue, without its keys."""
        queue, offset, position, size, raw_properties, sys_flag, stored_at_ms = record
        code = 0
        if queue.topic == SCHEDULE_TOPIC:
            code = due_ms(raw_properties, stored_at_ms, self._settings.delays_ms) or 0
        if not code and (tag := find_value(raw_properties, _TAGS)):
            code = code_of(tag)
        messages = queue.messages_in(raw_properties) if sys_flag & INNER_BATCH else 1
        queue.add(offset, position, size, code, stored_at_ms, messages)
        self._queues[queue] = None

    def add_keys(self, record: Noted) -> None:
        """Add a record's keys behind those of all noted records, without its unit."""
        self.settle()
        queue, _, position, size, raw_properties, sys_flag, stored_at_ms = record
        if self._index is not None:
            keep_keys(self._keys, queue.topic, raw_properties, sys_flag, position, stored_at_ms)
        self._newest = position, size, stored_at_ms

    def write_queue(self, queue: TopicQueue) -> None:
        """Include a queue in the next write."""
        self._queues[queue] = None

    # -------------------------------------------------------------------------------------------- the index's process

    def begin_index_process(self) -> IndexProcess | None:
        """Have the index written elsewhere from now on, and return by whom; None where that cannot be."""
        index, last = self._index, self._checkpoint.last_derived
        if index is None or last is None or self._newest is not None:
            return None
        try:
            process = IndexProcess(self._folder, self._settings, Progress(*last, *index.extent, index.end_ms))
        except OSError as error:
            log.warning("no process for the key index cause=%s", error)
            return None
        self.index_process = process
        log.info("a process of its own writes the key index pid=%d", process.pid)
        return process

    def _take_index_back(self) -> None:
        """Go on where a process was that is gone."""
        process, self.index_process = self.index_process, None
        if process is None or self._index is None:
            return
        process.kill()
        log.warning("the process for the key index is gone pid=%d; the broker goes on without", process.pid)
        position = process.progress.end
        self._index.look_again()
        self._index.truncate_to(position, slots_are_sound=True)
        # It was to go on to what was written; readers may have been shown more.
        stop = process.wanted if self._newest is None else self._newest[0] + self._newest[1]
        reader = KeyReader(self._log.find)
        while (newest := reader.read(position, stop, self._keys)) is not None:
            self._newest = newest
            position = newest[0] + newest[1]

    def look_at_index(self) -> None:
        """Take note of what the process has added, if there is one."""
        process = self.index_process
        if process is not None and self._index is not None and process.progress != self._index_seen:
            self._index_seen = process.progress
            self._index.look_again()

    def catch_index_up(self) -> None:
        """Have the keys of all that was written in the index.

        Raises:
            FileWriteError: some of them are not.
        """
        if self._index is not None and self.index_process is not None and not self.index_process.catch_up():
            self._take_index_back()
            self._index.add(self._keys)
        self.look_at_index()

    def wait_for_index(self, may_wait: Callable[[], bool]) -> Generator[None, None, None]:
        """As `catch_index_up`, in steps: waits for the index process while `may_wait` is true.

        Raises:
            FileWriteError: some keys are not in the index.
        """
        process = self.index_process
        wanted = 0 if process is None else process.wanted
        while process is not None and process is self.index_process and process.progress.end < wanted and may_wait():
            if not process.hurry():
                self.catch_index_up()
            yield
        self.look_at_index()

    def end_index_process(self) -> None:
        """Have it end once it has come as far as we have.

        Raises:
            FileWriteError: some keys are not in the index.
        """
        self.catch_index_up()
        process, self.index_process = self.index_process, None
        if process is not None:
            process.end()
            self._checkpoint.note_derived(process.progress.position, process.progress.size)

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
