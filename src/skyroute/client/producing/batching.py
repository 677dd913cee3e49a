"""Splits messages into batches: each for one queue, and none above the size limit. Pure."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from skyroute.client.results import SendResult
from skyroute.message.batch import BatchItem
from skyroute.message.queue_ref import QueueRef

ITEM_HEAD_BYTES: Final = 22
"""What the batch format adds to the body and the properties of each message."""


class BatchEntry(NamedTuple):
    """One message of a batch."""

    position: int
    """Its position in the messages of the application."""
    message_id: str
    item: BatchItem


def split_batches(
    entries: Iterable[tuple[QueueRef | None, BatchEntry]], bytes_max: int
) -> list[tuple[QueueRef | None, list[BatchEntry]]]:
    """Return the batches of each queue, in order; None is any queue. A single message may exceed `bytes_max`."""
    open_batches: dict[QueueRef | None, list[BatchEntry]] = {}
    sizes: dict[QueueRef | None, int] = {}
    batches: list[tuple[QueueRef | None, list[BatchEntry]]] = []
    for queue, entry in entries:
        size = ITEM_HEAD_BYTES + len(entry.item.body) + len(entry.item.raw_properties)
        if queue not in open_batches or sizes[queue] + size > bytes_max:
            open_batches[queue], sizes[queue] = [], 0
            batches.append((queue, open_batches[queue]))
        open_batches[queue].append(entry)
        sizes[queue] += size
    return batches


def results_of(batch: list[BatchEntry], sent: SendResult) -> dict[int, SendResult]:
    """Return the result of each message of a batch, by its position."""
    offset_ids = sent.offset_id.split(",")  # a topic that stores a batch as one record returns one id
    return {
        entry.position: SendResult(
            sent.status,
            entry.message_id,
            offset_ids[step] if len(offset_ids) == len(batch) else sent.offset_id,
            sent.queue,
            sent.queue_offset + step,
            region=sent.region,
            trace_on=sent.trace_on,
        )
        for step, entry in enumerate(batch)
    }
