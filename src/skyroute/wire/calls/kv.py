"""Key-value config on the wire."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from skyroute.wire import fastjson
from skyroute.wire.command import Request
from skyroute.wire.errors import FieldError
from skyroute.wire.fastjson import Dialect

ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"
"""The namespace that says on which brokers, with how many queues, an ordered topic lives."""


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


def encode_kv_table(table: Mapping[str, str]) -> bytes:
    """Write the values of one namespace."""
    return fastjson.dumps({"table": table}, Dialect.LEGACY)
