"""Subscriptions of one group's consumers: which differ, and which only look different."""

from skyroute.console.cluster_data.subscriptions import Mismatch, Variant, find_mismatches
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.groups import SubscriptionView


def test_equal_subscriptions_are_no_mismatch() -> None:
    """The order of tags, blanks, and retry topics make no difference."""
    subscriptions = {
        "java": [Subscription("Orders", "paid || sent"), Subscription("%RETRY%g"), Subscription("Bills", "*")],
        "python": [Subscription("Bills", ""), Subscription("Orders", "sent||paid")],
    }
    assert find_mismatches(subscriptions) == []
    assert find_mismatches({}) == []


def test_different_tags_are_listed_with_the_most_frequent_first() -> None:
    subscriptions = {
        "a": [Subscription("Orders", "paid")],
        "b": [Subscription("Orders", "*")],
        "c": [Subscription("Orders", "*")],
    }
    assert find_mismatches(subscriptions) == [Mismatch("Orders", (Variant("*", ("b", "c")), Variant("paid", ("a",))))]


def test_a_topic_with_some_consumers_only_is_a_mismatch() -> None:
    """A consumer without the subscription is assigned queues of the topic too, and messages wait there."""
    subscriptions = {"a": [Subscription("Orders"), Subscription("Bills")], "b": [Subscription("Orders")]}
    assert find_mismatches(subscriptions) == [Mismatch("Bills", (Variant("*", ("a",)), Variant(None, ("b",))))]


def test_the_brokers_subscription_shows_a_consumer_that_does_not_respond() -> None:
    known: list[Subscription | SubscriptionView] = [SubscriptionView("Orders", "paid")]
    assert find_mismatches({"": known, "a": [Subscription("Orders", "*")]}) == [
        Mismatch("Orders", (Variant("paid", ("",)), Variant("*", ("a",))))
    ]


def test_the_same_expression_in_another_language_is_a_mismatch() -> None:
    """`TRUE` is a tag, or an SQL92 condition."""
    subscriptions = {"a": [Subscription("Orders", "TRUE")], "b": [Subscription("Orders", "TRUE", "SQL92")]}
    assert [mismatch.topic for mismatch in find_mismatches(subscriptions)] == ["Orders"]
    same = {"a": [Subscription("Orders", "n > 3 ", "SQL92")], "b": [Subscription("Orders", "n > 3", "SQL92")]}
    assert find_mismatches(same) == []
