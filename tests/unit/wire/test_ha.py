"""Frames of classic replication."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.wire.ha import (
    TRANSFER_BYTES_MAX,
    HaFrameError,
    TransferStream,
    decode_transfer_head,
    encode_report,
    encode_transfer_head,
    newest_report,
)


def test_only_the_newest_complete_report_counts() -> None:
    assert newest_report(b"") == (None, 0)
    assert newest_report(encode_report(7)[:5]) == (None, 0)
    assert newest_report(encode_report(7) + encode_report(9) + b"\0\0\0") == (9, 16)


def test_a_negative_report_is_no_frame() -> None:
    with pytest.raises(HaFrameError, match="the log end -1"):
        newest_report(encode_report(-1))


def test_the_head_of_a_transfer_has_position_and_size() -> None:
    assert encode_transfer_head(1 << 33, 32768) == bytes.fromhex("00000002 00000000 00008000")
    assert decode_transfer_head(encode_transfer_head(1 << 33, 0)) == (1 << 33, 0)


@pytest.mark.parametrize(("position", "size"), [(-1, 0), (0, -1), (0, TRANSFER_BYTES_MAX + 1)])
def test_an_impossible_transfer_is_no_frame(position: int, size: int) -> None:
    with pytest.raises(HaFrameError):
        decode_transfer_head(encode_transfer_head(position, size))


@given(st.lists(st.binary(max_size=40), max_size=8), st.integers(min_value=1, max_value=60))
def test_transfers_that_are_cut_anywhere_have_the_same_bytes_at_the_same_positions(
    bodies: list[bytes], step: int
) -> None:
    sent, log, heartbeats = b"", bytearray(), []
    for body in bodies:
        sent += encode_transfer_head(len(log), len(body)) + body
        if not body:
            heartbeats.append(len(log))
        log += body
    stream, received, beats = TransferStream(), bytearray(), []
    for at in range(0, len(sent), step):
        for position, part in stream.feed(sent[at : at + step]):
            assert position == len(received)
            received += part
            if not part:
                beats.append(position)
    assert (received, beats) == (log, heartbeats)


def test_an_impossible_transfer_ends_a_stream() -> None:
    stream = TransferStream()
    assert [bytes(part) for _, part in stream.feed(encode_transfer_head(0, 3) + b"ab")] == [b"ab"]
    with pytest.raises(HaFrameError, match="-1 bytes"):
        list(stream.feed(b"c" + encode_transfer_head(3, 0)[:8] + b"\xff\xff\xff\xff"))
