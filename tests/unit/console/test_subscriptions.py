"""Members of a group that want different things, and those that only seem to."""

from skyroute.console.cluster_data.subscriptions import Mismatch, Way, find_mismatches
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.groups import SubscriptionView


def test_members_who_want_the_same_agree() -> None:
    """Order and blanks of tags, and what retry topics some clients tell of, make no difference."""
    wanted = {
        "java": [Subscription("Orders", "paid || sent"), Subscription("%RETRY%g"), Subscription("Bills", "*")],
        "python": [Subscription("Bills", ""), Subscription("Orders", "sent||paid")],
    }
    assert find_mismatches(wanted) == []
    assert find_mismatches({}) == []


def test_different_tags_are_told_with_the_most_members_first() -> None:
    """Whoever reads it sees at once which member is the odd one."""
    wanted = {
        "a": [Subscription("Orders", "paid")],
        "b": [Subscription("Orders", "*")],
        "c": [Subscription("Orders", "*")],
    }
    assert find_mismatches(wanted) == [Mismatch("Orders", (Way("*", ("b", "c")), Way("paid", ("a",))))]


def test_a_topic_that_only_some_want_is_a_mismatch() -> None:
    """A member without the topic is given queues of it no less, and messages wait there."""
    wanted = {"a": [Subscription("Orders"), Subscription("Bills")], "b": [Subscription("Orders")]}
    assert find_mismatches(wanted) == [Mismatch("Bills", (Way("*", ("a",)), Way(None, ("b",))))]


def test_what_brokers_heard_gives_a_silent_member_away() -> None:
    """A member that cannot be asked was heard by brokers all the same."""
    heard: list[Subscription | SubscriptionView] = [SubscriptionView("Orders", "paid")]
    assert find_mismatches({"": heard, "a": [Subscription("Orders", "*")]}) == [
        Mismatch("Orders", (Way("paid", ("",)), Way("*", ("a",))))
    ]


def test_the_same_text_in_another_language_is_a_mismatch() -> None:
    """`TRUE` is a tag here and a condition there."""
    wanted = {"a": [Subscription("Orders", "TRUE")], "b": [Subscription("Orders", "TRUE", "SQL92")]}
    assert [mismatch.topic for mismatch in find_mismatches(wanted)] == ["Orders"]
    same = {"a": [Subscription("Orders", "n > 3 ", "SQL92")], "b": [Subscription("Orders", "n > 3", "SQL92")]}
    assert find_mismatches(same) == []
