"""Batch reads that let Spark push conditions to the brokers: by time to offsets, by queue, and by tag."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from skyroute.message.queue_ref import QueueRef
from skyroute.message.tags import EVERY_TAG
from skyroute.pipeline.source.batch import BatchReader
from skyroute.pipeline.source.options import Position, PositionKind

_TIME: Final = "store_timestamp"


class FilteringReader(BatchReader):
    """Narrows a read by the conditions on `store_timestamp`, `queue_id` and `tags`. Spark checks all of them again."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        """Take what brokers can use, and return all conditions: a broker's filter may let others through."""
        for each in filters:
            (name,), kind = each.attribute, type(each).__name__
            name = {"storeTimestamp": _TIME, "queueId": "queue_id"}.get(name, name)
            match name, kind:
                case "store_timestamp", "GreaterThan" | "GreaterThanOrEqual" | "EqualTo":
                    self._since_ms = max(self._since_ms or 0, _milliseconds(each.value))
                case "queue_id", "EqualTo" | "In":
                    found = {each.value} if kind == "EqualTo" else set(each.value)
                    self._queue_ids = found if self._queue_ids is None else self._queue_ids & found
                case "tags", "EqualTo" | "In" if self._options.expression == EVERY_TAG:
                    tags = [each.value] if kind == "EqualTo" else each.value
                    if all(isinstance(tag, str) and tag.strip() == tag and tag and "|" not in tag for tag in tags):
                        self._options = replace(self._options, expression=" || ".join(tags))
            if name == _TIME and kind in ("LessThan", "LessThanOrEqual", "EqualTo"):
                until_ms = _milliseconds(each.value) + 1
                self._until_ms = until_ms if self._until_ms is None else min(self._until_ms, until_ms)
        return filters

    def _wanted_queues(self, queues: Iterable[QueueRef]) -> list[QueueRef]:
        return [queue for queue in queues if self._queue_ids is None or queue.queue_id in self._queue_ids]

    def _bounds(self) -> tuple[Position | None, Position | None]:
        def at(time_ms: int | None) -> Position | None:
            return None if time_ms is None else Position(PositionKind.TIME, time_ms=time_ms)

        return at(self._since_ms), at(self._until_ms)


def _milliseconds(value: datetime) -> int:
    return int(value.timestamp() * 1000)
