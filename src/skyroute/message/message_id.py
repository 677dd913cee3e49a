"""The two ids of a message: one says where a broker stored it, the other which client made it.

Both are upper-case hexadecimal and of the same lengths, 32 characters for IPv4 and 56 for IPv6, so nothing in an id
tells which of the two it is.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from skyroute.message.errors import MessageIdError
from skyroute.message.host import Host, decode_host, encode_ip
from skyroute.message.positions import LogPosition

_POSITION: Final = Struct(">q")
_IPV4_ID_CHARS: Final = 32
_IPV6_ID_CHARS: Final = 56
_CLOCK_STEP_BACK_MS_MAX: Final = 1_000_000


class OffsetId(NamedTuple):
    """What an offset message id says: which broker stored the record, and where in its commit log."""

    store_host: Host
    log_position: LogPosition


class UniqueId(NamedTuple):
    """What a unique message id says of the client that made it, and when."""

    ip: str
    pid: int
    """Its lower 16 bits."""
    process_hash: int
    into_month_ms: int
    """Milliseconds since the month began where the client is."""
    counter: int


def encode_offset_id(raw_store_host: bytes, log_position: int) -> str:
    """Return the id of the record at a position of the log of the broker at these 8 or 20 bytes of address."""
    return f"{_upper_hex(raw_store_host)}{log_position & 0xFFFFFFFFFFFFFFFF:016X}"


def encode_offset_ids(raw_store_host: bytes, log_positions: Sequence[int]) -> str:
    """Return such ids of many records, with commas between them."""
    pieces = [raw_store_host] * (2 * len(log_positions))
    pieces[1::2] = map(_POSITION.pack, log_positions)
    return b"".join(pieces).hex(",", len(raw_store_host) + _POSITION.size).upper()


@lru_cache(maxsize=64)
def _upper_hex(raw: bytes) -> str:
    return raw.hex().upper()


def decode_offset_id(text: str) -> OffsetId:
    """Read an offset message id.

    Raises:
        MessageIdError: it is none.
    """
    raw = _decode_hex(text)
    return OffsetId(decode_host(raw[:-8]), LogPosition(int.from_bytes(raw[-8:], "big", signed=True)))


def unique_id_prefix(ip: str, pid: int, process_hash: int) -> str:
    """Return the part of unique ids that stays the same for a process; any number will do as its hash.

    Raises:
        HostError: the address is none.
    """
    return f"{encode_ip(ip).hex().upper()}{pid & 0xFFFF:04X}{process_hash & 0xFFFFFFFF:08X}"


def encode_unique_id(prefix: str, into_month_ms: int, counter: int) -> str:
    """Return the next unique id of a process. The counter may run on for ever: its lower 16 bits are used."""
    if -_CLOCK_STEP_BACK_MS_MAX < into_month_ms < 0:
        into_month_ms = 0
    return f"{prefix}{into_month_ms & 0xFFFFFFFF:08X}{counter & 0xFFFF:04X}"


def decode_unique_id(text: str) -> UniqueId:
    """Read a unique message id.

    Raises:
        MessageIdError: it is none.
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
    """Return when the month began, in the time zone of `now`: what unique ids count from."""
    return now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def created_at(unique_id: UniqueId, now: datetime) -> datetime:
    """Return when an id was made, taking it to be less than a month old and from the time zone of `now`."""
    start = month_start(now)
    if _after(start, unique_id.into_month_ms) > now:
        start = month_start(start - timedelta(days=1))
    return _after(start, unique_id.into_month_ms)


def _after(start: datetime, milliseconds: int) -> datetime:
    # By way of UTC, because a month may hold a change between summer and winter time.
    return (start.astimezone(UTC) + timedelta(milliseconds=milliseconds)).astimezone(start.tzinfo)


def _decode_hex(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text) if len(text) in (_IPV4_ID_CHARS, _IPV6_ID_CHARS) else b""
    except ValueError:
        raw = b""
    # fromhex skips blanks, which no id has.
    if len(raw) * 2 != len(text) or not raw:
        raise MessageIdError(f"not a message id: {text[:80]!r}")
    return raw
