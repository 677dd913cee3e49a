"""What the records of the timer topic say of their times."""

from typing import Final

from skyroute.message.message import StoredMessage
from skyroute.message.properties import find_property
from skyroute.message.property_names import TIMER_OUT_MS, TIMER_ROLL_TIMES

RENEW_MS: Final = 2 * 86_400_000
"""A message that waits longer is stored anew after this time, so that it does not expire with the old log. Apache's
default, and no setting: which messages were renewed is told from their times, by any later process too."""


def withdrawal_key(topic: str, unique_id: str) -> str:
    """Return what a mark says of the message that it withdraws."""
    return f"{topic}+{unique_id}"


def out_ms_of(message: StoredMessage) -> int:
    """Return the slot that a message of the timer topic waits for; one that does not say it is due."""
    return _int(find_property(message.raw_properties, TIMER_OUT_MS))


def slot_of(message: StoredMessage) -> int:
    """Return the slot at which something has to be done with a message: it is delivered, or, before that, renewed."""
    out_ms = out_ms_of(message)
    if out_ms - message.stored_at_ms < RENEW_MS:
        return out_ms
    return (message.stored_at_ms + RENEW_MS) // 1000 * 1000


def renewals_of(message: StoredMessage) -> int:
    """Return how often a message was stored anew while it waited."""
    return _int(find_property(message.raw_properties, TIMER_ROLL_TIMES))


def _int(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else 0
