"""Counts and latencies of requests by code and response code. Without metrics, a plain dispatcher is used."""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from operator import add
from typing import Final, NamedTuple, TypeVar

from skyroute.remoting.dispatch import (
    Answer,
    Checker,
    DeferredResponse,
    Dispatcher,
    Handler,
    OrderedResponse,
    Peer,
    failure,
)
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import FLAG_ONEWAY, Request, Response
from skyroute.wire.fast_path import FastPath

K = TypeVar("K", bound=Hashable)

OTHER: Final = -1
"""Replaces every unknown code: a client must not be able to create labels."""
_REQUEST_CODES: Final = frozenset(map(int, RequestCode))
_RESPONSE_CODES: Final = frozenset(map(int, ResponseCode))


class RequestOutcome(NamedTuple):
    """The labels of a request."""

    request_code: int
    response_code: int
    is_oneway: bool
    was_deferred: bool
    """Answered after a wait, such as a long poll."""

    @property
    def request_name(self) -> str:
        return "OTHER" if self.request_code == OTHER else RequestCode(self.request_code).name

    @property
    def response_name(self) -> str:
        return "OTHER" if self.response_code == OTHER else ResponseCode(self.response_code).name


class Histogram:
    """Counts by latency bucket."""

    __slots__ = ("counts", "total_s")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.total_s = 0.0

    def add(self, other: "Histogram") -> None:
        self.counts = list(map(add, self.counts, other.counts))
        self.total_s += other.total_s


class RequestTimes:
    """Latency histograms of a server's requests, by outcome."""

    def __init__(self, bounds_s: Sequence[float], monotonic: Callable[[], float]) -> None:
        self.bounds_s = tuple(bounds_s)
        self.monotonic = monotonic
        self._histograms: dict[RequestOutcome, Histogram] = {}
        self.served: dict[int, Histogram] = {}
        """Histograms of immediate successes by request code: the common case, found with one lookup."""

    def note(self, request: Request, response: Response, took_s: float, *, was_deferred: bool = False) -> None:
        """Count a request whose response is sent now."""
        outcome = RequestOutcome(
            request.code if request.code in _REQUEST_CODES else OTHER,
            response.code if response.code in _RESPONSE_CODES else OTHER,
            request.is_oneway,
            was_deferred,
        )
        times = self._histograms.get(outcome)
        if times is None:
            times = self._histograms[outcome] = Histogram(len(self.bounds_s) + 1)
        times.counts[bisect_left(self.bounds_s, took_s)] += 1
        times.total_s += took_s
        if outcome == (request.code, ResponseCode.SUCCESS, False, False):
            self.served[request.code] = times

    def by(self, labels: Callable[[RequestOutcome], K]) -> dict[K, Histogram]:
        """Return the histograms summed by label."""
        found: dict[K, Histogram] = {}
        for outcome, times in self._histograms.items():
            found.setdefault(labels(outcome), Histogram(len(times.counts))).add(times)
        return found


class CountingDispatcher(Dispatcher):
    """A dispatcher that measures every request."""

    __slots__ = ("_monotonic", "_served", "_shortest_s", "_times")

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        times: RequestTimes,
        fast_path: FastPath | None = None,
        checker: Checker | None = None,
    ) -> None:
        super().__init__(handlers, fast_path, checker)
        self._times = times
        self._monotonic = times.monotonic
        self._served = times.served
        self._shortest_s = times.bounds_s[0]

    def answer(self, request: Request, peer: Peer) -> Answer:
        began = self.read_at
        answer = Dispatcher.answer(self, request, peer)
        if isinstance(answer, Response):
            self.read_at = now = self._monotonic()
            took_s = now - began
            times = None if answer.code or request.flag & FLAG_ONEWAY else self._served.get(request.code)
            if times is None or took_s > self._shortest_s:
                self._times.note(request, answer, took_s)
            else:
                times.counts[0] += 1
                times.total_s += took_s
            return answer
        if isinstance(answer, DeferredResponse):
            return self._when_given(request, answer, began)
        if isinstance(answer, OrderedResponse):
            return OrderedResponse(self._when_done(request, peer, answer.work, began))
        return self._when_done(request, peer, answer, began)

    def _when_given(self, request: Request, answer: DeferredResponse, began: float) -> DeferredResponse:
        noted = DeferredResponse()

        def give(response: Response) -> None:
            self._times.note(request, response, self._monotonic() - began, was_deferred=True)
            noted.give(response)

        answer.then(give)
        return noted

    async def _when_done(self, request: Request, peer: Peer, work: Awaitable[Response], began: float) -> Response:
        try:
            response = await work
        except Exception as error:  # noqa: BLE001 - a failed request must not end the connection
            response = failure(error, request, peer)
        self._times.note(request, response, self._monotonic() - began)
        return response


def make_dispatcher(
    handlers: Mapping[int, Handler],
    times: RequestTimes | None,
    fast_path: FastPath | None = None,
    checker: Checker | None = None,
) -> Dispatcher:
    """Return a dispatcher that measures requests, or a plain one without `times`."""
    if times is None:
        return Dispatcher(handlers, fast_path, checker)
    return CountingDispatcher(handlers, times, fast_path, checker)
