"""Requests of the key-value config."""

from collections.abc import Generator, Mapping
from typing import Final, NamedTuple

from skyroute.routing.topology import QUEUES_MAX, ROUTE_QUEUES_MAX
from skyroute.wire.command import Request
from skyroute.wire.errors import FieldError
from skyroute.wire.fastjson import Dialect, write_text

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""Namespace of order configs: brokers and queue counts of ordered topics."""
_COUNT_CHARS_MAX: Final = 9

KV_ENTRIES_A_STEP: Final = 2_000
"""Entries of a long table written in one step: a few milliseconds."""

_LEGACY: Final = Dialect.LEGACY


class KvKey(NamedTuple):
    """Namespace and key of a value."""

    namespace: str
    key: str


def decode_kv_key(request: Request) -> KvKey:
    """Decode namespace and key.

    Raises:
        FieldError: namespace or key is missing.
    """
    namespace, key = request.fields.get("namespace"), request.fields.get("key")
    if not namespace or not key:
        raise FieldError("namespace or key is null")
    return KvKey(namespace, key)


def check_order_config(text: str) -> None:
    """Check the queue counts of an order config, `broker:queues;broker:queues`.

    Raises:
        FieldError: a queue count, or all together, is out of bounds.
    """
    # Some clients read the count from the second piece of an item, others from the last: check all.
    pieces = [piece.strip() for item in text.split(";") for piece in item.split(":")[1:]]
    counts = [piece for piece in pieces if piece.isdecimal()]
    for count in counts:
        if len(count) > _COUNT_CHARS_MAX or int(count) > QUEUES_MAX:
            raise FieldError(f"value: an order config has {count[:20]} queues on a broker (expected 0 to {QUEUES_MAX})")
    if sum(map(int, counts)) > ROUTE_QUEUES_MAX:
        raise FieldError(f"value: an order config has more than {ROUTE_QUEUES_MAX} queues on all brokers")


def encode_kv_table(table: Mapping[str, str]) -> Generator[None, None, bytes]:
    """Encode the values of one namespace, in steps."""
    entries = list(table.items())
    parts: list[str] = []
    for at in range(0, len(entries), KV_ENTRIES_A_STEP):
        if parts:
            yield
        some = entries[at : at + KV_ENTRIES_A_STEP]
        parts.append(",".join([f"{write_text(key, _LEGACY)}:{write_text(value, _LEGACY)}" for key, value in some]))
    return f'{{"table":{{{",".join(parts)}}}}}'.encode("utf-8", "replace")
