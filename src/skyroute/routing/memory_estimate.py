"""Approximate memory of registrations in a table: the base of a bound, not a measurement."""

from collections.abc import Collection
from typing import Final

from skyroute.routing.topology import StaticMapping

ENTRY_BYTES: Final = 192
"""Of one topic of one group besides its name: its places in two dictionaries, its settings, an object's head."""
MEMBER_BYTES: Final = 4096
"""Of one broker besides its filter servers; names and addresses are short."""
SERVER_BYTES: Final = 64
MAPPING_BYTES: Final = 512
MAPPED_QUEUE_BYTES: Final = 128
_WIDE_CHAR_BYTES: Final = 6
"""Of a character in a text that is not ASCII, with the copy that Python keeps once it was encoded."""


def text_bytes(texts: Collection[str]) -> int:
    """Return what texts take, without the heads of their objects."""
    together = "".join(texts)
    if together.isascii():  # nearly always, and much quicker than one by one
        return len(together)
    return sum(len(text) * (1 if text.isascii() else _WIDE_CHAR_BYTES) for text in texts)


def topic_bytes(topics: Collection[str]) -> int:
    """Return what the topics of one group take."""
    return ENTRY_BYTES * len(topics) + text_bytes(topics)


def server_bytes(filter_servers: Collection[str]) -> int:
    """Return what the filter servers of one broker take."""
    return SERVER_BYTES * len(filter_servers) + text_bytes(filter_servers)


def mapping_bytes(mapping: StaticMapping | None) -> int:
    """Return what a group's part of a static topic takes."""
    return 0 if mapping is None else MAPPING_BYTES + MAPPED_QUEUE_BYTES * len(mapping.current_ids)
