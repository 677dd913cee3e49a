"""Subscriptions that pops carry: a group that pops need not send heartbeats."""

from typing import Final

from skyroute.broker.delivery.filters import TAG
from skyroute.message.reserved_topics import pop_retry_topic
from skyroute.message.tags import parse_tag_expression
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.pop import PopQuestion

SUBSCRIPTIONS_MAX: Final = 10_000
CHARS_MAX: Final = 4_000_000
"""Characters of all expressions."""


class PopSubscriptions:
    """The newest subscription of each group to each topic that it popped. Beyond a limit, the oldest are forgotten."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Subscription] = {}
        self._chars = 0

    def note(self, question: PopQuestion, now_ms: int) -> None:
        """Keep the subscription of a pop, whose expression was parsed before."""
        key = question.group, question.topic
        expression, kind = question.expression or "*", question.expression_type or TAG
        known = self._known.get(key)
        if known is not None:
            if known.expression == expression and known.expression_type == kind:
                return
            self._forget(key)
        tags = parse_tag_expression(expression) if kind == TAG else parse_tag_expression(None)
        self._known[key] = Subscription(
            question.topic, expression, kind, version=now_ms, tags=tuple(tags.tags), codes=tuple(tags.codes)
        )
        self._chars += len(expression)
        while len(self._known) > SUBSCRIPTIONS_MAX or self._chars > CHARS_MAX:
            self._forget(next(iter(self._known)))

    def _forget(self, key: tuple[str, str]) -> None:
        self._chars -= len(self._known.pop(key).expression)

    def get(self, group: str, topic: str) -> Subscription | None:
        """Return the subscription of a group to a topic, or to the retry topic of one; None if it did not pop."""
        known = self._known.get((group, topic))
        for version in (1, 2):
            prefix = pop_retry_topic(group, "", version=version)
            if known is None and topic.startswith(prefix):
                of_topic = self._known.get((group, topic.removeprefix(prefix)))
                known = of_topic and Subscription(topic, "*", of_topic.expression_type, version=of_topic.version)
        return known
