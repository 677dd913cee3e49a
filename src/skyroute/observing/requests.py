"""How often each request was answered in which way, and how long that took. Whoever does not ask pays nothing."""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from operator import add
from typing import Final, NamedTuple, TypeVar

from skyroute.remoting.dispatch import Answer, DeferredResponse, Dispatcher, Handler, OrderedResponse, Peer, failure
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import FLAG_ONEWAY, Request, Response
from skyroute.wire.fast_path import FastPath

K = TypeVar("K", bound=Hashable)

OTHER: Final = -1
"""Stands for every number that the protocol as we know it does not have, so that no peer can make up new labels."""
_REQUEST_CODES: Final = frozenset(map(int, RequestCode))
_RESPONSE_CODES: Final = frozenset(map(int, ResponseCode))


class Answered(NamedTuple):
    """What is counted apart."""

    request_code: int
    response_code: int
    is_oneway: bool
    was_later: bool
    """Somebody else gave the answer, such as a message that a pull waited for."""

    @property
    def request_name(self) -> str:
        return "OTHER" if self.request_code == OTHER else RequestCode(self.request_code).name

    @property
    def response_name(self) -> str:
        return "OTHER" if self.response_code == OTHER else ResponseCode(self.response_code).name


class Times:
    """How often something took how long."""

    __slots__ = ("counts", "total_s")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.total_s = 0.0

    def add(self, others: "Times") -> None:
        self.counts = list(map(add, self.counts, others.counts))
        self.total_s += others.total_s


class RequestTimes:
    """Times of all requests of a server, by what became of them."""

    def __init__(self, bounds_s: Sequence[float], monotonic: Callable[[], float]) -> None:
        self.bounds_s = tuple(bounds_s)
        self.monotonic = monotonic
        self._times: dict[Answered, Times] = {}
        self.served: dict[int, Times] = {}
        """By request code, those that were answered with success and at once: nearly all, so they are found quickly."""

    def note(self, request: Request, response: Response, took_s: float, *, was_later: bool = False) -> None:
        """Count a request that is answered now."""
        answered = Answered(
            request.code if request.code in _REQUEST_CODES else OTHER,
            response.code if response.code in _RESPONSE_CODES else OTHER,
            request.is_oneway,
            was_later,
        )
        times = self._times.get(answered)
        if times is None:
            times = self._times[answered] = Times(len(self.bounds_s) + 1)
        times.counts[bisect_left(self.bounds_s, took_s)] += 1
        times.total_s += took_s
        if answered == (request.code, ResponseCode.SUCCESS, False, False):
            self.served[request.code] = times

    def by(self, labels: Callable[[Answered], K]) -> dict[K, Times]:
        """Return the times of all that are labelled alike, together."""
        found: dict[K, Times] = {}
        for answered, times in self._times.items():
            found.setdefault(labels(answered), Times(len(times.counts))).add(times)
        return found


class CountingDispatcher(Dispatcher):
    """Answers as any dispatcher does, and notes how and when."""

    __slots__ = ("_monotonic", "_served", "_shortest_s", "_times")

    def __init__(self, handlers: Mapping[int, Handler], times: RequestTimes, fast_path: FastPath | None = None) -> None:
        super().__init__(handlers, fast_path)
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
            self._times.note(request, response, self._monotonic() - began, was_later=True)
            noted.give(response)

        answer.then(give)
        return noted

    async def _when_done(self, request: Request, peer: Peer, work: Awaitable[Response], began: float) -> Response:
        try:
            response = await work
        except Exception as error:  # noqa: BLE001 - as for every request: one must not end the others' service
            response = failure(error, request, peer)
        self._times.note(request, response, self._monotonic() - began)
        return response


def make_dispatcher(
    handlers: Mapping[int, Handler], times: RequestTimes | None, fast_path: FastPath | None = None
) -> Dispatcher:
    """Return a dispatcher that counts, if there is something to count in; else one that costs nothing more."""
    return Dispatcher(handlers, fast_path) if times is None else CountingDispatcher(handlers, times, fast_path)
