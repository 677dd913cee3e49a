"""How fast a consumer says it is."""

from __future__ import annotations

from skyroute.client.consuming.push.statistics import HOUR_SAMPLES, SAMPLE_S, ConsumeStatistics


def test_a_new_one_has_no_pace() -> None:
    pace = ConsumeStatistics(100.0).pace(100.0)
    assert (pace.consumed_a_second, pace.consume_ms, pace.pull_ms, pace.failed_an_hour) == (0.0, 0.0, 0.0, 0)


def test_averages_are_over_what_was_counted() -> None:
    tally = ConsumeStatistics(100.0)
    tally.consumed, tally.failed, tally.handlings, tally.handled_s = 50, 10, 60, 0.6
    tally.pulls, tally.pulled, tally.pull_s = 4, 60, 0.2
    pace = tally.pace(110.0)
    assert (pace.consumed_a_second, pace.failed_a_second, pace.pulled_a_second) == (5.0, 1.0, 6.0)
    assert (round(pace.consume_ms, 6), round(pace.pull_ms, 6)) == (10.0, 50.0)
    assert pace.failed_an_hour == 10


def test_what_was_before_the_last_minute_no_longer_counts() -> None:
    tally = ConsumeStatistics(0.0)
    tally.consumed = 1_000
    for step in range(1, 8):
        tally.sample(step * SAMPLE_S)
    tally.consumed += 120
    assert tally.pace(7 * SAMPLE_S + 10.0).consumed_a_second == 2.0


def test_failures_are_remembered_for_an_hour() -> None:
    tally = ConsumeStatistics(0.0)
    tally.failed = 7
    for step in range(1, HOUR_SAMPLES):
        tally.sample(step * SAMPLE_S)
    assert tally.pace(HOUR_SAMPLES * SAMPLE_S).failed_an_hour == 7
    tally.sample(HOUR_SAMPLES * SAMPLE_S)
    assert tally.pace(HOUR_SAMPLES * SAMPLE_S).failed_an_hour == 0
