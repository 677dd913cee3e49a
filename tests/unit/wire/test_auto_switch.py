"""Frames of controller mode: golden bytes, any split, and bad input."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.wire.auto_switch import (
    BODY_BYTES_MAX,
    Epoch,
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

HELLO = MasterHello(219_500, (Epoch(1, 0), Epoch(2, 219_145)))


def test_frames_have_the_layout_of_apaches() -> None:
    assert encode_slave_hello(SlaveHello(2, from_last_file=True)).hex() == "00000001000100000000000000000002"
    assert encode_slave_hello(SlaveHello(3, is_learner=True)).hex() == "00000001000000010000000000000003"
    assert encode_ack(219_145).hex() == "000000020000000000035809"
    assert encode_master_hello(HELLO).hex() == (
        "00000001" "00000018" "000000000003596c" "00000002"
        "00000001" "0000000000000000" "00000002" "0000000000035809"
    )  # fmt: skip
    header = FrameHeader(219_145, 3, Epoch(2, 219_145), 219_000)
    assert encode_frame_header(header).hex() == (
        "000000020000000300000000000358090000000200000000000358090000000000035778"
    )


@given(st.lists(st.integers(1, 40), max_size=30))
def test_a_slaves_bytes_may_come_in_any_pieces(sizes: list[int]) -> None:
    sent = encode_slave_hello(SlaveHello(2)) + encode_ack(0) + encode_ack(77)
    stream, at = SlaveStream(), 0
    found: list[object] = []
    for size in [*sizes, len(sent)]:
        found += stream.feed(sent[at : at + size])
        at += size
    assert found == [SlaveHello(2), 0, 77]


@given(st.lists(st.integers(1, 90), max_size=30))
def test_a_masters_bytes_may_come_in_any_pieces(sizes: list[int]) -> None:
    first = FrameHeader(0, 5, Epoch(1, 0), 0)
    beat = FrameHeader(5, 0, Epoch(2, 5), 5)
    sent = encode_master_hello(HELLO) + encode_frame_header(first) + b"abcde" + encode_frame_header(beat)
    stream, at = MasterStream(), 0
    found: list[object] = []
    for size in [*sizes, len(sent)]:
        found += stream.feed(sent[at : at + size])
        at += size
    assert found == [HELLO, (first, b"abcde"), (beat, b"")]


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\0\0\0\0\0",  # a classic slave's report of an empty log
        b"GET / HTTP/1.1\r\n\r\n",
        encode_ack(5),
        encode_slave_hello(SlaveHello(2)) + encode_slave_hello(SlaveHello(2)),
        encode_slave_hello(SlaveHello(2)) + encode_ack(-1),
        encode_slave_hello(SlaveHello(-7)),
    ],
)
def test_what_no_slave_sends_is_refused(data: bytes) -> None:
    with pytest.raises(ReplicationProtocolError):
        list(SlaveStream().feed(data))


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        encode_frame_header(FrameHeader(0, 0, Epoch(1, 0), 0)),
        b"\0\0\0\1\0\0\0\x0b" + bytes(12 + 11),
        encode_master_hello(HELLO) + encode_frame_header(FrameHeader(0, BODY_BYTES_MAX + 1, Epoch(1, 0), 0)),
        encode_master_hello(HELLO) + encode_frame_header(FrameHeader(0, -1, Epoch(1, 0), 0)),
    ],
)
def test_what_no_master_sends_is_refused(data: bytes) -> None:
    with pytest.raises(ReplicationProtocolError):
        list(MasterStream().feed(data))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_waited_for(data: bytes) -> None:
    for stream in (SlaveStream(), MasterStream()):
        try:
            list(stream.feed(data))
        except ReplicationProtocolError:
            continue
