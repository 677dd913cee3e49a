"""Answers that are long by nature: made in steps, bounded in size, and kept for as long as nothing changes."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final

from skyroute.remoting.errors import RefusedError
from skyroute.remoting.pace import Steps
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

ANSWER_BYTES_MAX: Final = 128 * 1024 * 1024
"""How long an answer may be. Most clients read no frame of more than 16 MiB."""

KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""How long an answer may be that is kept."""

LIST_BYTES_MAX: Final = 512 * 1024
"""How long a list of topics or groups to create may be; 2,000 topics take half of it."""

STEP_BYTES: Final = 16 * 1024
"""After so many bytes of an answer, others are served."""

STEP_PARTS: Final = 500
"""After so many parts of an answer, such as one queue each, others are served: that is about 5 ms."""


Pieces = Sequence[bytes]
"""A body in pieces, of which there is one at least."""


def check_list(request: Request) -> None:
    """Let pass a request with a list of topics or groups, which is read in one go.

    Raises:
        RefusedError: it is too long.
    """
    if len(request.body) > LIST_BYTES_MAX:
        raise RefusedError(
            ResponseCode.INVALID_PARAMETER,
            f"the list has {len(request.body)} bytes (expected at most {LIST_BYTES_MAX}): send it in several parts",
        )


def in_pieces(parts: Iterable[str]) -> Iterator[bytes]:
    """Give the parts of a text as pieces of at most `STEP_PARTS`."""
    texts: list[str] = []
    for text in parts:
        texts.append(text)
        if len(texts) == STEP_PARTS:
            yield "".join(texts).encode("utf-8", "replace")
            texts.clear()
    yield "".join(texts).encode("utf-8", "replace")


def gather(pieces: Iterable[bytes]) -> Generator[None, None, Pieces]:
    """Return the pieces of a body, made in steps and put together to some `STEP_BYTES` each.

    Raises:
        RefusedError: they are longer than `ANSWER_BYTES_MAX`.
    """
    gathered: list[bytes] = []
    step: list[bytes] = []
    size = step_bytes = 0
    for piece in pieces:
        step.append(piece)
        step_bytes += len(piece)
        if step_bytes >= STEP_BYTES:
            gathered.append(b"".join(step))
            size += step_bytes
            step, step_bytes = [], 0
            if size > ANSWER_BYTES_MAX:
                raise RefusedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the answer has more than {ANSWER_BYTES_MAX} bytes: ask about fewer topics or groups at a time",
                )
            yield
    gathered.append(b"".join(step))
    return gathered


def respond(pieces: Pieces, fields: dict[str, str] | None = None) -> Response:
    """Answer with a body in pieces, which are not copied together: for 70 MB that would take 50 ms."""
    return Response(fields=fields, body=pieces[0], more=[memoryview(piece) for piece in pieces[1:]])


def answer_with(pieces: Iterable[bytes]) -> Steps:
    """Answer with a body that is given in pieces.

    Raises:
        RefusedError: it is longer than `ANSWER_BYTES_MAX`.
    """
    gathered = yield from gather(pieces)
    return respond(gathered)


class Kept:
    """The last long answer of one kind, with the edition of the table that it tells of."""

    __slots__ = ("_edition", "_pieces")

    def __init__(self) -> None:
        self._edition: object = None
        self._pieces: Pieces = []

    def find(self, edition: object, pieces: Callable[[], Iterable[bytes]]) -> Generator[None, None, Pieces]:
        """Return the body for an edition: the kept one, or else what `pieces` gives.

        Raises:
            RefusedError: it is longer than `ANSWER_BYTES_MAX`.
        """
        if self._edition == edition:
            return self._pieces
        gathered = yield from gather(pieces())
        if sum(map(len, gathered)) <= KEPT_BYTES_MAX:
            self._edition, self._pieces = edition, gathered
        return gathered
