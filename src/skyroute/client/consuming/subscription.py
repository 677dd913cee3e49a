"""Filters and start positions of subscriptions, and the messages of a pull that match them."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final

from skyroute.client.arguments import OFFSET_MAX, check_counts, check_moment
from skyroute.client.errors import ArgumentError
from skyroute.message.batch import unwrap_batches
from skyroute.message.errors import RecordError, TagExpressionError
from skyroute.message.message import StoredMessage
from skyroute.message.positions import QueueOffset
from skyroute.message.queue_ref import QueueRef
from skyroute.message.record import decode_run
from skyroute.message.tags import EVERY_TAG, parse_tag_expression
from skyroute.wire.calls.clients import StartFrom, Subscription
from skyroute.wire.calls.pull import PullAnswer

log = logging.getLogger(__name__)

TAG: Final = "TAG"
SQL92: Final = "SQL92"

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Expression:
    """A filter of a topic's messages: by tags, or by an SQL condition that the broker evaluates."""

    text: str = EVERY_TAG
    kind: str = TAG


def sql(text: str) -> Expression:
    """Return an SQL92 filter on the properties of messages.

    The broker evaluates it; Apache's brokers need `enablePropertyFilter=true`.

    Examples:
        >>> consumer.subscribe("Orders", sql("amount > 100 AND region IN ('north', 'south')"))

    Raises:
        ArgumentError: the text is empty, or not text.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"text is {text!r}: expected an SQL condition")
    if not text.strip():
        raise ArgumentError("text is empty: expected an SQL condition such as 'amount > 100'")
    return Expression(text, SQL92)


def make_subscription(topic: str, expression: str | Expression, version_ms: int) -> Subscription:
    """Return a subscription as heartbeats contain it; plain text is a tag expression such as `A || B`.

    Raises:
        TagExpressionError: a tag expression contains no tag.
        ArgumentError: it is not an expression.
    """
    if isinstance(expression, str):
        expression = Expression(expression)
    if not isinstance(expression, Expression):
        raise ArgumentError(f"expression is {expression!r}: expected tags such as 'A || B', or sql(...)")
    parts: tuple[object, ...] = expression.text, expression.kind
    if not all(isinstance(part, str) for part in parts):
        raise ArgumentError(f"expression is {expression!r}: expected text in both fields")
    if expression.kind != TAG:
        return Subscription(topic, expression.text, expression.kind, version_ms)
    wanted = parse_tag_expression(expression.text)
    if not wanted.tags and not wanted.wants_everything:
        raise TagExpressionError(f"expression is {expression.text!r}: expected tags such as 'A || B', or '*'")
    return Subscription(topic, wanted.text, TAG, version_ms, tuple(sorted(wanted.tags)), tuple(sorted(wanted.codes)))


def read_messages(
    answer: PullAnswer, queue: QueueRef, subscription: Subscription, asked: int, *, skips_damage: bool = True
) -> tuple[list[StoredMessage], int]:
    """Return the messages of a pull response that match the subscription, and the offset of the next pull.

    `asked` is the offset of the pull. Batches are split. Brokers filter by the hash of a tag, which different tags may
    share, so the tag itself is compared here. Messages before a damaged record are returned; the next pull starts at
    the damaged record.

    Raises:
        RecordError: the first record is damaged, and `skips_damage` is False.
        MessageError: the body of a batch is damaged.
    """
    run = decode_run(answer.body, queue=queue)
    messages, next_offset = unwrap_batches(run.messages), answer.next_offset
    if run.failure is not None and messages:
        next_offset = messages[-1].queue_offset + answer.offset_delta + 1
    elif run.failure is not None:
        if not skips_damage:
            raise RecordError(f"damaged record at offset {asked} of {queue}: {run.failure}; seek past it to skip it")
        next_offset = asked + 1
        log.warning("damaged record skipped queue=%s offset=%d reason=%s", queue, asked, run.failure)
    if subscription.tags:
        wanted = frozenset(subscription.tags)
        messages = [message for message in messages if message.tag in wanted]
    if answer.offset_delta:
        # A static topic: records contain the offset of the physical queue, not of the logical one.
        messages = [
            message.replace(queue_offset=QueueOffset(message.queue_offset + answer.offset_delta))
            for message in messages
        ]
    return messages, next_offset


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where a group starts reading a queue that has no committed offset.

    `StartPosition.FIRST` is the oldest message, `StartPosition.LAST` the next new one. While Apache's brokers have the
    first message of a queue in memory, every new group starts there.

    Examples:
        >>> consumer = Consumer("audit", start=StartPosition.at(datetime(2026, 1, 1, tzinfo=UTC)))
    """

    FIRST: ClassVar["StartPosition"]
    LAST: ClassVar["StartPosition"]

    wire: StartFrom
    """The value in heartbeats."""
    when_ms: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.wire, StartFrom):
            raise ArgumentError(f"wire is {self.wire!r}: use StartPosition.FIRST, LAST or StartPosition.at(...)")
        if self.when_ms is not None:
            check_counts(0, OFFSET_MAX, when_ms=self.when_ms)

    @classmethod
    def at(cls, when: datetime) -> "StartPosition":
        """Start at the first message that was stored at this time or later.

        Raises:
            ArgumentError: it is not a datetime, or has no time zone.
        """
        return cls(StartFrom.TIMESTAMP, to_ms(when))


StartPosition.FIRST = StartPosition(StartFrom.FIRST_OFFSET)
StartPosition.LAST = StartPosition(StartFrom.LAST_OFFSET)


def to_ms(when: datetime) -> int:
    """Return a time in milliseconds since 1970.

    Raises:
        ArgumentError: it is not a datetime, or has no time zone.
    """
    check_moment("when", when)
    if when < _EPOCH:
        raise ArgumentError(f"when is {when}: expected a time from 1970 on")
    return (when - _EPOCH) // _MILLISECOND
