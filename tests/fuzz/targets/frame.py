"""Frames: a stream gives the same frames however it is cut, and every byte is in a frame or waits in the buffer.

Input: a byte with the size of the pieces, then the stream.
"""

from typing import Final

from skyroute.wire.errors import FrameError
from skyroute.wire.frame import FrameDecoder
from skyroute.wire.header import decode_command

FRAME_BYTES_MAX: Final = 96
EXEMPT: Final = {103: 512}
"""Small limits: a short input reaches frames above the limit."""


def cut(stream: bytes, step: int) -> tuple[list[bytes], str | None, bytes]:
    """Return the frames of a stream that arrives in pieces, why it failed, and the bytes that wait."""
    decoder = FrameDecoder(FRAME_BYTES_MAX, EXEMPT)
    frames: list[bytes] = []
    for at in range(0, len(stream), step):
        try:
            frames += decoder.feed(stream[at : at + step])
        except FrameError as error:
            return frames, str(error), b""
        if decoder.failure is not None:
            return frames, decoder.failure, b""
    return frames, None, bytes(decoder.buffer)


def is_refused(frame: bytes) -> bool:
    """Return whether the header of a frame cannot be decoded."""
    try:
        decode_command(frame)
    except FrameError:
        return True
    return False


def check(data: bytes) -> None:
    step, stream = (data[0] % 64 + 1, data[1:]) if data else (1, b"")
    whole, failure, rest = cut(stream, max(len(stream), 1))
    pieces, pieces_failure, pieces_rest = cut(stream, step)
    for frames, failed, waiting in ((whole, failure, rest), (pieces, pieces_failure, pieces_rest)):
        assert failed is not None or b"".join(frames) + waiting == stream
    if failure is None and pieces_failure is None:
        assert whole == pieces
    else:
        # The start of an incomplete frame is checked if it arrives at once; any other frame when it is decoded.
        shorter, longer = sorted((whole, pieces), key=len)
        assert longer[: len(shorter)] == shorter
        assert len(shorter) == len(longer) or is_refused(longer[len(shorter)])
    for frame in whole:
        is_refused(frame)
