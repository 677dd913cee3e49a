"""Times in the records of the timer topic."""

from typing import Final

from skyroute.message.message import StoredMessage
from skyroute.message.properties import find_property
from skyroute.message.property_names import TIMER_OUT_MS, TIMER_ROLL_TIMES

ROLL_MS: Final = 2 * 86_400_000
"""A message with a longer delay is rolled after this time: appended again, so that it does not expire with the old log.
It is Apache's default and cannot be set, because any later process derives from it which messages were rolled."""


def recall_key(topic: str, unique_id: str) -> str:
    """Return the key by which a recall mark names its message."""
    return f"{topic}+{unique_id}"


def out_ms_of(message: StoredMessage) -> int:
    """Return the slot in which a message is due; 0 if it has none."""
    return _int(find_property(message.raw_properties, TIMER_OUT_MS))


def slot_of(message: StoredMessage) -> int:
    """Return the slot in which a message is delivered or rolled, whichever is first."""
    out_ms = out_ms_of(message)
    if out_ms - message.stored_at_ms < ROLL_MS:
        return out_ms
    return (message.stored_at_ms + ROLL_MS) // 1000 * 1000


def rolls_of(message: StoredMessage) -> int:
    """Return how often a message was rolled."""
    return _int(find_property(message.raw_properties, TIMER_ROLL_TIMES))


def _int(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else 0
