"""Finds the nonzero parts of a segment. Holes of a sparse file are not read."""

import errno
import os
from collections.abc import Iterator
from typing import Final

from skyroute.broker.store.files.segment import Segment

CHUNK_BYTES: Final = 1 << 20
"""Bytes of a file that are compared with zeros at once."""

_ZEROS: Final = bytes(CHUNK_BYTES)


def data_chunks(segment: Segment, at: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of a segment, from an offset on, that are not all zero, at most `CHUNK_BYTES` each."""
    while at < segment.size:
        at, stop = _next_extent(segment, at)
        while at < stop:
            high = min(at + CHUNK_BYTES, stop)
            chunk = segment.read(at, high - at)
            if chunk != _ZEROS[: len(chunk)]:
                yield at, high
            at = high


def _next_extent(segment: Segment, at: int) -> tuple[int, int]:
    """Return start and end of the next data of a sparse file, from an offset on."""
    try:
        start = os.lseek(segment.descriptor, at, os.SEEK_DATA)
        return start, min(os.lseek(segment.descriptor, start, os.SEEK_HOLE), segment.size)
    except OSError as error:
        # ENXIO: a hole up to the end. Other errors: the file system does not support it.
        return (segment.size, segment.size) if error.errno == errno.ENXIO else (at, segment.size)


def last_data(segment: Segment, at: int) -> int:
    """Return the offset behind the last nonzero byte; `at` if all bytes from there on are zero."""
    end = at
    for low, high in data_chunks(segment, at):
        end = low + len(segment.read(low, high - low).rstrip(b"\0"))
    return end


def has_data(segment: Segment, at: int, stop: int) -> bool:
    """Return whether a range has a nonzero byte."""
    return any(
        segment.read(low, min(high, stop) - low).strip(b"\0") for low, high in data_chunks(segment, at) if low < stop
    )
