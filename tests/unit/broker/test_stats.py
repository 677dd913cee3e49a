"""Counters, and rates over periods."""

import pytest

from skyroute.broker.stats import FLOWS_A_STEP, KEYS_MAX, Measure, Stats
from skyroute.wire.calls.settings import BrokerStats
from tests.support.clock import ManualClock


def pass_time(stats: Stats, clock: ManualClock, seconds: int) -> None:
    for _ in range(seconds):
        clock.advance(1)
        stats.sample()


def of_topic(stats: Stats, topic: str, measure: Measure = Measure.MESSAGES) -> BrokerStats:
    found = stats.of_topic(topic, measure)
    assert found is not None
    return found


def test_stored_messages_are_counted_at_once() -> None:
    clock = ManualClock()
    stats = Stats(clock)
    clock.advance(10)
    stats.stored("Orders", 1, 100)
    stats.stored("Orders", 3, 500)
    messages, size = of_topic(stats, "Orders"), of_topic(stats, "Orders", Measure.BYTES)
    for span in (messages.minute, messages.hour, messages.day):
        assert (span.sum, span.tps, span.average) == (4, 0.4, 2.0)
    assert (size.minute.sum, size.minute.average) == (600, 300.0)
    assert stats.of_topic("Others", Measure.MESSAGES) is None
    assert stats.put_rate("Orders") == 0.4
    assert stats.put_rate("Others") == 0.0


def test_each_period_forgets_older_messages() -> None:
    clock = ManualClock()
    stats = Stats(clock)
    stats.stored("Orders", 100, 1000)
    pass_time(stats, clock, 90)
    stats.stored("Orders", 5, 50)
    assert of_topic(stats, "Orders").minute.sum == 5
    assert of_topic(stats, "Orders").hour.sum == 105
    pass_time(stats, clock, 3700)
    stats.stored("Orders", 1, 10)
    spans = of_topic(stats, "Orders")
    assert (spans.minute.sum, spans.hour.sum, spans.day.sum) == (1, 1, 106)


def test_rates_cover_ten_seconds_one_minute_and_ten_minutes() -> None:
    clock = ManualClock()
    stats = Stats(clock)
    for _ in range(590):
        stats.stored("T", 2, 10)
        stats.fetched("g", "T", 1, 5)
        pass_time(stats, clock, 1)
    for _ in range(10):
        stats.stored("T", 14, 10)
        stats.fetched("g", "T", 0, 0)
        pass_time(stats, clock, 1)
    ten, minute, ten_minutes = stats.rates()
    assert ten.stored == pytest.approx(14)
    assert minute.stored == pytest.approx(4)
    assert ten_minutes.stored == pytest.approx(2.2)
    assert (ten.found, ten.missed, ten.fetched) == (0, 1, 0)
    assert minute.found == pytest.approx(50 / 60)


def test_rates_cover_the_uptime_if_it_is_shorter() -> None:
    clock = ManualClock()
    stats = Stats(clock)
    stats.stored("T", 10, 10)
    clock.advance(5)
    assert [rate.stored for rate in stats.rates()] == [2, 2, 2]


def test_pulls_are_counted_by_group_and_topic() -> None:
    stats = Stats(ManualClock())
    stats.fetched("g", "T", 3, 300)
    stats.fetched("h", "T", 1, 100)
    stats.sent_back("g", "T")
    found = stats.of_group("g", "T", Measure.BYTES)
    assert found is not None
    assert found.minute.sum == 300
    returned = stats.of_returns("g", "T")
    assert returned is not None
    assert returned.minute.sum == 1
    assert stats.of_returns("h", "T") is None
    assert stats.fetch_rate("g", "T") == 3
    assert stats.fetch_rate("g", "U") == 0
    assert stats.of_broker(stored=False).day.sum == 4
    assert stats.of_broker(stored=True).day.sum == 0
    assert (stats.totals().found, stats.totals().fetched) == (2, 4)


def test_counters_of_deleted_topics_and_groups_are_dropped() -> None:
    stats = Stats(ManualClock())
    for group in ("g", "h"):
        for topic in ("T", "U"):
            stats.stored(topic, 1, 1)
            stats.fetched(group, topic, 1, 1)
            stats.sent_back(group, topic)
    stats.forget_topic("T")
    stats.forget_group("h")
    assert stats.of_topic("T", Measure.MESSAGES) is None
    assert stats.of_group("g", "T", Measure.MESSAGES) is None
    assert stats.of_group("h", "U", Measure.MESSAGES) is None
    assert stats.of_returns("g", "U") is not None
    assert stats.totals().stored == 4


def test_topics_beyond_the_limit_count_for_the_broker_only() -> None:
    stats = Stats(ManualClock())
    for n in range(KEYS_MAX + 7):
        stats.stored(f"T{n}", 1, 10)
    counted = [stats.of_topic(f"T{n}", Measure.MESSAGES) is not None for n in range(KEYS_MAX + 2)]
    assert counted == [True] * KEYS_MAX + [False] * 2
    assert stats.totals().stored == KEYS_MAX + 7


def test_totals_are_sampled_at_midnight() -> None:
    clock = ManualClock()
    stats = Stats(clock)
    stats.stored("T", 5, 10)
    pass_time(stats, clock, 1)
    assert stats.midnight_totals.today.stored == 0
    clock.advance(86_400)
    stats.sample()
    stats.stored("T", 2, 10)
    clock.advance(86_400)
    stats.sample()
    assert (stats.midnight_totals.yesterday.stored, stats.midnight_totals.today.stored) == (5, 7)


def test_many_flows_are_sampled_in_steps() -> None:
    clock = ManualClock()
    stats = Stats(clock)
    for number in range(KEYS_MAX):
        stats.stored(f"T{number}", 1, 1)
        stats.fetched("g", f"T{number}", 1, 1)
    clock.advance(10)
    steps = stats.sample_in_steps()
    next(steps)
    assert stats.put_rate("T0") == stats.put_rate(f"T{KEYS_MAX - 1}") == 0.1  # the same, sampled or not
    assert sum(1 for _ in steps) == 2 * KEYS_MAX // FLOWS_A_STEP - 1
