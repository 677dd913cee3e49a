"""Queue offsets in the JSON of Spark's checkpoint: `{"Orders": {"broker-a:0": 17}}`.

Spark compares offsets as text, so equal offsets must always give the same text.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from skyroute.message.queue_ref import QueueRef

Offsets = dict[QueueRef, int]

START: Final = ""
"""The key of the start offsets of a first batch, beside those of its end. No topic has this name."""

_EXAMPLE: Final = 'JSON such as {"Orders": {"broker-a:0": 17, "broker-a:1": 3}}'


def to_json(offsets: Mapping[QueueRef, int]) -> dict[str, dict[str, int]]:
    """Return offsets in the form of the checkpoint, sorted by queue."""
    found: dict[str, dict[str, int]] = {}
    for queue in sorted(offsets):
        found.setdefault(queue.topic, {})[f"{queue.broker_name}:{queue.queue_id}"] = offsets[queue]
    return found


def from_json(value: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """Return offsets from the form of the checkpoint, without those under `START`.

    Raises:
        ValueError: the value has another form; the text says what is expected.
    """
    found: Offsets = {}
    for topic, queues in _pairs(value):
        if topic == START:
            continue
        for name, offset in _pairs(queues):
            if not isinstance(offset, int) or isinstance(offset, bool):
                raise ValueError(_EXAMPLE)  # noqa: TRY004 - the text it was parsed from is wrong
            found[parse_queue(topic, name)] = offset
    return found


def parse_offsets(text: str) -> Offsets:
    """Return offsets from JSON text.

    Raises:
        ValueError: the text has another form; the error says what is expected.
    """
    return from_json(parse_json(text, _EXAMPLE))


def parse_json(text: str, expected: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON; the error's text is `expected`.
    """
    try:
        return json.loads(text)
    except ValueError:
        raise ValueError(expected) from None


def parse_queue(topic: str, name: str) -> QueueRef:
    """Return the queue of a topic with the name `broker:queue_id`.

    Raises:
        ValueError: the name has another form.
    """
    broker_name, _, number = name.rpartition(":")
    if not broker_name or not (number.isascii() and number.isdigit()):
        raise ValueError(f'queues such as "broker-a:0"; {name!r} is not one')
    return QueueRef(topic, broker_name, int(number))


def _pairs(value: object) -> list[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        raise ValueError(_EXAMPLE)  # noqa: TRY004 - the text it was parsed from is wrong
    return [(str(name), each) for name, each in value.items()]
