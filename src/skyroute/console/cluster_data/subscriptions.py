"""Whether the members of a group want the same messages. If not, some get lost: brokers heed only one of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from skyroute.message.reserved_topics import is_retry_topic
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.groups import SubscriptionView


@dataclass(frozen=True, slots=True)
class Way:
    """What some members want of a topic; None if they do not want it at all."""

    expression: str | None
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A topic of which members of one group want different things, the way of the most members first."""

    topic: str
    ways: tuple[Way, ...]


def find_mismatches(wanted: Mapping[str, Iterable[Subscription | SubscriptionView]]) -> list[Mismatch]:
    """Return the topics about which members, by their client id, do not agree, sorted.

    What brokers have heard may be among them, as if it were one more: it gives away a member that tells nothing of
    itself. Retry topics do not count: some clients tell of them, and others do not.
    """
    by_member = {
        member: {each.topic: each for each in subscriptions if not is_retry_topic(each.topic)}
        for member, subscriptions in wanted.items()
    }
    found = []
    for topic in sorted({topic for topics in by_member.values() for topic in topics}):
        ways: dict[object, list[str]] = {}
        shown: dict[object, str | None] = {}
        for member, topics in sorted(by_member.items()):
            subscription = topics.get(topic)
            meaning = None if subscription is None else _meaning(subscription)
            ways.setdefault(meaning, []).append(member)
            shown.setdefault(meaning, None if subscription is None else show_expression(subscription))
        if len(ways) > 1:
            most_first = sorted(ways.items(), key=lambda way: -len(way[1]))
            found.append(Mismatch(topic, tuple(Way(shown[key], tuple(members)) for key, members in most_first)))
    return found


def show_expression(subscription: Subscription | SubscriptionView) -> str:
    """Return what is wanted of a topic, and in which language, unless that is the usual one."""
    kind = subscription.expression_type
    return subscription.expression if kind == "TAG" else f"{subscription.expression} ({kind})"


def _meaning(subscription: Subscription | SubscriptionView) -> tuple[str, frozenset[str] | str]:
    """Return what two subscriptions share that let the same messages pass: tags come in any order."""
    if subscription.expression_type != "TAG":
        return subscription.expression_type, subscription.expression.strip()
    tags = {tag.strip() for tag in subscription.expression.split("||")} - {""}
    return "TAG", frozenset() if tags == {"*"} else frozenset(tags)
