import tracemalloc
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.wire.errors import FrameError, HeaderError
from skyroute.wire.frame import EXEMPT_HEADER_BYTES_MAX, FRAME_BYTES_MAX, FrameDecoder
from skyroute.wire.header import decode_command
from tests.support.hang_guard import hang_guard
from tests.unit.wire.by_hand import BINARY, JSON, binary_header, frame, json_header, words
from tests.unit.wire.golden import golden_bytes

ROUTE_REQUEST = golden_bytes("spec/a-route-request-json.hex")
REGISTRATION = golden_bytes("apache-5.5.0/register-binary-compressed.hex")
HEARTBEAT = golden_bytes("apache-5.5.0/heartbeat-json.hex")
STREAM = ROUTE_REQUEST + REGISTRATION + HEARTBEAT
FRAMES = [ROUTE_REQUEST, REGISTRATION, HEARTBEAT]

REGISTER_BROKER = 103
FORMS = pytest.mark.parametrize("form", [JSON, BINARY])


def header_of(form: int, code: int, flag: int = 0) -> bytes:
    fields = {"brokerName": "broker-a"}
    if form == BINARY:
        return binary_header(code, flag=flag, fields=fields)
    return json_header(code=code, flag=flag, extFields=fields)


def pieces(stream: bytes, size: int) -> Iterator[bytes]:
    return (stream[at : at + size] for at in range(0, len(stream), size))


def drip(decoder: FrameDecoder, stream: bytes, size: int = 1) -> list[bytes]:
    return [taken for data in pieces(stream, size) for taken in decoder.feed(data)]


def refused_after(decoder: FrameDecoder, stream: bytes) -> int:
    """How many bytes of the stream, one at a time, it takes until the decoder has had enough."""
    for taken, byte in enumerate(pieces(stream, 1), 1):
        try:
            decoder.feed(byte)
        except FrameError:
            return taken
    pytest.fail("the stream was not refused")


# ------------------------------------------------------------------------------------------------------- cutting


def test_a_frame_comes_out_with_its_length() -> None:
    assert FrameDecoder().feed(ROUTE_REQUEST) == [ROUTE_REQUEST]


def test_several_frames_in_one_segment_all_come_out() -> None:
    assert FrameDecoder().feed(STREAM) == FRAMES


def test_a_stream_one_byte_at_a_time_gives_the_same_frames() -> None:
    assert drip(FrameDecoder(), STREAM) == FRAMES


def test_a_stream_split_once_anywhere_gives_the_same_frames() -> None:
    for at in range(len(STREAM) + 1):
        decoder = FrameDecoder()
        assert decoder.feed(STREAM[:at]) + decoder.feed(STREAM[at:]) == FRAMES


@settings(deadline=None)
@given(
    headers=st.lists(st.binary(max_size=36), max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_any_split_of_any_frames_gives_the_same_frames(headers: list[bytes], cuts: list[int]) -> None:
    frames = [words(4 + len(header), len(header)) + header for header in headers]
    stream = b"".join(frames)
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    decoder = FrameDecoder()
    fed = [decoder.feed(stream[start:stop]) for start, stop in pairwise(bounds)]
    assert [taken for several in fed for taken in several] == frames
    assert len(decoder.buffer) == 0


@pytest.mark.parametrize(
    "start",
    [words(2000, 2 << 24 | 10), words(2000, 1997), words(2000, 1 << 24 | 5000)],
    ids=["an unknown form", "a header longer than its frame", "the same in binary"],
)
def test_an_invalid_header_word_is_refused_before_the_frame_is_complete(start: bytes) -> None:
    with pytest.raises(FrameError, match="header of"):
        FrameDecoder().feed(start)
    decoder = FrameDecoder()
    assert decoder.feed(ROUTE_REQUEST + start + b"{") == [ROUTE_REQUEST]
    assert decoder.failure is not None


def test_no_bytes_are_no_frames() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(b"") == []
    decoder.feed(ROUTE_REQUEST[:6])
    assert decoder.feed(b"") == []
    assert decoder.feed(ROUTE_REQUEST[6:]) == [ROUTE_REQUEST]


def test_the_shortest_frame_is_one_word() -> None:
    assert FrameDecoder().feed(words(4, 0)) == [b"\0\0\0\x04\0\0\0\0"]


def test_frames_are_bytes_that_outlive_the_decoder() -> None:
    decoder = FrameDecoder()
    [first] = drip(decoder, ROUTE_REQUEST)
    drip(decoder, HEARTBEAT)
    assert first == ROUTE_REQUEST
    assert type(first) is bytes


# ------------------------------------------------------------------------------------------------------ accounting


def test_the_buffer_holds_the_bytes_of_an_incomplete_frame() -> None:
    decoder = FrameDecoder()
    for taken in range(1, len(ROUTE_REQUEST)):
        decoder.feed(ROUTE_REQUEST[taken - 1 : taken])
        assert len(decoder.buffer) == taken
    decoder.feed(ROUTE_REQUEST[-1:])
    assert len(decoder.buffer) == 0


def test_whole_frames_are_not_counted_as_buffered() -> None:
    decoder = FrameDecoder()
    decoder.feed(STREAM + ROUTE_REQUEST[:5])
    assert len(decoder.buffer) == 5


def test_a_megabyte_sent_byte_by_byte_takes_linear_time() -> None:
    stream = frame(json_header(code=103), b"x" * (1 << 20))
    with hang_guard():  # reading the whole buffer again with each new byte would take many minutes
        assert drip(FrameDecoder(), stream) == [stream]


def test_many_small_frames_in_one_segment_take_linear_time() -> None:
    stream = words(4, 0) * (1 << 17)
    with hang_guard():
        assert len(FrameDecoder().feed(stream)) == 1 << 17


def test_an_incomplete_frame_takes_little_more_memory_than_its_bytes() -> None:
    stream = frame(json_header(code=103), b"x" * (4 << 20))
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        drip(decoder, stream[:-1], size=1000)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(decoder.buffer) == len(stream) - 1
    assert held < 1.5 * len(stream)
    assert peak < 2.5 * len(stream)


def test_an_announced_length_alone_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        decoders = [FrameDecoder() for _ in range(100)]
        for decoder in decoders:
            decoder.feed(words(16_777_212, 0))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000


# ---------------------------------------------------------------------------------------------------------- limits


def test_a_frame_of_the_largest_length_comes_out_whole() -> None:
    header = json_header(code=105)
    stream = frame(header, bytes(FRAME_BYTES_MAX - 8 - len(header)))
    assert len(stream) == FRAME_BYTES_MAX
    [taken] = drip(FrameDecoder(), stream, size=1 << 16)
    assert taken == stream
    assert int.from_bytes(taken[:4]) == 16_777_212


@pytest.mark.parametrize("length", [16_777_213, 1 << 25, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_a_longer_frame_is_refused_with_its_fourth_byte(length: int) -> None:
    assert refused_after(FrameDecoder(), length.to_bytes(4) + bytes(8)) == 4


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_a_frame_too_short_for_its_second_word_is_refused_with_its_fourth_byte(length: int) -> None:
    assert refused_after(FrameDecoder(), length.to_bytes(4) + bytes(8)) == 4


def test_the_limit_counts_the_length_word() -> None:
    longest = bytes([0, 0, 0, 96]) + bytes(96)
    assert FrameDecoder(100).feed(longest) == [longest]
    with pytest.raises(FrameError, match="97 bytes; at most 96"):
        FrameDecoder(100).feed(bytes([0, 0, 0, 97]))


def test_a_malformed_frame_after_valid_ones_is_refused() -> None:
    decoder = FrameDecoder()
    assert drip(decoder, STREAM) == FRAMES
    with pytest.raises(FrameError, match="at least 4"):
        decoder.feed(bytes(4))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ((3).to_bytes(4), "3 bytes; it takes at least 4"),
        ((4997).to_bytes(4), "4997 bytes; at most 996"),
        (b"GET / HTTP/1.1", "at most 996"),
        (frame(header_of(JSON, 105), b"x" * 4000), "at most 996"),
        (frame(header_of(BINARY, 105), b"x" * 4000, BINARY), "at most 996"),
        (frame(b"{" * 30, b"x" * 4000), "not JSON"),
    ],
)
def test_valid_frames_before_a_malformed_one_are_returned_and_the_failure_is_kept(bad: bytes, reason: str) -> None:
    stream = ROUTE_REQUEST + HEARTBEAT
    for at in range(len(stream)):
        decoder = small_decoder()
        frames = decoder.feed(stream[:at])
        failures = [decoder.failure]
        assert frames + decoder.feed(stream[at:] + bad) == [ROUTE_REQUEST, HEARTBEAT]
        failures.append(decoder.failure)
        assert failures[0] is None
        assert failures[1] is not None
        assert reason in failures[1]


def test_a_malformed_first_frame_is_raised_and_kept() -> None:
    decoder = FrameDecoder()
    with pytest.raises(FrameError) as caught:
        decoder.feed(bytes(4) + ROUTE_REQUEST)
    assert decoder.failure == str(caught.value)


def test_a_valid_stream_has_no_failure() -> None:
    decoder = FrameDecoder()
    decoder.feed(STREAM + ROUTE_REQUEST[:5])
    assert decoder.failure is None


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01\x02\0", b"PROXY TCP4 ", b"\r\n\r\n\0\r\n"])
def test_other_protocols_are_refused_with_their_fourth_byte(start: bytes) -> None:
    assert refused_after(FrameDecoder(), start) == 4


@FORMS
@pytest.mark.parametrize("lie", [1, 1000, 0xFFFFFF - 131])
def test_a_header_longer_than_its_frame_is_refused(form: int, lie: int) -> None:
    [taken] = FrameDecoder().feed(words(4 + 131, 131 + lie, form) + bytes(131))
    with pytest.raises(FrameError, match="announces a header"):
        decode_command(taken)


@pytest.mark.parametrize("form", [2, 3, 123, 255])
def test_an_unknown_form_of_header_is_refused(form: int) -> None:
    header = json_header(code=105)
    [taken] = FrameDecoder().feed(frame(header, form=form))
    with pytest.raises(HeaderError, match=f"form {form}"):
        decode_command(taken)


@FORMS
def test_what_follows_the_header_is_the_body(form: int) -> None:
    [taken] = FrameDecoder().feed(frame(header_of(form, 100), b"\0body\xff", form))
    assert decode_command(taken).body == b"\0body\xff"


# --------------------------------------------------------------------------------------------------- exempt frames


def small_decoder() -> FrameDecoder:
    """A limit of 1000 bytes for all, and of 5000 for registrations."""
    return FrameDecoder(1000, {REGISTER_BROKER: 5000})


@FORMS
def test_an_exempt_frame_may_exceed_the_common_limit(form: int) -> None:
    stream = frame(header_of(form, REGISTER_BROKER), b"x" * 4000, form)
    assert small_decoder().feed(stream) == [stream]
    assert drip(small_decoder(), stream) == [stream]


@FORMS
def test_an_exempt_frame_split_once_anywhere_comes_out_whole(form: int) -> None:
    stream = frame(header_of(form, REGISTER_BROKER), b"x" * 1200, form) + ROUTE_REQUEST
    for at in range(0, len(stream), 7):
        decoder = small_decoder()
        assert len(decoder.feed(stream[:at]) + decoder.feed(stream[at:])) == 2


@FORMS
def test_an_exempt_frame_may_come_between_others(form: int) -> None:
    exempt = frame(header_of(form, REGISTER_BROKER), b"x" * 4000, form)
    assert small_decoder().feed(ROUTE_REQUEST + exempt + HEARTBEAT + exempt) == [
        ROUTE_REQUEST,
        exempt,
        HEARTBEAT,
        exempt,
    ]


@FORMS
def test_an_oversize_frame_of_another_kind_is_refused_with_the_last_byte_of_its_header(form: int) -> None:
    header = header_of(form, 105)
    stream = frame(header, b"x" * 4000, form)
    assert refused_after(small_decoder(), stream) == 8 + len(header)


@FORMS
def test_a_response_is_never_exempt(form: int) -> None:
    header = header_of(form, REGISTER_BROKER, flag=1)
    stream = frame(header, b"x" * 4000, form)
    assert refused_after(small_decoder(), stream) == 8 + len(header)


@FORMS
def test_the_exemption_has_a_limit_of_its_own(form: int) -> None:
    header = header_of(form, REGISTER_BROKER)
    longest = frame(header, b"x" * (5000 - 8 - len(header)), form)
    assert len(small_decoder().feed(longest)) == 1
    assert refused_after(small_decoder(), frame(header, b"x" * (5001 - 8 - len(header)), form)) == 4


@FORMS
def test_each_exempt_kind_is_held_to_its_own_limit(form: int) -> None:
    decoder = FrameDecoder(1000, {REGISTER_BROKER: 5000, 217: 2000})
    assert len(decoder.feed(frame(header_of(form, 217), b"x" * 1500, form))) == 1
    header = header_of(form, 217)
    assert refused_after(decoder, frame(header, b"x" * 3000, form)) == 8 + len(header)


def test_an_exempt_frame_with_a_giant_header_is_refused_with_its_eighth_byte() -> None:
    decoder = FrameDecoder(1000, {REGISTER_BROKER: 1 << 20})
    stream = words(1 << 18, EXEMPT_HEADER_BYTES_MAX + 1) + bytes(100)
    assert refused_after(decoder, stream) == 8


def test_an_exempt_frame_may_have_the_longest_header_allowed() -> None:
    decoder = FrameDecoder(1000, {REGISTER_BROKER: 1 << 20})
    header = json_header(code=REGISTER_BROKER).ljust(EXEMPT_HEADER_BYTES_MAX)
    assert len(decoder.feed(frame(header, b"body"))) == 1


@pytest.mark.parametrize(
    ("form", "header"),
    [(JSON, b"{" + b"x" * 30), (JSON, b""), (BINARY, b"\0" * 10), (BINARY, b""), (2, b"x" * 30)],
)
def test_an_oversize_frame_whose_header_cannot_be_read_is_refused(form: int, header: bytes) -> None:
    stream = frame(header, b"x" * 4000, form)
    assert refused_after(small_decoder(), stream) <= 8 + len(header)


def test_nothing_is_exempt_by_default() -> None:
    header = json_header(code=REGISTER_BROKER)
    assert refused_after(FrameDecoder(1000), frame(header, b"x" * 4000)) == 4


def test_an_exempt_megabyte_sent_byte_by_byte_takes_linear_time() -> None:
    decoder = FrameDecoder(1000, {REGISTER_BROKER: 1 << 24})
    stream = frame(json_header(code=REGISTER_BROKER), b"x" * (1 << 20))
    with hang_guard():
        assert drip(decoder, stream) == [stream]
