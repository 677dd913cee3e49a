"""A broker's mapping of a static topic, in registrations and routes."""

from typing import Any

import msgspec

from skyroute.routing.topology import StaticMapping
from skyroute.wire.command import Int32, Int64


class MappingBody(msgspec.Struct, rename="camel"):
    """A broker's mapping of a static topic, in JSON."""

    bname: str
    topic: str = ""
    total_queues: Int32 = 0
    epoch: Int64 = 0
    scope: str | None = "__global__"
    dirty: bool = False
    curr_id_map: dict[Int32, Int32] | None = None

    def value(self, topic: str) -> StaticMapping:
        return StaticMapping(
            topic=self.topic or topic,
            broker_name=self.bname,
            total_queues=self.total_queues,
            epoch=self.epoch,
            scope=self.scope or "__global__",
            dirty=self.dirty,
            current_ids=self.curr_id_map or {},
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
