"""Lag histories exist while the page of a group is open."""

from skyroute.console.cluster_data.lag_history import (
    FORGET_S,
    GROUPS_MAX,
    LAGS_APART_S,
    LAGS_MAX,
    OWNERS_S,
    LagHistories,
)
from skyroute.message.queue_ref import QueueRef


def test_the_latest_lags_are_kept_while_the_page_is_open() -> None:
    """Several open pages add one lag, and the oldest lags are dropped."""
    groups = LagHistories()
    for poll in range(LAGS_MAX + 10):
        for _ in range(2):
            groups.find("g", poll * LAGS_APART_S).add_lag(poll, poll * LAGS_APART_S)
    assert list(groups.find("g", 0.0).lags) == list(range(10, LAGS_MAX + 10))


def test_a_history_begins_again_after_the_page_was_closed() -> None:
    """A chart would not show the gap."""
    groups = LagHistories()
    groups.find("g", 0.0).add_lag(7, 0.0)
    assert list(groups.find("g", FORGET_S).lags) == [7]
    assert list(groups.find("g", 2 * FORGET_S + 1).lags) == []


def test_the_least_recently_used_history_is_evicted() -> None:
    """However many pages are open, memory has a bound."""
    groups = LagHistories()
    groups.find("first", 0.0).add_lag(1, 0.0)
    for number in range(GROUPS_MAX - 1):
        groups.find(f"g{number}", 0.0)
    assert list(groups.find("first", 0.0).lags) == [1]
    groups.find("one more", 0.0).add_lag(1, 0.0)
    groups.find("another", 0.0)
    assert list(groups.find("first", 0.0).lags) == [1]
    for number in range(GROUPS_MAX):
        groups.find(f"h{number}", 0.0)
    assert list(groups.find("first", 0.0).lags) == []


def test_owners_are_cached() -> None:
    """Consumers are not asked at every refresh of the page."""
    group = LagHistories().find("g", 0.0)
    assert not group.has_owners(0.0)
    group.set_owners({QueueRef("T", "b", 0): "a"}, 5.0)
    assert group.has_owners(5.0 + OWNERS_S - 1)
    assert not group.has_owners(5.0 + OWNERS_S)
