"""Approximate memory of registrations, for the bound `registrationBytesMax`; not a measurement."""

from collections.abc import Collection
from typing import Final

from skyroute.routing.topology import StaticMapping

ENTRY_BYTES: Final = 192
"""Of one topic of one group besides its name: two dictionary entries, its settings, an object header."""
MEMBER_BYTES: Final = 4096
"""Of one broker besides its filter servers; names and addresses are short."""
SERVER_BYTES: Final = 64
MAPPING_BYTES: Final = 512
MAPPED_QUEUE_BYTES: Final = 128
_WIDE_CHAR_BYTES: Final = 6
"""Of a character in a text that is not ASCII, with the UTF-8 copy that Python caches."""


def text_bytes(texts: Collection[str]) -> int:
    """Return the bytes of texts, without object headers."""
    together = "".join(texts)
    if together.isascii():  # the usual case, much faster than one by one
        return len(together)
    return sum(len(text) * (1 if text.isascii() else _WIDE_CHAR_BYTES) for text in texts)


def topic_bytes(topics: Collection[str]) -> int:
    """Return the bytes of the topics of one group."""
    return ENTRY_BYTES * len(topics) + text_bytes(topics)


def server_bytes(filter_servers: Collection[str]) -> int:
    """Return the bytes of the filter servers of one broker."""
    return SERVER_BYTES * len(filter_servers) + text_bytes(filter_servers)


def mapping_bytes(mapping: StaticMapping | None) -> int:
    """Return the bytes of a group's mapping of a static topic."""
    return 0 if mapping is None else MAPPING_BYTES + MAPPED_QUEUE_BYTES * len(mapping.current_ids)
