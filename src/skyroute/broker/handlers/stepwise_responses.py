"""Long responses: written in steps, bounded in size, and cached until the table changes."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final

from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import Steps
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.fast_path import PreparedResponse

RESPONSE_BYTES_MAX: Final = 128 * 1024 * 1024
"""Maximum size of a response. Most clients refuse frames above 16 MiB."""

CACHED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum size of a cached response."""

LIST_BYTES_MAX: Final = 512 * 1024
"""Maximum size of a list of topics or groups to create; 2,000 topics take half of it."""

STEP_BYTES: Final = 16 * 1024
"""Bytes of a response written in one step."""

STEP_PARTS: Final = 500
"""Parts of a response, such as queues, written in one step: about 5 ms."""

STEP_PIECES: Final = 20
"""Pieces of a response written in one step. Their parts may all be empty, if most of a table is left out."""


Pieces = Sequence[bytes]
"""A body in one or more pieces."""


def check_list_size(request: Request) -> None:
    """Check the size of a request with a list of topics or groups, which is parsed in one step.

    Raises:
        RefusedError: the list is too long.
    """
    if len(request.body) > LIST_BYTES_MAX:
        raise RefusedError(
            ResponseCode.INVALID_PARAMETER,
            f"the list has {len(request.body)} bytes (expected at most {LIST_BYTES_MAX}): send it in several parts",
        )


def join_parts(parts: Iterable[str]) -> Iterator[bytes]:
    """Join the parts of a text into pieces of at most `STEP_PARTS` parts."""
    texts: list[str] = []
    for text in parts:
        texts.append(text)
        if len(texts) == STEP_PARTS:
            yield "".join(texts).encode("utf-8", "replace")
            texts.clear()
    yield "".join(texts).encode("utf-8", "replace")


def write_body(pieces: Iterable[bytes]) -> Generator[None, None, Pieces]:
    """Write a body in steps; return it in pieces of about `STEP_BYTES`, or of `STEP_PIECES`.

    Raises:
        RefusedError: the body is longer than `RESPONSE_BYTES_MAX`.
    """
    body: list[bytes] = []
    step: list[bytes] = []
    size = step_bytes = 0
    for piece in pieces:
        step.append(piece)
        step_bytes += len(piece)
        if step_bytes >= STEP_BYTES or len(step) >= STEP_PIECES:
            if step_bytes:
                body.append(b"".join(step))
            size += step_bytes
            step, step_bytes = [], 0
            if size > RESPONSE_BYTES_MAX:
                raise RefusedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the response has more than {RESPONSE_BYTES_MAX} bytes: request fewer topics or groups at a time",
                )
            yield
    body.append(b"".join(step))
    return body


def make_response(pieces: Pieces, fields: dict[str, str] | None = None) -> Response:
    """Return a response with a body in pieces. They are not joined: for 70 MB that takes 50 ms."""
    return PreparedResponse(fields=fields, body=pieces[0], more=[memoryview(piece) for piece in pieces[1:]])


def write_response(pieces: Iterable[bytes]) -> Steps:
    """Write a response whose body comes in pieces.

    Raises:
        RefusedError: it is longer than `RESPONSE_BYTES_MAX`.
    """
    body = yield from write_body(pieces)
    return make_response(body)


class ResponseCache:
    """Cache of the last long body of one kind, with the data version of its table."""

    __slots__ = ("_pieces", "_version")

    def __init__(self) -> None:
        self._version: object = None
        self._pieces: Pieces = []

    def find(self, version: object, pieces: Callable[[], Iterable[bytes]]) -> Generator[None, None, Pieces]:
        """Return the body for a data version: the cached one, or a new one made of `pieces`.

        Raises:
            RefusedError: it is longer than `RESPONSE_BYTES_MAX`.
        """
        if self._version == version:
            return self._pieces
        body = yield from write_body(pieces())
        if sum(map(len, body)) <= CACHED_BYTES_MAX:
            self._version, self._pieces = version, body
        return body
