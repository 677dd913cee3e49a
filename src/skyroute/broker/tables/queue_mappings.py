"""The mappings of static topics, and their file."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.table_file import TableFile
from skyroute.broker.tables.table_format import Pieces, next_version, object_pieces, read_as, read_member, read_version
from skyroute.remoting.errors import RefusedError
from skyroute.routing.registration import DataVersion
from skyroute.routing.topology import StaticMapping
from skyroute.wire.calls.static_topics import Items, QueueMapping, mapping_pieces
from skyroute.wire.codes import ResponseCode
from skyroute.wire.data_version import version_members

ITEMS_MAX: Final = 100_000
"""Items of all logical queues of one broker. A name server takes as many queues of static topics."""

_TABLE: Final = "topicQueueMappingInfoMap"


def read_mappings(raw: object) -> tuple[dict[str, QueueMapping], DataVersion | None]:
    """Parse the file of mappings.

    Raises:
        StoreDamagedError: it is not a table of mappings.
    """
    stored = read_as(raw, dict[str, Any], "the table of static topics")
    return read_member(stored, _TABLE, dict[str, QueueMapping]), read_version(stored)


def read_page_mappings(raw: object) -> dict[str, QueueMapping]:
    """Parse the mappings in a master's table of topics.

    Raises:
        StoreDamagedError: they are not mappings.
    """
    mappings: dict[str, QueueMapping] = read_as(raw or {}, dict[str, QueueMapping], "the master's static topics")
    return mappings


class QueueMappings:
    """The mappings by topic. A caller that changes one saves `table_file` and announces the topic."""

    def __init__(self, file: JsonFile, broker_name: str, now_ms: Callable[[], int]) -> None:
        self._broker_name = broker_name
        self._now_ms = now_ms
        self._table: dict[str, QueueMapping] = {}
        self._items = 0
        self.version = DataVersion(timestamp_ms=now_ms())
        self.table_file = TableFile(file, self.pieces)
        self.get: Callable[[str], QueueMapping | None] = self._table.get

    def __repr__(self) -> str:
        return f"<QueueMappings {len(self._table)} items={self._items}>"

    def __bool__(self) -> bool:
        return bool(self._table)

    def load(self) -> None:
        """Read the file.

        Raises:
            StoreDamagedError: neither the file nor its backup can be used.
        """
        stored = self.table_file.load(read_mappings)
        if stored is None:
            return
        self._table.update(stored[0])
        self.version = stored[1] or self.version
        self._items = sum(map(_count, self._table.values()))
        if self._items > ITEMS_MAX:
            raise StoreDamagedError(f"the table of static topics has more than {ITEMS_MAX} items")

    def all(self) -> Mapping[str, QueueMapping]:
        """Return a live view of all mappings."""
        return MappingProxyType(self._table)

    def summaries(self) -> dict[str, StaticMapping]:
        """Return what name servers get, by topic."""
        return {topic: mapping.summary() for topic, mapping in self._table.items()}

    def put(self, mapping: QueueMapping, *, force: bool) -> None:
        """Set the mapping of a topic. Logical queues of the old mapping that the new one lacks are kept.

        Raises:
            RefusedError: it contradicts the old mapping, is of another broker, or the table is full.
        """
        if mapping.broker_name != self._broker_name:
            raise _refuse(f"the mapping is for broker {mapping.broker_name[:80]} (this is {self._broker_name})")
        old = self._table.get(mapping.topic)
        if old is not None:
            if not force:
                _check_follows(old, mapping)
            mapping = msgspec.structs.replace(mapping, hosted={**old.hosted, **mapping.hosted})
        items = self._items + _count(mapping) - (0 if old is None else _count(old))
        if items > ITEMS_MAX:
            raise _refuse(f"static topics would have {items} items (expected at most {ITEMS_MAX})")
        self._items = items
        self._table[mapping.topic] = mapping
        self._changed()

    def shorten(self, mapping: QueueMapping, hosted: dict[int, Items]) -> bool:
        """Replace the items of a mapping by fewer; False if the table no longer has this mapping."""
        if self._table.get(mapping.topic) is not mapping:
            return False
        shorter = msgspec.structs.replace(mapping, hosted=hosted)
        self._items += _count(shorter) - _count(mapping)
        self._table[mapping.topic] = shorter
        self._changed()
        return True

    def take_over(self, mappings: Mapping[str, QueueMapping]) -> None:
        """Replace all mappings by those of the master.

        Raises:
            StoreDamagedError: they have more than `ITEMS_MAX` items.
        """
        if mappings == self._table:
            return
        items = sum(map(_count, mappings.values()))
        if items > ITEMS_MAX:
            raise StoreDamagedError(f"the master's static topics have {items} items (expected at most {ITEMS_MAX})")
        self._table.clear()
        self._table.update(mappings)
        self._items = items
        self._changed()

    def delete(self, topic: str) -> bool:
        """Remove the mapping of a topic; False if it has none."""
        old = self._table.pop(topic, None)
        if old is None:
            return False
        self._items -= _count(old)
        self._changed()
        return True

    def _changed(self) -> None:
        self.version = next_version(self.version, self._now_ms())
        self.table_file.touch()

    def pieces(self) -> Pieces:
        """Return the table as its file has it, in pieces."""
        members = {"dataVersion": version_members(self.version)}
        return object_pieces(members, {_TABLE: mapping_pieces(dict(self._table))})


def _count(mapping: QueueMapping) -> int:
    return sum(map(len, mapping.hosted.values()))


def _check_follows(old: QueueMapping, new: QueueMapping) -> None:
    """Check that a mapping may replace another one: nothing that messages were written with has changed."""
    if new.epoch < old.epoch:
        raise _refuse(f"Can't accept data with small epoch {new.epoch} < {old.epoch}")
    if new.scope != old.scope:
        raise _refuse(f"Can't accept data with unmatched scope {new.scope[:80]} != {old.scope[:80]}")
    for queue_id, items in old.hosted.items():
        new_items = new.hosted.get(queue_id)
        if new_items is None:
            if new.epoch == old.epoch:
                raise _refuse(f"Cannot accept equal epoch with null data (logical queue {queue_id})")
        elif items:
            _check_items_follow(queue_id, items, new_items, same_epoch=new.epoch == old.epoch)


def _check_items_follow(queue_id: int, old: Items, new: Items, *, same_epoch: bool) -> None:
    if not new:
        raise _refuse(f"logical queue {queue_id} has no items")
    by_generation = {item.generation: item for item in new}
    for item in old:
        found = by_generation.get(item.generation)
        if found is None:
            continue
        is_same = (found.broker_name, found.queue_id, found.start) == (item.broker_name, item.queue_id, item.start)
        if not is_same or (item.is_decided and found.logical_start != item.logical_start):
            raise _refuse(f"an item of logical queue {queue_id} would change: {item} to {found}")
    last, new_last = old[-1], new[-1]
    if same_epoch and (last.generation, last.broker_name, last.queue_id, last.start) != (
        *(new_last.generation, new_last.broker_name),
        *(new_last.queue_id, new_last.start),
    ):
        raise _refuse(f"The new leader is different but epoch equal (logical queue {queue_id})")


def _refuse(reason: str) -> RefusedError:
    return RefusedError(ResponseCode.SYSTEM_ERROR, reason)
