"""Consume rates and average times."""

from __future__ import annotations

from skyroute.client.consuming.push.statistics import HOUR_SAMPLES, SAMPLE_S, ConsumeStatistics


def test_a_new_one_has_no_pace() -> None:
    rates = ConsumeStatistics(100.0).rates(100.0)
    assert (rates.consumed_a_second, rates.consume_ms, rates.pull_ms, rates.failed_an_hour) == (0.0, 0.0, 0.0, 0)


def test_averages_are_per_handler_call_and_per_pull() -> None:
    statistics = ConsumeStatistics(100.0)
    statistics.consumed, statistics.failed, statistics.handlings, statistics.handled_s = 50, 10, 60, 0.6
    statistics.pulls, statistics.pulled, statistics.pull_s = 4, 60, 0.2
    rates = statistics.rates(110.0)
    assert (rates.consumed_a_second, rates.failed_a_second, rates.pulled_a_second) == (5.0, 1.0, 6.0)
    assert (round(rates.consume_ms, 6), round(rates.pull_ms, 6)) == (10.0, 50.0)
    assert rates.failed_an_hour == 10


def test_rates_cover_the_last_minute() -> None:
    statistics = ConsumeStatistics(0.0)
    statistics.consumed = 1_000
    for step in range(1, 8):
        statistics.sample(step * SAMPLE_S)
    statistics.consumed += 120
    assert statistics.rates(7 * SAMPLE_S + 10.0).consumed_a_second == 2.0


def test_failures_are_remembered_for_an_hour() -> None:
    statistics = ConsumeStatistics(0.0)
    statistics.failed = 7
    for step in range(1, HOUR_SAMPLES):
        statistics.sample(step * SAMPLE_S)
    assert statistics.rates(HOUR_SAMPLES * SAMPLE_S).failed_an_hour == 7
    statistics.sample(HOUR_SAMPLES * SAMPLE_S)
    assert statistics.rates(HOUR_SAMPLES * SAMPLE_S).failed_an_hour == 0
