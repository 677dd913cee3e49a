"""The epoch file of a replica: refused, or what is read survives writing.

Input: a byte that says whether the checksum is right, then the lines of the epochs.
"""

from zlib import crc32

from skyroute.broker.replication.epochs import parse_epochs, render_epochs
from skyroute.broker.store.errors import StoreDamagedError


def content_of(data: bytes) -> bytes:
    how, lines = (data[0], data[1:]) if data else (0, b"")
    if how & 2:
        return lines
    return b"%d\n%d\n%s" % (lines.count(b"\n"), (crc32(lines) & 0x7FFFFFFF) ^ (how & 1), lines)


def check(data: bytes) -> None:
    try:
        epochs = parse_epochs(content_of(data))
    except StoreDamagedError:
        return
    numbers = [epoch.number for epoch in epochs]
    assert numbers == sorted(set(numbers))
    assert parse_epochs(render_epochs(epochs)) == epochs
