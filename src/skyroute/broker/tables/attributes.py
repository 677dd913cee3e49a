"""Attributes of topics and groups. Refusals have the texts of Apache's brokers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skyroute.remoting.errors import RefusedError
from skyroute.wire.codes import ResponseCode

MESSAGE_TYPE: Final = "message.type"
MIXED: Final = "MIXED"
PRIORITY: Final = "PRIORITY"
"""A topic whose queue with the highest number is popped first; messages choose their queue by their priority."""
PRIORITY_FACTOR: Final = "priority.factor"
"""Percentage of a group's pops that begin with the highest priority."""
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

    def check(self, name: str, value: str) -> None:
        """Check a value.

        Raises:
            RefusedError: it is not allowed.
        """
        if value not in self.values:
            raise _refused(f"value is not in set: [{', '.join(self.values)}]")
        if value not in self.supported:
            raise _refused(f"{name}={value} is not supported by this broker")


@dataclass(frozen=True, slots=True)
class NumberAttribute:
    """The range of an attribute with a number, which can be changed."""

    low: int
    high: int
    default: int
    changeable: bool = True

    def check(self, _name: str, value: str) -> None:
        """Check a value.

        Raises:
            RefusedError: it is not a number of the range.
        """
        if not (value.isascii() and value.isdigit() and len(value) < 19 and self.low <= int(value) <= self.high):
            raise _refused(f"value is not in range({self.low}, {self.high})")


_MESSAGE_TYPES: Final = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", PRIORITY, MIXED)

TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    QUEUE_TYPE: Attribute((BATCH_QUEUE, "SimpleCQ"), changeable=False, supported=(BATCH_QUEUE, "SimpleCQ")),
    CLEANUP_POLICY: Attribute(("DELETE", "COMPACTION"), changeable=False, supported=("DELETE",)),
    MESSAGE_TYPE: Attribute(_MESSAGE_TYPES, changeable=True, supported=_MESSAGE_TYPES),
}
PRIORITY_FACTORS: Final = NumberAttribute(0, 100, 100)
GROUP_ATTRIBUTES: Final[Mapping[str, NumberAttribute]] = {PRIORITY_FACTOR: PRIORITY_FACTORS}


def alter(
    current: Mapping[str, str] | None,
    changes: Mapping[str, str | None],
    known: Mapping[str, Attribute] | Mapping[str, NumberAttribute],
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
        if value is not None:
            attribute.check(name, value)
    merged = {**(current or {}), **changes}
    return {name: value for name, value in merged.items() if value is not None}


def _refused(reason: str) -> RefusedError:
    return RefusedError(ResponseCode.SYSTEM_ERROR, reason)
