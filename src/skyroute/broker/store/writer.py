"""Appends to a store: single messages, and batches, at once or in steps."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.dispatch import BACKLOG_MAX, LONG_PROPERTIES_BYTES, NOT_IN_QUEUE, Dispatcher, PlacedBatch
from skyroute.broker.store.draft import Appended, AppendedBatch, Draft, appended_at
from skyroute.broker.store.files.checkpoint import Checkpoint
from skyroute.broker.store.index.index_writer import IndexWriter
from skyroute.broker.store.index.key_index import KeyIndex
from skyroute.broker.store.index.keys import may_have_keys
from skyroute.broker.store.prepared_batch import PreparedBatch, any_ends_with_zero, encode_units
from skyroute.broker.store.queues.batch_queue import BATCH_MESSAGES_MAX, BatchQueue
from skyroute.broker.store.queues.queue_table import QueueTable
from skyroute.broker.store.reader import StoreReader
from skyroute.broker.store.settings import StoreSettings
from skyroute.files.errors import StorageError
from skyroute.message.batch import RawItem
from skyroute.message.errors import RecordError
from skyroute.message.flags import INNER_BATCH, WRAPPED_BATCH
from skyroute.message.property_names import INNER_BASE, INNER_COUNT
from skyroute.message.reserved_topics import SCHEDULE_TOPIC


class StoreWriter(StoreReader):
    """The part of a store that appends. `MessageStore` adds the rest."""

    def __init__(
        self,
        folder: Path,
        settings: StoreSettings,
        log: CommitLog,
        queues: QueueTable,
        index: KeyIndex | None,
        index_writer: IndexWriter,
        dispatcher: Dispatcher,
        checkpoint: Checkpoint,
    ) -> None:
        super().__init__(folder, settings, log, queues, index, index_writer, dispatcher)
        self._checkpoint = checkpoint
        self._last_stored_ms = 0
        self._refusal: StorageError | None = None
        """Why nothing can be appended: the store is closed, or the disk is full."""

    def append(self, draft: Draft, now_ms: int) -> Appended:
        """Store one message.

        Raises:
            FileWriteError: nothing is stored.
            StoreClosedError: the store is closed, or a flush has failed.
            RecordTooLargeError: the record is larger than a segment.
            RecordError: a value does not fit its field in the record.
        """
        dispatcher = self._dispatcher
        if self._refusal is not None or dispatcher.failure is not None:
            self._refuse()
        key = draft.topic, draft.queue_id
        queue = self._queues.by_key.get(key) or self._queues.create_file(draft.topic, draft.queue_id)
        body, raw_properties, sys_flag = draft.body, draft.raw_properties, draft.sys_flag
        if raw_properties[-1:] == b"\0":
            raw_properties += b"\x02"  # recovery takes a last record that ends with zero for a torn one
        log = self._log
        position = log.end
        has_offset = not sys_flag & NOT_IN_QUEUE
        offset = queue.next_offset if has_offset else 0
        record = queue.encode(draft, body, raw_properties, draft.flag, offset, position, now_ms)
        size = len(record)
        if position + size > log.limit:
            position = log.place(size)
            record = queue.encode(draft, body, raw_properties, draft.flag, offset, position, now_ms)
        log.append(position, record)
        if has_offset:
            queue.advance(offset + (queue.messages_in(raw_properties) if sys_flag & INNER_BATCH else 1))
        self._last_stored_ms = now_ms
        pending = dispatcher.pending
        pending.append((queue, offset, position, size, raw_properties, sys_flag, now_ms))
        properties_bytes = len(raw_properties)
        if len(pending) > BACKLOG_MAX or (
            properties_bytes > LONG_PROPERTIES_BYTES and dispatcher.count_bytes(properties_bytes)
        ):
            dispatcher.write_backlog()
        return appended_at(position, offset, size, now_ms)

    def append_inner_batch(self, draft: Draft, messages: int, now_ms: int) -> Appended:
        """Store a batch as one record, with the draft's body. Its messages have consecutive offsets.

        Raises:
            As `append`; also RecordError: the topic is no batch topic, or the batch has too many messages.
        """
        if self._refusal is not None or self._dispatcher.failure is not None:
            self._refuse()
        key = draft.topic, draft.queue_id
        queue = self._queues.by_key.get(key) or self._queues.create_file(draft.topic, draft.queue_id)
        if not isinstance(queue, BatchQueue):
            raise RecordError(f"topic {draft.topic} is no batch topic; create it with queue.type=BatchCQ")
        if not 1 <= messages <= BATCH_MESSAGES_MAX:
            raise RecordError(f"a batch has {messages} messages (expected 1 to {BATCH_MESSAGES_MAX})")
        raw_properties = draft.raw_properties
        if raw_properties and not raw_properties.endswith(b"\x02"):
            raw_properties += b"\x02"
        raw_properties += f"{INNER_COUNT}\x01{messages}\x02{INNER_BASE}\x01{queue.next_offset}\x02".encode()
        wrapped = msgspec.structs.replace(draft, raw_properties=raw_properties, sys_flag=draft.sys_flag | WRAPPED_BATCH)
        return self.append(wrapped, now_ms)

    def append_batch(self, draft: Draft, items: Sequence[RawItem], now_ms: int) -> AppendedBatch:
        """Store messages in one write, in one segment and with consecutive offsets; the draft has their other fields.

        Raises:
            As `append`; also RecordError: a batch cannot be part of a transaction or wait for its time.
        """
        if self._refusal is not None or self._dispatcher.failure is not None:
            self._refuse()
        _check_batch(draft)
        key = draft.topic, draft.queue_id
        queue = self._queues.by_key.get(key) or self._queues.create_file(draft.topic, draft.queue_id)
        properties = [item[1] for item in items]
        together = b"".join(properties)
        if b"\0" in together and any_ends_with_zero(properties):
            properties = [raw + b"\x02" for raw in properties]
            items = [(body, raw, flag) for (body, _, flag), raw in zip(items, properties, strict=True)]
        log, offset = self._log, queue.next_offset
        pieces, positions, sizes = queue.encode_all(draft, items, offset, log.end, now_ms)
        records = b"".join(pieces)
        if log.end + len(records) > log.limit:
            pieces, positions, sizes = queue.encode_all(draft, items, offset, log.place(len(records)), now_ms)
            records = b"".join(pieces)
        self._append_whole(positions[0], records)
        queue.advance(offset + len(items))
        self._last_stored_ms = now_ms
        units = encode_units(sizes, properties, together)
        has_keys = may_have_keys(together)
        self._dispatcher.add_batch(
            PlacedBatch(queue, offset, positions, units, log.end, now_ms, (), properties, has_keys)
        )
        if self._dispatcher.count_bytes(len(units) + len(together)):
            self._dispatcher.write_backlog()
        return AppendedBatch(positions, offset, log.end)

    def prepare_batch(self, draft: Draft) -> PreparedBatch:
        """Return an empty long batch. It is encoded in steps, while other messages are stored.

        Raises:
            As `append`; also RecordError: a batch cannot be part of a transaction or wait for its time.
        """
        _check_batch(draft)
        return PreparedBatch(draft, self._queues.find_or_create(draft.topic, draft.queue_id), self._log)

    def append_prepared(self, batch: PreparedBatch, now_ms: int) -> AppendedBatch:
        """Store a long batch as `append_batch` does. `dispatch_step` then writes its units and keys.

        Raises:
            As `append`.
        """
        if self._refusal is not None or self._dispatcher.failure is not None:
            self._refuse()
        draft = batch.draft
        key = draft.topic, draft.queue_id
        queue = self._queues.by_key.get(key) or self._queues.create_file(draft.topic, draft.queue_id)
        log, offset = self._log, queue.next_offset
        start = log.place(len(batch.records))
        positions = batch.place(offset, start, now_ms)
        self._append_whole(start, batch.records)
        queue.advance(offset + len(positions))
        self._last_stored_ms = now_ms
        self._dispatcher.add_batch(PlacedBatch(queue, offset, positions, batch.units, log.end, now_ms, batch.keys))
        return AppendedBatch(positions, offset, log.end)

    def _append_whole(self, position: int, records: bytes | bytearray) -> None:
        """Write a batch so that a process that dies during the write leaves none of it: recovery drops it."""
        self._checkpoint.begin_batch(position)
        try:
            self._log.append(position, records)
        except Exception:  # of any kind: a note that stays would have recovery drop all later messages
            self._checkpoint.end_batch()
            raise
        self._checkpoint.end_batch()

    def dispatch_step(self) -> bool:
        """Write some units and keys to files, for a few milliseconds; return whether there are more."""
        return self._dispatcher.write_step() and self._refusal is None

    def _refuse(self) -> None:
        """Raise the reason why nothing can be appended; return if it has passed."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        # Units and keys of earlier records could not be written. No record is added before they are.
        self.dispatch()

    def dispatch(self) -> None:
        """Write units and keys of new records to files. A flush does this too, and a full backlog.

        Of many keys, only some go to the index at a time: `dispatch_step` returns whether there are more.

        Raises:
            FileWriteError: nothing can be appended until a later call succeeds.
        """
        self._dispatcher.write()


def _check_batch(draft: Draft) -> None:
    if draft.sys_flag & NOT_IN_QUEUE or draft.topic == SCHEDULE_TOPIC:
        raise RecordError("a batch cannot be part of a transaction or wait for its time; send its messages one by one")
