"""Counters of a broker, and rates over the last minute, hour and day.

Counting is a few additions. Samples of the counters every ten seconds, ten minutes and hour give the rates.
"""

import asyncio
from array import array
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

from skyroute.clock import Clock, SystemClock
from skyroute.wire.calls.settings import BrokerStats, StatsSpan

KEYS_MAX: Final = 10_000
"""Topics, and pairs of group and topic, with counters of their own; the rest counts for the broker only."""
FLOWS_A_STEP: Final = 5_000
"""Flows sampled in one step."""
TICK_S: Final = 1.0
RATES_S: Final = (10, 60, 600)
"""Periods of the broker's rates, in seconds."""
_SPANS: Final = ((10.0, 6), (600.0, 6), (3600.0, 24))
"""Minute, hour and day: interval of samples, and samples per period."""


class Measure(IntEnum):
    """A counter of a flow."""

    MESSAGES = 0
    BYTES = 1
    CALLS = 2


_MEASURES: Final = len(Measure)


class Flow:
    """Counters of one topic, or of one group and topic, since the start."""

    __slots__ = ("bytes", "calls", "marks", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.bytes = 0
        self.calls = 0
        # Before the first sample of a flow its counters were zero, so zeros are right.
        self.marks = tuple(array("q", bytes(8 * _MEASURES * count)) for _, count in _SPANS)

    def mark(self, span: int, slot: int) -> None:
        at = slot * _MEASURES
        self.marks[span][at : at + _MEASURES] = array("q", (self.messages, self.bytes, self.calls))

    def since(self, span: int, slot: int) -> tuple[int, int, int]:
        messages, size, calls = self.marks[span][slot * _MEASURES : (slot + 1) * _MEASURES]
        return self.messages - messages, self.bytes - size, self.calls - calls


_Key = TypeVar("_Key", bound=Hashable)


class Flows(dict[_Key, Flow]):
    """Flows by key, at most `KEYS_MAX`; further keys share one flow that is not shown."""

    def __init__(self) -> None:
        self._rest = Flow()

    def __missing__(self, key: _Key) -> Flow:
        if len(self) >= KEYS_MAX:
            return self._rest
        flow = self[key] = Flow()
        return flow


class Totals(NamedTuple):
    """Counters of a broker since its start."""

    stored: int
    stored_bytes: int
    found: int
    """Pulls with messages."""
    missed: int
    """Pulls without messages."""
    fetched: int
    """Messages in responses to pulls."""


class Rates(NamedTuple):
    """Rates per second; the fields are those of `Totals`."""

    stored: float
    stored_bytes: float
    found: float
    missed: float
    fetched: float


@dataclass(slots=True)
class _Marks:
    """Times of the samples of one period: a ring, whose oldest is overwritten next."""

    times: list[float]
    next_slot: int = 0

    def oldest(self) -> int:
        return self.next_slot if self.times[self.next_slot] >= 0 else 0


class MidnightTotals(NamedTuple):
    """Totals at the last two midnights; zeros if the broker was not running."""

    yesterday: Totals
    today: Totals


_NOTHING: Final = Totals(0, 0, 0, 0, 0)


class Stats:
    """All counters of one broker."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._topics: Flows[str] = Flows()
        self._fetches: Flows[tuple[str, str]] = Flows()
        self._returns: Flows[tuple[str, str]] = Flows()
        self._put = Flow()
        self._got = Flow()
        self._missed = 0
        now = self._clock.monotonic()
        self._marks = [_Marks([-1.0] * count) for _, count in _SPANS]
        for marks in self._marks:
            marks.times[0] = now
            marks.next_slot = 1
        self._seconds: deque[tuple[float, Totals]] = deque([(now, _NOTHING)], maxlen=RATES_S[-1] + 1)
        self._today = self._date()
        self.midnight_totals = MidnightTotals(_NOTHING, _NOTHING)

    def __repr__(self) -> str:
        return f"<Stats topics={len(self._topics)} stored={self._put.messages} fetched={self._got.messages}>"

    # ----------------------------------------------------------------------------------------------------- counting

    def stored(self, topic: str, messages: int, size: int) -> None:
        """Count stored messages and the bytes of their records."""
        put, flow = self._put, self._topics[topic]
        put.messages += messages
        put.bytes += size
        put.calls += 1
        flow.messages += messages
        flow.bytes += size
        flow.calls += 1

    def fetched(self, group: str, topic: str, messages: int, size: int) -> None:
        """Count the messages of a pull and the bytes of their records; zero messages count as a missed pull."""
        if not messages:
            self._missed += 1
            return
        got, flow = self._got, self._fetches[group, topic]
        got.messages += messages
        got.bytes += size
        got.calls += 1
        flow.messages += messages
        flow.bytes += size
        flow.calls += 1

    def sent_back(self, group: str, topic: str) -> None:
        """Count a message that a group sent back."""
        flow = self._returns[group, topic]
        flow.messages += 1
        flow.calls += 1

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic."""
        self._topics.pop(topic, None)
        for flows in (self._fetches, self._returns):
            for key in [key for key in flows if key[1] == topic]:
                del flows[key]

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group."""
        for flows in (self._fetches, self._returns):
            for key in [key for key in flows if key[0] == group]:
                del flows[key]

    # ------------------------------------------------------------------------------------------------------- reading

    @property
    def topics(self) -> Mapping[str, Flow]:
        """Stored messages by topic."""
        return self._topics

    @property
    def fetches(self) -> Mapping[tuple[str, str], Flow]:
        """Pulled messages by group and topic."""
        return self._fetches

    def totals(self) -> Totals:
        """Return the counters of the broker since its start."""
        return Totals(self._put.messages, self._put.bytes, self._got.calls, self._missed, self._got.messages)

    def rates(self) -> list[Rates]:
        """Return the rates over each of `RATES_S`, or since the start if that is shorter."""
        now, current = self._clock.monotonic(), self.totals()
        found = []
        for span_s in RATES_S:
            at, before = next((mark for mark in reversed(self._seconds) if now - mark[0] >= span_s), self._seconds[0])
            elapsed = max(now - at, TICK_S)
            found.append(Rates(*((new - old) / elapsed for new, old in zip(current, before, strict=True))))
        return found

    def put_rate(self, topic: str) -> float:
        """Return the stored messages of a topic per second, over the last minute."""
        flow = self._topics.get(topic)
        return 0.0 if flow is None else self._span(flow, 0, Measure.MESSAGES).tps

    def fetch_rate(self, group: str, topic: str) -> float:
        """Return the pulled messages of a group and topic per second, over the last minute."""
        flow = self._fetches.get((group, topic))
        return 0.0 if flow is None else self._span(flow, 0, Measure.MESSAGES).tps

    def of_topic(self, topic: str, measure: Measure) -> BrokerStats | None:
        """Return the stored messages of a topic; None if there were none."""
        return self._spans(self._topics.get(topic), measure)

    def of_group(self, group: str, topic: str, measure: Measure) -> BrokerStats | None:
        """Return the pulled messages of a group and topic; None if there were none."""
        return self._spans(self._fetches.get((group, topic)), measure)

    def of_returns(self, group: str, topic: str) -> BrokerStats | None:
        """Return the messages that a group sent back; None if there were none."""
        return self._spans(self._returns.get((group, topic)), Measure.MESSAGES)

    def of_broker(self, *, stored: bool) -> BrokerStats:
        """Return the stored or the pulled messages of all topics."""
        found = self._spans(self._put if stored else self._got, Measure.MESSAGES)
        assert found is not None
        return found

    def _spans(self, flow: Flow | None, measure: Measure) -> BrokerStats | None:
        if flow is None:
            return None
        return BrokerStats(*(self._span(flow, span, measure) for span in range(len(_SPANS))))

    def _span(self, flow: Flow, span: int, measure: Measure) -> StatsSpan:
        marks = self._marks[span]
        oldest = marks.oldest()
        counts = flow.since(span, oldest)
        total, calls = counts[measure], counts[Measure.CALLS]
        elapsed = max(self._clock.monotonic() - marks.times[oldest], TICK_S)
        return StatsSpan(total, total / elapsed, total / calls if calls else 0.0)

    # ----------------------------------------------------------------------------------------------------- sampling

    def sample(self) -> None:
        """Sample the counters of every span that is due."""
        for _ in self.sample_in_steps():
            pass

    def sample_in_steps(self) -> Iterator[None]:
        """As `sample`, some flows at a time. Called every second."""
        now = self._clock.monotonic()
        self._seconds.append((now, self.totals()))
        if (today := self._date()) != self._today:
            self._today = today
            self.midnight_totals = MidnightTotals(self.midnight_totals.today, self.totals())
        for span, (marks, (interval_s, count)) in enumerate(zip(self._marks, _SPANS, strict=True)):
            if now - marks.times[marks.next_slot - 1] >= interval_s:
                slot = marks.next_slot
                # First, so that a rate that is read between two steps starts at the oldest sample.
                marks.times[slot] = now
                marks.next_slot = (slot + 1) % count
                self._put.mark(span, slot)
                self._got.mark(span, slot)
                flows = [*self._topics.values(), *self._fetches.values(), *self._returns.values()]
                for number, flow in enumerate(flows, 1):
                    flow.mark(span, slot)
                    if number % FLOWS_A_STEP == 0:
                        yield

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for _ in self.sample_in_steps():
                await asyncio.sleep(0)

    def _date(self) -> date:
        return datetime.fromtimestamp(self._clock.wall()).astimezone().date()
