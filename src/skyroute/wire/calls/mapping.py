"""A broker's mapping of a static topic, in registrations and routes."""

from functools import partial
from typing import Any

import msgspec

from skyroute.routing.topology import StaticMapping
from skyroute.wire import fastjson
from skyroute.wire.command import Int32, Int64
from skyroute.wire.fastjson import Dialect


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


def write_mapping(mapping: StaticMapping, dialect: Dialect) -> str:
    """Encode a mapping as `mapping_members` has it."""
    write_text, ids = (
        partial(fastjson.write_text, dialect=dialect),
        fastjson.write_numbers(mapping.current_ids, dialect),
    )
    return (
        f'{{"bname":{write_text(mapping.broker_name)},"currIdMap":{ids},'
        f'"dirty":{"true" if mapping.dirty else "false"},"epoch":{fastjson.write(mapping.epoch, dialect)},'
        f'"scope":{write_text(mapping.scope)},"topic":{write_text(mapping.topic)},"totalQueues":{mapping.total_queues}}}'
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
