"""Which topics a consumer subscribes to, who handles them, and what brokers were told of it."""

from typing import NamedTuple

import msgspec

from skyroute.client.consuming.push.handlers import Handler, HandlerCall
from skyroute.client.consuming.subscription import Expression, make_subscription
from skyroute.client.errors import ClientError
from skyroute.message.names import check_topic
from skyroute.message.reserved_topics import with_namespace
from skyroute.wire.calls.clients import Subscription


class Wanted(NamedTuple):
    """A subscription that is not one yet."""

    topic: str
    """By its name in the application."""
    subscription: Subscription
    call: HandlerCall | None


class Subscriptions:
    """The subscriptions of one consumer. Topics are named as brokers name them, save where it says otherwise."""

    def __init__(self, namespace: str | None, *, takes_list: bool) -> None:
        self._namespace = namespace
        self._takes_list = takes_list
        self._by_topic: dict[str, Subscription] = {}
        self._handlers: dict[str, HandlerCall | None] = {}
        """By the topic's name in the application."""
        self._told: dict[str, int] = {}
        """The version that brokers have heard of, by topic."""

    def put(self, topic: str, expression: str | Expression, handler: Handler | None, now_ms: int) -> None:
        """Subscribe to a topic by its name in the application, or change what is wanted of it.

        Raises:
            SkyrouteError: see `prepare`.
        """
        self.keep(self.prepare(topic, expression, handler, now_ms))

    def prepare(self, topic: str, expression: str | Expression, handler: Handler | None, now_ms: int) -> "Wanted":
        """Look at what is wanted of a topic, and change nothing yet.

        Raises:
            InvalidNameError: no topic has this name.
            TagExpressionError: a tag expression has no tag in it.
            ArgumentError: the handler cannot be called.
            ClientError: some subscriptions have a handler, and others have none.
        """
        check_topic(topic)
        name = with_namespace(self._namespace, topic)
        subscription = make_subscription(name, expression, self._next_version(name, now_ms))
        call = None if handler is None else HandlerCall.of(handler, takes_list=self._takes_list)
        self._check_handlers(topic, call)
        return Wanted(topic, subscription, call)

    def keep(self, wanted: "Wanted") -> None:
        """Subscribe as prepared.

        Raises:
            ClientError: some subscriptions have a handler, and others have none.
        """
        self._check_handlers(wanted.topic, wanted.call)
        subscription = wanted.subscription
        # Others may have come in between.
        version = self._next_version(subscription.topic, subscription.version)
        self._handlers[wanted.topic] = wanted.call
        self._by_topic[subscription.topic] = msgspec.structs.replace(subscription, version=version)

    def _check_handlers(self, topic: str, call: HandlerCall | None) -> None:
        others = {other: known for other, known in self._handlers.items() if other != topic}
        if any((known is None) != (call is None) for known in others.values()):
            raise ClientError(
                f"give both {topic} and {', '.join(others)} a handler, or none of them: messages go to handlers, or to"
                " `async for`"
            )

    def put_retry(self, topic: str, now_ms: int) -> None:
        """Subscribe to where the group's retries wait. Their handler is the one of the topic they come from."""
        self._by_topic[topic] = make_subscription(topic, "*", now_ms)

    def remove(self, topic: str) -> None:
        """Give up a topic by its name in the application; nothing happens where it was not subscribed to."""
        name = with_namespace(self._namespace, topic)
        self._handlers.pop(topic, None)
        self._by_topic.pop(name, None)
        self._told.pop(name, None)

    def touch(self, topic: str, now_ms: int) -> None:
        """Make a subscription newer, so that brokers take notice."""
        known = self._by_topic.get(topic)
        if known is not None:
            self._by_topic[topic] = msgspec.structs.replace(known, version=self._next_version(topic, now_ms))

    def _next_version(self, topic: str, now_ms: int) -> int:
        # The clock may stand still or step back; a version must not.
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
        """Whether messages go to handlers, and not to `async for`."""
        return any(handler is not None for handler in self._handlers.values())

    def find(self, topic: str) -> Subscription | None:
        return self._by_topic.get(topic)

    def find_handler(self, topic: str) -> HandlerCall | None:
        """Return who handles a topic, by its name in the application."""
        return self._handlers.get(topic)

    def mark_told(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Note what brokers have been told by now."""
        self._told.update((told.topic, told.version) for told in subscriptions if told.topic in self._by_topic)

    def told_version(self, topic: str) -> int:
        """Return the version to pull with: brokers refuse one that they have not heard of yet."""
        return self._told.get(topic, 0)
