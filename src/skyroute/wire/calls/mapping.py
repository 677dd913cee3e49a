"""A broker's mapping of a static topic, in registrations and routes."""

from typing import Any

import msgspec

from skyroute.routing.topology import StaticMapping
from skyroute.wire.command import Int32, Int64


class MappingBody(msgspec.Struct):
    """A broker's mapping of a static topic, in JSON."""

    bname: str
    topic: str = ""
    totalQueues: Int32 = 0  # noqa: N815 - the wire's name
    epoch: Int64 = 0
    scope: str | None = "__global__"
    dirty: bool = False
    currIdMap: dict[Int32, Int32] | None = None  # noqa: N815 - the wire's name

    def value(self, topic: str) -> StaticMapping:
        return StaticMapping(
            topic=self.topic or topic,
            broker_name=self.bname,
            total_queues=self.totalQueues,
            epoch=self.epoch,
            scope=self.scope or "__global__",
            dirty=self.dirty,
            current_ids=self.currIdMap or {},
        )


def mapping_members(mapping: StaticMapping) -> dict[str, Any]:
    """Return a mapping as members of a JSON object."""
    return {
        "bname": mapping.broker_name,
        "currIdMap": mapping.current_ids,
        "dirty": mapping.dirty,
        "epoch": mapping.epoch,
        "scope": mapping.scope,
        "topic": mapping.topic,
        "totalQueues": mapping.total_queues,
    }
