"""Frames of classic replication."""

import pytest

from skyroute.wire.ha import (
    TRANSFER_BYTES_MAX,
    HaFrameError,
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
