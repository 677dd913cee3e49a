"""What is kept of groups while somebody looks at them, and no longer."""

from skyroute.console.cluster_data.lag_history import (
    FOLLOWED_S,
    GROUPS_MAX,
    LAGS_APART_S,
    LAGS_MAX,
    OWNERS_S,
    FollowedGroups,
)
from skyroute.message.queue_ref import QueueRef


def test_keeps_the_latest_lags_while_looked_at() -> None:
    """Several who look at once add one lag, and the oldest make room."""
    groups = FollowedGroups()
    for look in range(LAGS_MAX + 10):
        for _ in range(2):
            groups.find("g", look * LAGS_APART_S).note_lag(look, look * LAGS_APART_S)
    assert list(groups.find("g", 0.0).lags) == list(range(10, LAGS_MAX + 10))


def test_begins_anew_after_nobody_looked() -> None:
    """A chart would show a gap as if nothing had been there."""
    groups = FollowedGroups()
    groups.find("g", 0.0).note_lag(7, 0.0)
    assert list(groups.find("g", FOLLOWED_S).lags) == [7]
    assert list(groups.find("g", 2 * FOLLOWED_S + 1).lags) == []


def test_forgets_those_looked_at_longest_ago() -> None:
    """However many groups are looked at, memory has a bound."""
    groups = FollowedGroups()
    groups.find("first", 0.0).note_lag(1, 0.0)
    for number in range(GROUPS_MAX - 1):
        groups.find(f"g{number}", 0.0)
    assert list(groups.find("first", 0.0).lags) == [1]
    groups.find("one more", 0.0).note_lag(1, 0.0)
    groups.find("another", 0.0)
    assert list(groups.find("first", 0.0).lags) == [1]
    for number in range(GROUPS_MAX):
        groups.find(f"h{number}", 0.0)
    assert list(groups.find("first", 0.0).lags) == []


def test_owners_hold_for_a_while() -> None:
    """ConnectedClients are not asked again at every look."""
    group = FollowedGroups().find("g", 0.0)
    assert not group.has_owners(0.0)
    group.note_owners({QueueRef("T", "b", 0): "a"}, 5.0)
    assert group.has_owners(5.0 + OWNERS_S - 1)
    assert not group.has_owners(5.0 + OWNERS_S)
