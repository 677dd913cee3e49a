"""The topics that a consumer subscribes to, their handlers, and the versions that brokers know."""

from typing import NamedTuple

import msgspec

from skyroute.client.consuming.push.handlers import Handler, HandlerCall
from skyroute.client.consuming.subscription import Expression, make_subscription
from skyroute.client.errors import ClientError
from skyroute.message.names import check_topic
from skyroute.message.reserved_topics import with_namespace
from skyroute.wire.calls.clients import Subscription


class NewSubscription(NamedTuple):
    """A checked subscription that is not applied yet."""

    topic: str
    """Without the namespace."""
    subscription: Subscription
    call: HandlerCall | None


class Subscriptions:
    """The subscriptions of one consumer. Topics include the namespace, unless stated otherwise."""

    def __init__(self, namespace: str | None, *, takes_list: bool) -> None:
        self._namespace = namespace
        self._takes_list = takes_list
        self._by_topic: dict[str, Subscription] = {}
        self._handlers: dict[str, HandlerCall | None] = {}
        """By topic without the namespace."""
        self._announced: dict[str, int] = {}
        """The version in the last heartbeats, by topic."""

    def put(self, topic: str, expression: str | Expression, handler: Handler | None, now_ms: int) -> None:
        """Subscribe to a topic, named without the namespace, or replace its subscription.

        Raises:
            SkyrouteError: see `prepare`.
        """
        self.apply(self.prepare(topic, expression, handler, now_ms))

    def prepare(
        self, topic: str, expression: str | Expression, handler: Handler | None, now_ms: int
    ) -> NewSubscription:
        """Check a subscription, and change nothing yet.

        Raises:
            InvalidNameError: the topic name is invalid.
            TagExpressionError: the expression contains no tag.
            ArgumentError: the handler cannot be called.
            ClientError: some subscriptions have a handler and others do not.
        """
        check_topic(topic)
        name = with_namespace(self._namespace, topic)
        subscription = make_subscription(name, expression, self._next_version(name, now_ms))
        call = None if handler is None else HandlerCall.of(handler, takes_list=self._takes_list)
        self._check_handlers(topic, call)
        return NewSubscription(topic, subscription, call)

    def apply(self, new: NewSubscription) -> None:
        """Apply a checked subscription.

        Raises:
            ClientError: some subscriptions have a handler and others do not.
        """
        self._check_handlers(new.topic, new.call)
        subscription = new.subscription
        # Another subscription to the topic may have been applied meanwhile.
        version = self._next_version(subscription.topic, subscription.version)
        self._handlers[new.topic] = new.call
        self._by_topic[subscription.topic] = msgspec.structs.replace(subscription, version=version)

    def _check_handlers(self, topic: str, call: HandlerCall | None) -> None:
        others = {other: known for other, known in self._handlers.items() if other != topic}
        if any((known is None) != (call is None) for known in others.values()):
            raise ClientError(
                f"some of the topics {topic}, {', '.join(others)} have a handler and others do not: give all of them a"
                " handler, or none and use `async for`"
            )

    def put_retry(self, topic: str, now_ms: int) -> None:
        """Subscribe to the retry topic of the group. The handler of a message is that of its original topic."""
        self._by_topic[topic] = make_subscription(topic, "*", now_ms)

    def remove(self, topic: str) -> None:
        """Unsubscribe from a topic, named without the namespace."""
        name = with_namespace(self._namespace, topic)
        self._handlers.pop(topic, None)
        self._by_topic.pop(name, None)
        self._announced.pop(name, None)

    def raise_version(self, topic: str, now_ms: int) -> None:
        """Raise the version of a subscription, so that brokers notify the other members."""
        known = self._by_topic.get(topic)
        if known is not None:
            self._by_topic[topic] = msgspec.structs.replace(known, version=self._next_version(topic, now_ms))

    def _next_version(self, topic: str, now_ms: int) -> int:
        # The clock may step back; a version must not.
        known = self._by_topic.get(topic)
        return now_ms if known is None else max(now_ms, known.version + 1)

    @property
    def all(self) -> tuple[Subscription, ...]:
        return tuple(self._by_topic.values())

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(self._by_topic)

    @property
    def has_handlers(self) -> bool:
        """Whether messages go to handlers instead of `async for`."""
        return any(handler is not None for handler in self._handlers.values())

    def find(self, topic: str) -> Subscription | None:
        return self._by_topic.get(topic)

    def find_handler(self, topic: str) -> HandlerCall | None:
        """Return the handler of a topic, named without the namespace."""
        return self._handlers.get(topic)

    def mark_announced(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Record the versions that were sent in heartbeats."""
        self._announced.update((each.topic, each.version) for each in subscriptions if each.topic in self._by_topic)

    def announced_version(self, topic: str) -> int:
        """Return the version to pull with: brokers refuse a version newer than the last heartbeat."""
        return self._announced.get(topic, 0)
