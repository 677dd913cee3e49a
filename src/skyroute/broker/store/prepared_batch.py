"""A long batch on its way into the store: encoded part by part, then appended with one write."""

from collections import deque
from collections.abc import Sequence
from itertools import count, repeat
from struct import Struct
from typing import Final

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.dispatch import TAGS_START, tag_code_in
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.index.keys import Key, collect_keys, may_have_keys
from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.broker.store.queues.unit_rows import SIZE, TAG_CODE, UNIT
from skyroute.message.batch import RawItem
from skyroute.message.columns import put_column
from skyroute.message.errors import RecordError

BATCH_KEYS_MAX: Final = 500_000
"""Maximum number of keys in a long batch: they are in memory until they are in the index."""

_QUEUE_OFFSET_AT: Final = 20
_POSITION_STOP: Final = 36


class PreparedBatch:
    """The records of a batch, their units and keys, with positions that count from the start of the batch.

    `MessageStore.prepare_batch` makes one, `add` encodes a part of it, `MessageStore.append_prepared` stores it.
    """

    def __init__(self, draft: Draft, queue: TopicQueue, log: CommitLog) -> None:
        self.draft = draft
        self.records = bytearray()
        self.units = bytearray()
        self.keys: list[Key] = []
        self._queue = queue
        self._log = log
        self._placed_at: list[int] = []
        between = 12 + len(draft.raw_born_host)  # flag, time and address of the sender
        self._placed = Struct(f">qq{between}sq")
        """The part of a record's head from its queue offset to the time when it was stored."""
        self._same = slice(_POSITION_STOP, _POSITION_STOP + between)

    def add(self, items: Sequence[RawItem]) -> None:
        """Encode the next messages.

        Raises:
            RecordError: something does not fit its place, or there are too many keys; the batch cannot be stored.
        """
        draft = self.draft
        properties = [item[1] for item in items]
        together = b"".join(properties)
        if b"\0" in together and any_ends_with_zero(properties):
            properties = [raw + b"\x02" for raw in properties]
            items = [(body, raw, flag) for (body, _, flag), raw in zip(items, properties, strict=True)]
        pieces, positions, sizes = self._queue.encode_all(draft, items, 0, len(self.records), 0)
        records = b"".join(pieces)
        self._log.touch_ahead(len(self.records), len(records))
        self.records += records
        self.units += encode_units(sizes, properties, together)
        self._placed_at += [position + _QUEUE_OFFSET_AT for position in positions]
        if may_have_keys(together):
            for position, raw_properties in zip(positions, properties, strict=True):
                collect_keys(self.keys, draft.topic, raw_properties, draft.sys_flag, position, 0)
        if len(self.keys) > BATCH_KEYS_MAX:
            raise RecordError(f"a batch has too many keys (expected at most {BATCH_KEYS_MAX}); send it in parts")

    def place(self, queue_offset: int, position: int, stored_at_ms: int) -> list[int]:
        """Write into each record where and when it is stored; return their positions in the log."""
        records = self.records
        shift = position - _QUEUE_OFFSET_AT
        positions = [at + shift for at in self._placed_at]
        same = repeat(bytes(records[self._same]))
        put = self._placed.pack_into
        # Every record in one turn of the event loop, so without a loop in Python.
        each = repeat(records), self._placed_at, count(queue_offset), positions, same, repeat(stored_at_ms)
        deque(map(put, *each), maxlen=0)
        return positions


def encode_units(sizes: list[int], properties: Sequence[bytes], together: bytes) -> bytearray:
    """Return the units of records without their positions, which `TopicQueue.add_all` adds.

    `together` are the joined properties.
    """
    units = bytearray(len(sizes) * UNIT.size)
    put_column(units, UNIT.size, SIZE, sizes)
    if TAGS_START in together:
        put_column(units, UNIT.size, TAG_CODE, map(tag_code_in, properties))
    return units


def any_ends_with_zero(properties: list[bytes]) -> bool:
    """Return whether properties of a message end with zero, as the last record of a log must not: it looks torn."""
    return any(raw.endswith(b"\0") for raw in properties)
