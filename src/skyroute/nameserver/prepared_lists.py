"""Long responses, such as the list of all topics: written once per change, in steps.

All requests share the same bytes, which a connection writes without a copy.
"""

from collections.abc import Callable, Collection, Generator, Hashable, Iterable
from itertools import islice
from typing import Final, NamedTuple

from skyroute.remoting.dispatch import OrderedResponse
from skyroute.remoting.stepwise import StepRunner, run_through
from skyroute.wire.command import Response
from skyroute.wire.fast_path import PreparedResponse

LIST_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum size of one list, and of all cached lists."""

STEP: Final = 4_000
"""Names that are copied or written in one step: a few milliseconds."""

SHARED_BYTES: Final = 64 * 1024
"""Longer responses are sent from the cached bytes; shorter ones are faster to copy after their header."""

COPIES_MAX: Final = 3
"""Attempts to copy a view in steps before it is copied at once."""

Pieces = Generator[None, None, list[bytes]]
"""The steps of writing a list; the result is its body in pieces."""


class _Made(NamedTuple):
    """A list and its revision."""

    response: Response
    revision: int
    """Revision of the data that it was made from."""
    begun: int
    """Number of requests received when writing began."""


class PreparedLists:
    """Writes and caches lists. Every change of their data must call `forget`."""

    def __init__(self, step_runner: StepRunner) -> None:
        self._step_runner = step_runner
        self._made: dict[Hashable, _Made] = {}
        self._bytes = 0
        self._revision = 0
        self._asked = 0

    def answer(self, key: Hashable, size: int, write: Callable[[], Pieces]) -> Response | OrderedResponse:
        """Return the list of this name, from the cache if it is current.

        Args:
            key: Names the list; there must be few of them.
            size: Number of entries, at most. A short list is written at once.
            write: Starts writing it.
        """
        made = self._made.get(key)
        if made is not None and made.revision == self._revision:
            return made.response
        self._asked += 1
        steps = self._make(key, write, self._asked)
        return run_through(steps) if size <= STEP else OrderedResponse(self._step_runner.run(steps))

    def forget(self) -> None:
        """Invalidate all cached lists."""
        self._revision += 1

    def _make(self, key: Hashable, write: Callable[[], Pieces], ticket: int) -> Generator[None, None, Response]:
        made = self._made.get(key)
        # A list whose writing began after this request arrived is current enough.
        if made is not None and (made.revision == self._revision or made.begun >= ticket):
            return made.response
        revision, begun = self._revision, self._asked
        response = _response(key, (yield from write()))
        self._keep(key, _Made(response, revision, begun))
        return response

    def _keep(self, key: Hashable, made: _Made) -> None:
        replaced = self._made.pop(key, None)
        self._bytes += made.response.body_bytes - (0 if replaced is None else replaced.response.body_bytes)
        if self._bytes > LIST_BYTES_MAX:
            self._made.clear()
            self._bytes = made.response.body_bytes
        self._made[key] = made

    def copy(self, view: Collection[str], edits: Callable[[], int]) -> Generator[None, None, list[str]]:
        """Copy a live view in steps. A change restarts the copy; `edits` counts writes to the view alone."""
        for _ in range(COPIES_MAX):
            copied: list[str] = []
            revision, edition, rest = self._revision, edits(), iter(view)
            while revision == self._revision and edition == edits():
                part = list(islice(rest, STEP))
                copied += part
                if len(part) < STEP:
                    return copied
                yield
        return list(view)


def in_steps(names: list[str], select: Callable[[list[str]], Iterable[str]]) -> Generator[None, None, list[str]]:
    """Select some of many names, in steps."""
    selected: list[str] = []
    for at in range(0, len(names), STEP):
        selected += select(names[at : at + STEP])
        yield
    return selected


def _response(key: Hashable, pieces: list[bytes]) -> Response:
    size = sum(map(len, pieces))
    if size > LIST_BYTES_MAX:
        return Response.error(f"the list {key} takes {size} bytes, more than the maximum of {LIST_BYTES_MAX}")
    if size <= SHARED_BYTES:
        return Response(body=b"".join(pieces))
    return PreparedResponse(more=tuple(map(memoryview, pieces)))
