"""Frames of classic replication: a slave reports how far its log is, a master sends bytes of its own.

There is no remoting header, no checksum and no request id. A report is one number. A transfer is a position, a size
and that many bytes of the commit log; a transfer without bytes is a heartbeat.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from skyroute.wire.errors import WireError

_REPORT: Final = Struct(">q")
_TRANSFER: Final = Struct(">qi")

REPORT_BYTES: Final = _REPORT.size
TRANSFER_HEAD_BYTES: Final = _TRANSFER.size
TRANSFER_BYTES_MAX: Final = 4 * 1024 * 1024 - TRANSFER_HEAD_BYTES
"""Bytes of the log in one transfer. Apache's slave reads a transfer into a buffer of 4 MiB."""


class HaFrameError(WireError):
    """Bytes on a replication connection are no frame of the protocol."""


def encode_report(log_end: int) -> bytes:
    """Return the report of a slave whose log ends here."""
    return _REPORT.pack(log_end)


def newest_report(data: bytes | bytearray) -> tuple[int | None, int]:
    """Return the newest complete report, and how many bytes to drop; older reports are out of date.

    Raises:
        HaFrameError: the report is negative.
    """
    used = len(data) - len(data) % REPORT_BYTES
    if not used:
        return None, 0
    log_end: int = _REPORT.unpack_from(data, used - REPORT_BYTES)[0]
    if log_end < 0:
        raise HaFrameError(f"a slave reports the log end {log_end} (expected 0 or more)")
    return log_end, used


def encode_transfer_head(position: int, size: int) -> bytes:
    """Return the start of a transfer of `size` bytes at a position of the log; size 0 is a heartbeat."""
    return _TRANSFER.pack(position, size)


def decode_transfer_head(data: bytes | bytearray | memoryview) -> tuple[int, int]:
    """Return position and size of a transfer.

    Raises:
        HaFrameError: a number is impossible.
    """
    position, size = _TRANSFER.unpack_from(data)
    if position < 0 or not 0 <= size <= TRANSFER_BYTES_MAX:
        raise HaFrameError(
            f"a transfer has {size} bytes at position {position} (expected at most {TRANSFER_BYTES_MAX} at 0 or more)"
        )
    return position, size


class TransferStream:
    """Decodes what a master sends, cut anywhere."""

    def __init__(self) -> None:
        self._head = b""
        """The start of an incomplete head."""
        self._position = 0
        self._left = 0
        """Bytes of the current transfer that are still to come."""

    def feed(self, data: bytes) -> Iterator[tuple[int, memoryview]]:
        """Yield positions with the bytes of the log there; a heartbeat has no bytes.

        Raises:
            HaFrameError: a number is impossible. Nothing behind it is decoded.
        """
        data, at = self._head + data, 0
        view, end = memoryview(data), len(data)
        while at < end:
            if not self._left:
                if end - at < TRANSFER_HEAD_BYTES:
                    break
                self._position, self._left = decode_transfer_head(view[at : at + TRANSFER_HEAD_BYTES])
                at += TRANSFER_HEAD_BYTES
                if not self._left:
                    yield self._position, view[:0]
                    continue
            part = view[at : at + self._left]
            if part:
                yield self._position, part
            at += len(part)
            self._position += len(part)
            self._left -= len(part)
        self._head = data[at:]
