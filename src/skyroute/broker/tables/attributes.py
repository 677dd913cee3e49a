"""Attributes of topics and groups. Refusals have the texts of Apache's brokers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skyroute.remoting.errors import RefusedError
from skyroute.wire.codes import ResponseCode

MESSAGE_TYPE: Final = "message.type"
MIXED: Final = "MIXED"
QUEUE_TYPE: Final = "queue.type"
BATCH_QUEUE: Final = "BatchCQ"
"""The type of queues that store a batch as one record."""
CLEANUP_POLICY: Final = "cleanup.policy"


@dataclass(frozen=True, slots=True)
class Attribute:
    """The values of an attribute."""

    values: tuple[str, ...]
    changeable: bool
    supported: tuple[str, ...]
    """The values that this broker supports."""


_MESSAGE_TYPES: Final = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", MIXED)

TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    QUEUE_TYPE: Attribute((BATCH_QUEUE, "SimpleCQ"), changeable=False, supported=(BATCH_QUEUE, "SimpleCQ")),
    CLEANUP_POLICY: Attribute(("DELETE", "COMPACTION"), changeable=False, supported=("DELETE",)),
    MESSAGE_TYPE: Attribute(_MESSAGE_TYPES, changeable=True, supported=_MESSAGE_TYPES),
}
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {}


def alter(
    current: Mapping[str, str] | None, changes: Mapping[str, str | None], known: Mapping[str, Attribute]
) -> dict[str, str]:
    """Return the attributes after a change; `current` is None for a new topic or group.

    Raises:
        RefusedError: the change is not allowed.
    """
    for name, value in changes.items():
        if current is None and value is None:
            raise _refused(f"only add attribute is supported while creating topic. key: {name}")
        if current is not None and value is None and name not in current:
            raise _refused(f"attempt to delete a nonexistent key: {name}")
        attribute = known.get(name)
        if attribute is None:
            # Apache knows this key, for a tiered store.
            raise _refused(
                "Update topic reserveTime not supported" if name == "reserve.time" else f"unsupported key: {name[:80]}"
            )
        if current is not None and not attribute.changeable:
            raise _refused(f"attempt to update an unchangeable attribute. key: {name}")
        if value is not None and value not in attribute.values:
            raise _refused(f"value is not in set: [{', '.join(attribute.values)}]")
        if value is not None and value not in attribute.supported:
            raise _refused(f"{name}={value} is not supported by this broker")
    merged = {**(current or {}), **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _refused(reason: str) -> RefusedError:
    return RefusedError(ResponseCode.SYSTEM_ERROR, reason)
