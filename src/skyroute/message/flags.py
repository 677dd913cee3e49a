"""The bits of a record's system flag: compression, address families, transaction state.

Plain numbers, because every record that passes is tested for some of them.
"""

from enum import IntEnum
from typing import Final

from skyroute.message.errors import CompressionError

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
"""The topic's filter type was MULTI_TAG when the record was stored. Not used by readers."""
TRANSACTION_MASK: Final = 0xC
BORN_HOST_IPV6: Final = 0x10
STORE_HOST_IPV6: Final = 0x20
NEEDS_UNWRAPPING: Final = 0x40
INNER_BATCH: Final = 0x80
COMPRESSION_MASK: Final = 0x700

HOSTS_IPV6: Final = BORN_HOST_IPV6 | STORE_HOST_IPV6
WRAPPED_BATCH: Final = NEEDS_UNWRAPPING | INNER_BATCH


class TransactionState(IntEnum):
    """Transaction state of a record: two bits of the system flag."""

    NONE = 0x0
    PREPARED = 0x4
    COMMITTED = 0x8
    ROLLED_BACK = 0xC


class Compression(IntEnum):
    """Compression type of a body: three bits of the system flag.

    LZ4 and Zstandard need the extras `skyroute[lz4]` and `skyroute[zstd]`.

    Examples:
        >>> producer = Producer("orders", compression=Compression.ZSTD)
    """

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def transaction_of(sys_flag: int) -> TransactionState:
    """Return the transaction state of a flag."""
    return TransactionState(sys_flag & TRANSACTION_MASK)


def with_transaction(sys_flag: int, state: TransactionState) -> int:
    """Return the flag with another transaction state."""
    return sys_flag & ~TRANSACTION_MASK | int(state)


def compression_of(sys_flag: int) -> Compression | None:
    """Return the compression type of a body, or None if it is not compressed.

    Raises:
        CompressionError: the compression type is unknown.
    """
    if not sys_flag & COMPRESSED:
        return None
    kind = (sys_flag & COMPRESSION_MASK) >> 8
    # Old clients, and Go's client, leave the type bits zero and mean zlib.
    if kind == 0:
        return Compression.ZLIB
    try:
        return Compression(kind)
    except ValueError:
        raise CompressionError(f"unknown compression type {kind} (expected 0 to 3)") from None


def with_compression(sys_flag: int, compression: Compression | None) -> int:
    """Return the flag with this compression type; None for no compression."""
    plain = sys_flag & ~(COMPRESSED | COMPRESSION_MASK)
    return plain if compression is None else plain | COMPRESSED | int(compression) << 8
