"""The two ids of a message: the offset id (broker and log position) and the unique id (producer).

Both are upper-case hexadecimal and of the same lengths, 32 characters for IPv4 and 56 for IPv6, so nothing in an id
tells which of the two it is.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from skyroute.message.columns import put_column
from skyroute.message.errors import MessageIdError
from skyroute.message.host import Host, decode_host, encode_ip
from skyroute.message.positions import LogPosition

_POSITION_BYTES: Final = 8
_IPV4_ID_CHARS: Final = 32
_IPV6_ID_CHARS: Final = 56
_CLOCK_STEP_BACK_MS_MAX: Final = 1_000_000


class OffsetId(NamedTuple):
    """The fields of an offset message id: broker address and position in its commit log."""

    store_host: Host
    log_position: LogPosition


class UniqueId(NamedTuple):
    """The fields of a unique message id: client and time."""

    ip: str
    pid: int
    """Its lower 16 bits."""
    process_hash: int
    into_month_ms: int
    """Milliseconds since the start of the month in the client's time zone."""
    counter: int


def encode_offset_id(raw_store_host: bytes, log_position: int) -> str:
    """Return the offset id of a record, from the 8 or 20 bytes of the broker's address and its log position."""
    return f"{_upper_hex(raw_store_host)}{log_position & 0xFFFFFFFFFFFFFFFF:016X}"


def encode_offset_ids(raw_store_host: bytes, log_positions: Sequence[int]) -> str:
    """Return the offset ids of many records, separated by commas."""
    host_bytes = len(raw_store_host)
    id_bytes = host_bytes + _POSITION_BYTES
    ids = bytearray((raw_store_host + bytes(_POSITION_BYTES)) * len(log_positions))
    put_column(ids, id_bytes, ("q", host_bytes), log_positions)
    return ids.hex(",", id_bytes).upper()


@lru_cache(maxsize=64)
def _upper_hex(raw: bytes) -> str:
    return raw.hex().upper()


def decode_offset_id(text: str) -> OffsetId:
    """Decode an offset message id.

    Raises:
        MessageIdError: it is invalid.
    """
    raw = _decode_hex(text)
    return OffsetId(decode_host(raw[:-8]), LogPosition(int.from_bytes(raw[-8:], "big", signed=True)))


def unique_id_prefix(ip: str, pid: int, process_hash: int) -> str:
    """Return the prefix of all unique ids of a process; `process_hash` may be any number.

    Raises:
        HostError: the address is invalid.
    """
    return f"{encode_ip(ip).hex().upper()}{pid & 0xFFFF:04X}{process_hash & 0xFFFFFFFF:08X}"


def encode_unique_id(prefix: str, into_month_ms: int, counter: int) -> str:
    """Return a unique id. Only the lower 16 bits of the counter are used."""
    if -_CLOCK_STEP_BACK_MS_MAX < into_month_ms < 0:
        into_month_ms = 0
    return f"{prefix}{into_month_ms & 0xFFFFFFFF:08X}{counter & 0xFFFF:04X}"


def decode_unique_id(text: str) -> UniqueId:
    """Decode a unique message id.

    Raises:
        MessageIdError: it is invalid.
    """
    raw = _decode_hex(text)
    ip, rest = raw[:-12], raw[-12:]
    return UniqueId(
        ip=decode_host(ip + bytes(4)).ip,
        pid=int.from_bytes(rest[:2], "big"),
        process_hash=int.from_bytes(rest[2:6], "big", signed=True),
        into_month_ms=int.from_bytes(rest[6:10], "big"),
        counter=int.from_bytes(rest[10:], "big"),
    )


def month_start(now: datetime) -> datetime:
    """Return the start of the month in the time zone of `now`: the zero of times in unique ids."""
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def created_at(unique_id: UniqueId, now: datetime) -> datetime:
    """Return the time of an id, assuming that it is less than a month old and from the time zone of `now`."""
    start = month_start(now)
    if _after(start, unique_id.into_month_ms) > now:
        start = month_start(start - timedelta(days=1))
    return _after(start, unique_id.into_month_ms)


def _after(start: datetime, milliseconds: int) -> datetime:
    # In UTC, because daylight saving time may change within the month.
    return (start.astimezone(UTC) + timedelta(milliseconds=milliseconds)).astimezone(start.tzinfo)


def _decode_hex(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text) if len(text) in (_IPV4_ID_CHARS, _IPV6_ID_CHARS) else b""
    except ValueError:
        raw = b""
    # fromhex accepts blanks, which are invalid in an id.
    if len(raw) * 2 != len(text) or not raw:
        raise MessageIdError(f"not a message id: {text[:80]!r}")
    return raw
