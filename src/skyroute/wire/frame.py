"""Cuts a stream of bytes into frames, and a frame into header form, header and body.

A frame is a 4-byte length, then that many bytes: a word with the header's form (1 byte) and length (3 bytes), the
header, the body. Only the length is decoded here and, for the few requests that may be longer than others, the
request's code.
"""

from collections.abc import Mapping
from struct import Struct
from types import MappingProxyType
from typing import Final

from skyroute.wire.command import FORM_BINARY, FORM_JSON
from skyroute.wire.errors import FrameError
from skyroute.wire.header import decode_request_header

FRAME_BYTES_MAX: Final = 16 * 1024 * 1024
"""The longest frame, its length word included, that every peer accepts."""

EXEMPT_HEADER_BYTES_MAX: Final = 64 * 1024
"""The longest header of a frame that claims to be one of the exempt kinds."""

_LENGTH: Final = Struct(">I")
_TWO_WORDS: Final = Struct(">II")


class FrameDecoder:
    """Takes received bytes and returns whole frames, each with its length word.

    `exempt` maps a request code to the longest frame of that kind, where it may exceed `frame_bytes_max`.
    """

    __slots__ = ("_bytes_max", "_exempt", "_wanted", "buffer", "failure")

    def __init__(
        self, frame_bytes_max: int = FRAME_BYTES_MAX, exempt: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        self._bytes_max = frame_bytes_max
        self._exempt = exempt
        self._wanted = 0
        """Number of buffered bytes needed before the next check."""
        self.buffer = bytearray()
        """The start of an incomplete frame."""
        self.failure: str | None = None
        """Why the rest of the stream cannot be read. Frames before that point were returned."""

    @property
    def held_bytes(self) -> int:
        """Memory of the buffer, which is larger than its content."""
        return self.buffer.__alloc__()

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the stream and return the frames they complete.

        If valid frames come before a malformed one, they are returned and `failure` is set.

        Raises:
            FrameError: a frame is malformed or too long. The decoder cannot be used afterwards.
        """
        if self.buffer:
            self.buffer += data
            if len(self.buffer) < self._wanted:
                return []
            data = bytes(self.buffer)
            self.buffer = bytearray()
        length: int
        at, end = 0, len(data)
        if 8 <= end <= self._bytes_max:  # most reads are one frame
            (length,) = _LENGTH.unpack_from(data)
            if length == end - 4:
                return [data]
        frames: list[bytes] = []
        try:
            while end - at >= 4:
                (length,) = _LENGTH.unpack_from(data, at)
                stop = at + 4 + length
                if not 4 <= length <= self._bytes_max - 4:
                    self._wanted = self._check_odd_length(data, at, length)
                else:
                    self._wanted = 4 + length
                if stop > end:
                    _check_start(data, at, length)
                    break
                frames.append(data[at:stop])
                at = stop
            else:
                self._wanted = 4
        except FrameError as error:
            self.failure = str(error)  # the error itself would keep the bytes of this call alive
            if not frames:
                raise
            return frames
        if at < end:
            self.buffer += memoryview(data)[at:]
        return frames

    def clear(self) -> None:
        """Free the bytes of an incomplete frame."""
        self.buffer = bytearray()

    def _check_odd_length(self, data: bytes, at: int, length: int) -> int:
        """Check that a frame above the common limit is of an exempt kind.

        Returns how many of its bytes are needed before the next check.
        """
        if length < 4:
            raise FrameError(f"a frame announces {length} bytes; it takes at least 4")
        # Not the error itself: its traceback would have this frame, and both would stay until the collector runs.
        too_long = f"a frame announces {length} bytes; at most {self._bytes_max - 4} are allowed"
        if length + 4 > max(self._exempt.values(), default=0):
            raise FrameError(too_long)
        if len(data) - at < 8:
            return 8
        _, word = _TWO_WORDS.unpack_from(data, at)
        header_bytes: int = word & 0xFFFFFF
        if word >> 24 not in (FORM_JSON, FORM_BINARY) or header_bytes > min(EXEMPT_HEADER_BYTES_MAX, length - 4):
            raise FrameError(too_long)
        if len(data) - at < 8 + header_bytes:
            return 8 + header_bytes
        request = decode_request_header(word >> 24, data[at + 8 : at + 8 + header_bytes])
        if request.is_response or length + 4 > self._exempt.get(request.code, 0):
            raise FrameError(too_long)
        return 4 + length


def _check_start(data: bytes, at: int, length: int) -> None:
    """Reject an incomplete frame whose header word is invalid, without waiting for the rest."""
    if len(data) - at < 8:
        return
    _, word = _TWO_WORDS.unpack_from(data, at)
    if word >> 24 not in (FORM_JSON, FORM_BINARY):
        raise FrameError(f"a header of form {word >> 24}; 0 (JSON) and 1 (binary) are known")
    if word & 0xFFFFFF > length - 4:
        raise FrameError(f"a frame of {length + 4} bytes announces a header of {word & 0xFFFFFF}")
