"""Frames of replication: a stream of a slave or a master gives the same values however it is cut.

Input: a byte for the protocol, a byte with the size of the pieces, then the stream.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from skyroute.wire.auto_switch import (
    FrameHeader,
    MasterHello,
    MasterStream,
    ReplicationProtocolError,
    SlaveHello,
    SlaveStream,
    encode_ack,
    encode_frame_header,
    encode_master_hello,
    encode_slave_hello,
)
from skyroute.wire.ha import HaFrameError, TransferStream, encode_report, newest_report

Feed = Callable[[bytes], Iterable[Any]]


def values_of(feed: Feed, pieces: Iterable[bytes]) -> tuple[list[Any], bool]:
    """Return what a stream gives, and whether it was refused."""
    found: list[Any] = []
    try:
        for piece in pieces:
            found.extend(feed(piece))
    except ReplicationProtocolError:
        return found, True
    return found, False


def encoded(value: Any) -> bytes:
    """Return the bytes of a value of a stream."""
    match value:
        case SlaveHello():
            return encode_slave_hello(value)
        case int():
            return encode_ack(value)
        case MasterHello():
            return encode_master_hello(value)
        case FrameHeader() as header, body:
            assert header.body_bytes == len(body)
            return encode_frame_header(header) + bytes(body)
    raise AssertionError(value)


def check_auto_switch(new_stream: Callable[[], SlaveStream | MasterStream], stream: bytes, step: int) -> None:
    whole, is_refused = values_of(new_stream().feed, [stream])
    pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
    assert values_of(new_stream().feed, pieces) == (whole, is_refused)
    again = b"".join(map(encoded, whole))
    assert values_of(new_stream().feed, [again]) == (whole, False)
    assert is_refused or len(again) <= len(stream)


def check_reports(stream: bytes) -> None:
    try:
        log_end, used = newest_report(stream)
    except HaFrameError:
        return
    if log_end is None:
        assert not used
    else:
        assert stream[:used].endswith(encode_report(log_end))
        assert len(stream) - used < len(encode_report(0))


def parts_of(pieces: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """Return the bytes of the log in a stream of transfers, adjacent ones in one; a refusal ends it."""
    stream, found = TransferStream(), [(-1, b"")]
    with suppress(HaFrameError):
        for piece in pieces:
            for position, part in stream.feed(piece):
                start, before = found[-1]
                if before and part and start + len(before) == position:
                    found[-1] = start, before + part
                else:
                    found.append((position, bytes(part)))
    return found


def check_transfers(stream: bytes, step: int) -> None:
    assert parts_of(stream[at : at + step] for at in range(0, len(stream), step)) == parts_of([stream])


CHECKS: Final[tuple[Callable[[bytes, int], None], ...]] = (
    lambda stream, step: check_auto_switch(SlaveStream, stream, step),
    lambda stream, step: check_auto_switch(MasterStream, stream, step),
    lambda stream, _: check_reports(stream),
    check_transfers,
)


def check(data: bytes) -> None:
    if len(data) > 1:
        CHECKS[data[0] % len(CHECKS)](data[2:], data[1] % 64 + 1)
