"""Consume statistics of one topic: rates and average times. Pure: the time is an argument."""

from collections import deque
from typing import Final

from skyroute.wire.calls.consumers import ConsumePace

SAMPLE_S: Final = 10.0
"""How often the counters are sampled."""
MINUTE_SAMPLES: Final = 6
HOUR_SAMPLES: Final = 360


class ConsumeStatistics:
    """Counters of pulled, consumed and failed messages, with samples of the last hour."""

    __slots__ = ("_samples", "consumed", "failed", "handled_s", "handlings", "pull_s", "pulled", "pulls")

    def __init__(self, now: float) -> None:
        self.consumed = 0
        self.failed = 0
        self.handlings = 0
        self.handled_s = 0.0
        self.pulls = 0
        self.pulled = 0
        self.pull_s = 0.0
        self._samples: deque[tuple[float, ...]] = deque([self._now(now)], HOUR_SAMPLES)

    def _now(self, now: float) -> tuple[float, ...]:
        return now, self.consumed, self.failed, self.handlings, self.handled_s, self.pulls, self.pulled, self.pull_s

    def sample(self, now: float) -> None:
        """Add a sample of all counters."""
        self._samples.append(self._now(now))

    def rates(self, now: float) -> ConsumePace:
        """Return averages over about the last minute, and the failures of about the last hour."""
        current = self._now(now)
        before = self._samples[max(0, len(self._samples) - MINUTE_SAMPLES)]
        seconds, consumed, failed, handlings, handled_s, pulls, pulled, pull_s = (
            after - earlier for after, earlier in zip(current, before, strict=True)
        )
        seconds = max(seconds, 1e-3)
        return ConsumePace(
            failed_an_hour=self.failed - int(self._samples[0][2]),
            failed_a_second=failed / seconds,
            consumed_a_second=consumed / seconds,
            consume_ms=handled_s / handlings * 1_000 if handlings else 0.0,
            pull_ms=pull_s / pulls * 1_000 if pulls else 0.0,
            pulled_a_second=pulled / seconds,
        )
