"""Turns a subscription into the filter that the store applies to each message."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from skyroute.message.errors import ExpressionError, RecordError, TagExpressionError
from skyroute.message.properties import decode_properties, find_property
from skyroute.message.property_names import ORIGIN_GROUP, RETRY_TOPIC
from skyroute.message.record import decode_record
from skyroute.message.sql92 import Condition, compile_expression
from skyroute.message.tags import EVERY_TAG, parse_tag_expression
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.codes import ResponseCode

TAG: Final = "TAG"
SQL92: Final = "SQL92"

TAGS_CHARS_MAX: Final = 65_536
"""Maximum length of the tag expression of a pull, in characters."""

COMPILED_MAX: Final = 10_000
"""Maximum number of compiled conditions in the cache."""

COMPILED_CHARS_MAX: Final = 1_000_000
"""Total length of the expressions in the cache; a condition takes up to 100 bytes per character."""

AcceptCode = Callable[[int], bool]
AcceptRecord = Callable[[bytes], bool]


class Filter(NamedTuple):
    """Tests of a message: first of its tag hash, then of its record. None: every message passes."""

    accept_code: AcceptCode | None = None
    accept_record: AcceptRecord | None = None


_EVERYTHING: Final = Filter()


def make_filter(subscription: Subscription, *, by_properties: bool = True) -> Filter:
    """Return the filter for a subscription.

    `by_properties` is false if SQL92 expressions are not allowed (`enablePropertyFilter`).

    Raises:
        RefusedError: the expression is invalid, of an unknown type, or not allowed.
    """
    kind, expression = subscription.expression_type, subscription.expression
    if kind == TAG:
        if expression == EVERY_TAG:
            return _EVERYTHING
        # Consume queues have 64-bit codes; the code of a tag is its 32-bit hash.
        return Filter(frozenset(subscription.codes).__contains__)
    if not by_properties:
        raise RefusedError(
            ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind}"
        )
    if kind != SQL92:
        raise RefusedError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"unknown filter type {kind[:80]!r} (expected TAG or SQL92)"
        )
    return _compiled.filter_of(expression)


def subscription_filter(topic: str, kind: str, expression: str, *, by_properties: bool) -> Filter:
    """Return the filter of the subscription that a request carries.

    Raises:
        RefusedError: the expression is invalid, of an unknown type, or not allowed.
    """
    if kind != TAG:
        return make_filter(Subscription(topic, expression, kind), by_properties=by_properties)
    if len(expression) > TAGS_CHARS_MAX:
        raise RefusedError(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the expression has {len(expression)} characters (expected at most {TAGS_CHARS_MAX})",
        )
    try:
        tags = parse_tag_expression(expression)
    except TagExpressionError:
        raise RefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed") from None
    return _EVERYTHING if tags.wants_everything else Filter(tags.codes.__contains__)


def retry_filter(plain: Filter, subscriptions: Iterable[Subscription]) -> Filter:
    """Return a filter that also tests retried messages against the condition of their original topic."""
    expressions = {wanted.topic: wanted.expression for wanted in subscriptions if wanted.expression_type == SQL92}

    conditions: dict[str, AcceptRecord | None] = {}

    def accept(record: bytes) -> bool:
        try:
            topic = find_property(decode_record(record).raw_properties, RETRY_TOPIC) or ""
        except RecordError:
            return False
        if topic in expressions and topic not in conditions:
            # Compiled only now: a group may have a condition for each of thousands of topics.
            conditions[topic] = None
            with suppress(RefusedError):  # an invalid condition filters nothing
                conditions[topic] = _compiled.filter_of(expressions[topic]).accept_record
        condition = conditions.get(topic)
        return condition is None or condition(record)

    return Filter(plain.accept_code, accept) if expressions else plain


def group_filter(group: str) -> Filter:
    """Return a filter for retried messages of a group, in a retry topic whose name may be that of other groups too."""

    def accept(record: bytes) -> bool:
        try:
            origin = find_property(decode_record(record).raw_properties, ORIGIN_GROUP)
        except RecordError:
            return False
        return origin is None or origin == group  # brokers before 5.5 do not say whose it is

    return Filter(accept_record=accept)


def without_groups(plain: Filter, groups: Collection[str]) -> Filter:
    """Return a filter that also hides retried messages of these groups."""
    accept_plain = plain.accept_record

    def accept(record: bytes) -> bool:
        try:
            origin = find_property(decode_record(record).raw_properties, ORIGIN_GROUP)
        except RecordError:
            return False
        return origin not in groups and (accept_plain is None or accept_plain(record))

    return Filter(plain.accept_code, accept)


class _CompiledConditions:
    """Cache of compiled conditions; the least recently used are dropped first."""

    def __init__(self) -> None:
        self._filters: OrderedDict[str, Filter] = OrderedDict()
        self._chars = 0

    def filter_of(self, expression: str) -> Filter:
        found = self._filters.get(expression)
        if found is not None:
            self._filters.move_to_end(expression)
            return found
        try:
            condition = compile_expression(expression)
        except ExpressionError as error:
            raise RefusedError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
        compiled = Filter(accept_record=_record_test(condition))
        self._filters[expression] = compiled
        self._chars += len(expression)
        while self._chars > COMPILED_CHARS_MAX or len(self._filters) > COMPILED_MAX:
            oldest, _ = self._filters.popitem(last=False)
            self._chars -= len(oldest)
        return compiled


_compiled: Final = _CompiledConditions()


def _record_test(condition: Condition) -> AcceptRecord:
    def accept(record: bytes) -> bool:
        try:
            raw = decode_record(record).raw_properties
        except RecordError:
            return False
        return condition.matches(decode_properties(raw))

    return accept
