"""The messages of one response to a pop."""

from typing import Final

import msgspec

from skyroute.broker.store.queues.queue_read import QueueRead
from skyroute.message.errors import PropertyError, RecordError
from skyroute.message.layout import HEAD_BYTES
from skyroute.message.message import StoredMessage
from skyroute.message.properties import add_properties
from skyroute.message.property_names import POP_RECEIPT
from skyroute.message.record import decode_run, encode_record
from skyroute.wire.calls.pop import PopAnswer, PoppedBatch, PopQuestion, PopStatus
from skyroute.wire.calls.pop_receipts import Receipt, RetryFlag, encode_receipt, retry_flag

BODY_BYTES_MAX: Final = 4 * 1024 * 1024

_OFFSET_AT: Final = 20
"""Position of the queue offset in a record."""


class Popped:
    """The messages of one response."""

    def __init__(self, question: PopQuestion, popped_at_ms: int, revive_queue_id: int, broker_name: str) -> None:
        self.question = question
        self.popped_at_ms = popped_at_ms
        self.revive_queue_id = revive_queue_id
        self._broker_name = broker_name
        self.batches: list[PoppedBatch] = []
        self.records: list[memoryview] = []
        self.count = 0
        self.record_bytes = 0
        self.rest = 0
        self.is_cut = False
        """Whether the pop ended before it had looked into all queues: the next one goes on."""
        self.order_counts: dict[tuple[RetryFlag, int, int | None], int] = {}

    @property
    def room(self) -> int:
        """Number of messages that the response still has room for."""
        return 0 if self.record_bytes >= BODY_BYTES_MAX else self.question.count_max - self.count

    def answer(self) -> PopAnswer:
        """Return the response without its records."""
        if not self.count:
            return PopAnswer(PopStatus.NOT_FOUND, rest_count=self.rest)
        return PopAnswer(
            PopStatus.FOUND,
            self.popped_at_ms,
            self.question.invisible_ms,
            self.revive_queue_id,
            self.rest,
            tuple(self.batches),
            self.order_counts,
        )

    def add(self, topic: str, queue_id: int, start: int, offsets: tuple[int, ...], read: QueueRead) -> None:
        """Add what was read from a queue, from offset `start` on."""
        flag = retry_flag(topic)
        self.batches.append(PoppedBatch(flag, queue_id, start, offsets))
        self.count += len(offsets)
        self.record_bytes += read.record_bytes
        if flag is RetryFlag.NONE or topic == self.question.topic:
            self.records += read.chunks
            return
        for chunk in read.chunks:
            for message in decode_run(chunk).messages:
                receipt = Receipt(
                    *(start, self.popped_at_ms, self.question.invisible_ms, self.revive_queue_id, flag),
                    *(self._broker_name, queue_id, message.queue_offset),
                )
                self.records.append(memoryview(_as_retry(message, self.question.topic, receipt)))


def offsets_in(read: QueueRead, start: int) -> tuple[int, ...]:
    """Return the offsets of the messages of a read."""
    if read.message_count == read.next_offset - start:
        return tuple(range(start, read.next_offset))
    offsets = []
    for chunk in read.chunks:
        at = 0
        while at + HEAD_BYTES <= len(chunk):
            offsets.append(int.from_bytes(chunk[at + _OFFSET_AT : at + _OFFSET_AT + 8], "big"))
            at += int.from_bytes(chunk[at : at + 4], "big")
    return tuple(offsets)


def _as_retry(message: StoredMessage, topic: str, receipt: Receipt) -> bytes:
    """Return the record of a retried message as clients expect it: with its first topic, and its receipt.

    A message without room for the receipt keeps its retry topic: clients then find the receipt in the header.
    """
    try:
        raw_properties = add_properties(message.raw_properties, {POP_RECEIPT: encode_receipt(receipt)})
        return encode_record(msgspec.structs.replace(message, topic=topic, raw_properties=raw_properties))
    except (PropertyError, RecordError):
        return encode_record(message)
