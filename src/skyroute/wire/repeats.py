"""Answers to questions that were asked before, found by the bytes of the question.

Clients ask for the same routes again and again, and what they send differs in one place only: the request's number.
So a question is known by what stands before and after that number, and its answer is ready but for the same number.
Only JSON headers without a body are looked at; everything else takes the ordinary way.
"""

from typing import Final

from skyroute.wire.command import FORM_JSON, Request, Response
from skyroute.wire.header import response_head

FRAME_BYTES_MAX: Final = 1024
"""A question worth remembering is short."""

REMEMBERED_MAX: Final = 20_000

_DIGITS_MAX: Final = 9
"""Numbers of more digits may not fit 32 bits."""

_ZERO: Final = ord("0")
_NUMBER_KEY: Final = b'"opaque":'


class Repeats:
    """Give it a frame; it gives back the pieces of the answer's frame, if the same was asked before."""

    __slots__ = ("_known", "found")

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, bytes], tuple[bytes, bytes, bytes]] = {}
        self.found = 0
        """How often the answer was there."""

    def find(self, frame: bytes) -> tuple[bytes, bytes, bytes, bytes] | None:
        """Return the answer in four pieces, the second of which is the number and the last the body."""
        if not self._known or len(frame) > FRAME_BYTES_MAX:
            return None
        before, _, rest = frame.partition(_NUMBER_KEY)
        number, _, after = rest.partition(b",")
        known = self._known.get((before, after))
        if known is None or not number.isdigit() or (number[0] == _ZERO and len(number) > 1):
            return None
        self.found += 1
        # The frame's own length is part of `before`, so the number has as many digits as when this was remembered.
        return known[0], number, known[1], known[2]

    def remember(self, frame: bytes, request: Request, response: Response) -> None:
        """Keep an answer until `forget`. What cannot be told apart by its bytes alone is not kept."""
        # A number of 0 may also stand for one that is missing, and what looks like it be something else.
        if len(frame) > FRAME_BYTES_MAX or request.form != FORM_JSON or request.body or request.request_id == 0:
            return
        before, _, rest = frame.partition(_NUMBER_KEY)
        number, _, after = rest.partition(b",")
        plain = frame.count(b"opaque") == 1 and b"\\" not in frame and number == b"%d" % request.request_id
        if not plain or len(number) > _DIGITS_MAX:
            return
        if len(self._known) >= REMEMBERED_MAX:
            self._known.clear()
        head = response_head(response, request.request_id, FORM_JSON)
        start, _, tail = head.rpartition(_NUMBER_KEY)
        self._known[before, after] = (start + _NUMBER_KEY, tail[len(number) :], response.body)

    def forget(self) -> None:
        """Drop everything: an answer may have changed."""
        self._known.clear()
