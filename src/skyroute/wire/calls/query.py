"""Finding single messages at a broker: by key, by the producer's id, or by their place in the log."""

from typing import Final

from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request

FOREVER_MS: Final = (1 << 63) - 1
UNIQUE_QUERY_MAX: Final = 32
"""A broker gives no more messages with the same producer's id."""


def encode_key_query(
    topic: str,
    key: str,
    *,
    count_max: int,
    begin_ms: int = 0,
    end_ms: int = FOREVER_MS,
    unique: bool = False,
    index_type: str | None = None,
    last_key: str | None = None,
) -> Request:
    """Ask a broker for messages with a key, or with `unique` for those with a producer's id.

    `index_type` (`K`: keys, `T`: tags) and `last_key` (go on behind it) mean something to brokers from 5.5 on only, and
    only to those that keep their index in RocksDB.
    """
    fields = {
        "topic": topic,
        "key": key,
        "maxNum": str(count_max),
        "beginTimestamp": str(begin_ms),
        "endTimestamp": str(end_ms),
        "_UNIQUE_KEY_QUERY": "true" if unique else "false",
    }
    if index_type is not None:
        fields["indexType"] = index_type
    if last_key is not None:
        fields["lastKey"] = last_key
    return Request(RequestCode.QUERY_MESSAGE, fields)


def encode_view(topic: str, log_position: int) -> Request:
    """Ask a broker for the message at a place of its log."""
    return Request(RequestCode.VIEW_MESSAGE_BY_ID, {"topic": topic, "offset": str(log_position)})
