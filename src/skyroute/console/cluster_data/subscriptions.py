"""Compares the subscriptions of a group's consumers. If they differ, messages get lost: brokers keep one of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skyroute.message.reserved_topics import is_retry_topic
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.groups import SubscriptionView


@dataclass(frozen=True, slots=True)
class Variant:
    """One subscription to a topic and the consumers that have it; None: they do not subscribe to the topic."""

    expression: str | None
    clients: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A topic to which the consumers of one group subscribe differently, the most frequent variant first."""

    topic: str
    variants: tuple[Variant, ...]


def find_mismatches(subscriptions: Mapping[str, Iterable[Subscription | SubscriptionView]]) -> list[Mismatch]:
    """Return the topics to which consumers, by client id, subscribe differently, sorted.

    The brokers' view of the group may be passed as one more client: it shows the subscription of a consumer that does
    not respond. Retry topics are ignored: some clients report them and others do not.
    """
    by_client = {
        client: {each.topic: each for each in its if not is_retry_topic(each.topic)}
        for client, its in subscriptions.items()
    }
    found = []
    for topic in sorted({topic for topics in by_client.values() for topic in topics}):
        clients_by_meaning: dict[object, list[str]] = {}
        shown: dict[object, str | None] = {}
        for client, topics in sorted(by_client.items()):
            subscription = topics.get(topic)
            meaning = None if subscription is None else _meaning(subscription)
            clients_by_meaning.setdefault(meaning, []).append(client)
            shown.setdefault(meaning, None if subscription is None else show_expression(subscription))
        if len(clients_by_meaning) > 1:
            most_first = sorted(clients_by_meaning.items(), key=lambda item: -len(item[1]))
            found.append(Mismatch(topic, tuple(Variant(shown[key], tuple(clients)) for key, clients in most_first)))
    return found


def show_expression(subscription: Subscription | SubscriptionView) -> str:
    """Return a filter expression, with its language unless that is tags."""
    kind = subscription.expression_type
    return subscription.expression if kind == "TAG" else f"{subscription.expression} ({kind})"


def _meaning(subscription: Subscription | SubscriptionView) -> tuple[str, frozenset[str] | str]:
    """Return a value that is equal for expressions that select the same messages: tags have no order."""
    if subscription.expression_type != "TAG":
        return subscription.expression_type, subscription.expression.strip()
    tags = {tag.strip() for tag in subscription.expression.split("||")} - {""}
    return "TAG", frozenset() if tags == {"*"} else frozenset(tags)
