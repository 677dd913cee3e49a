"""How far queues are read, as Spark's checkpoint keeps it: `{"Orders": {"broker-a:0": 17}}`, always in the same order.

Spark compares offsets as texts, so that another order of the same numbers would be news to it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from skyroute.message.queue_ref import QueueRef

Offsets = dict[QueueRef, int]

_EXAMPLE: Final = 'JSON such as {"Orders": {"broker-a:0": 17, "broker-a:1": 3}}'


def to_json(offsets: Mapping[QueueRef, int]) -> dict[str, dict[str, int]]:
    """Return offsets in the form that Spark keeps."""
    found: dict[str, dict[str, int]] = {}
    for queue in sorted(offsets):
        found.setdefault(queue.topic, {})[f"{queue.broker_name}:{queue.queue_id}"] = offsets[queue]
    return found


def from_json(said: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Return offsets from the form that Spark keeps, or a person has written.

    Raises:
        ValueError: it is not of that form.
    """
    found: Offsets = {}
    for topic, queues in _pairs(said):
        for name, offset in _pairs(queues):
            if not isinstance(offset, int) or isinstance(offset, bool):
                raise ValueError(_EXAMPLE)  # noqa: TRY004 - what is wrong is the text that it was read from
            found[parse_queue(topic, name)] = offset
    return found


def parse_offsets(text: str) -> Offsets:
    """Return offsets from a text.

    Raises:
        ValueError: it is not of that form.
    """
    return from_json(parse_json(text, _EXAMPLE))


def parse_json(text: str, example: str) -> Any:
    """Return what a text says in JSON.

    Raises:
        ValueError: it is none.
    """
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(example) from None


def parse_queue(topic: str, name: str) -> QueueRef:
    """Return the queue that is called `broker:number`.

    Raises:
        ValueError: none is.
    """
    broker_name, _, number = name.rpartition(":")
    if not broker_name or not (number.isascii() and number.isdigit()):
        raise ValueError(f'of queues by broker and number, such as "broker-a:0" ({name!r} is none)')
    return QueueRef(topic, broker_name, int(number))


def _pairs(said: object) -> list[tuple[str, Any]]:
    if not isinstance(said, Mapping):
        raise ValueError(_EXAMPLE)  # noqa: TRY004 - what is wrong is the text that it was read from
    return [(str(name), value) for name, value in said.items()]
