"""Key-value config on the wire."""

from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

from skyroute.wire.command import Request
from skyroute.wire.errors import FieldError
from skyroute.wire.fastjson import Dialect, write_text

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace that says on which brokers, with how many queues, an ordered topic lives."""

ENTRIES_A_STEP: Final = 2_000
"""How much of a long table is written before others have their turn: a few milliseconds."""

_LEGACY: Final = Dialect.LEGACY


class KvKey(NamedTuple):
    """Where a value is kept."""

    namespace: str
    key: str


def decode_kv_key(request: Request) -> KvKey:
    """Read which value is meant.

    Raises:
        FieldError: namespace or key is missing.
    """
    namespace, key = request.fields.get("namespace"), request.fields.get("key")
    if not namespace or not key:
        raise FieldError("namespace or key is null")
    return KvKey(namespace, key)


def encode_kv_table(table: Mapping[str, str]) -> Generator[None, None, bytes]:
    """Write the values of one namespace, in steps."""
    entries = list(table.items())
    parts: list[str] = []
    for at in range(0, len(entries), ENTRIES_A_STEP):
        some = entries[at : at + ENTRIES_A_STEP]
        parts.append(",".join([f"{write_text(key, _LEGACY)}:{write_text(value, _LEGACY)}" for key, value in some]))
        yield
    return f'{{"table":{{{",".join(parts)}}}}}'.encode("utf-8", "replace")
