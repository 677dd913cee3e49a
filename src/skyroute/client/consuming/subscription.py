"""What a consumer wants of a topic, and where it begins."""

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
    """Which messages of a topic a consumer wants: by their tag, or by a condition that the broker evaluates."""

    text: str = EVERY_TAG
    kind: str = TAG


def sql(text: str) -> Expression:
    """Return a condition over the properties of messages, in SQL92.

    The broker evaluates it, if its operator has allowed that (`enablePropertyFilter=true`).

    Examples:
        >>> consumer.subscribe("Orders", sql("amount > 100 AND region IN ('north', 'south')"))

    Raises:
        ArgumentError: there is no condition.
    """
    if not isinstance(text, str):
        raise ArgumentError(f"an SQL expression is text: {text!r} is none")
    if not text.strip():
        raise ArgumentError("an SQL expression says which messages are wanted; it cannot be empty")
    return Expression(text, SQL92)


def make_subscription(topic: str, expression: str | Expression, version_ms: int) -> Subscription:
    """Return a subscription as brokers want to hear of it; plain text is a tag expression such as `A || B`.

    Raises:
        TagExpressionError: a tag expression has no tag in it.
        ArgumentError: it is no expression at all.
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
        raise TagExpressionError(f"there is no tag in {expression.text!r}, so that no message would ever come")
    return Subscription(topic, wanted.text, TAG, version_ms, tuple(sorted(wanted.tags)), tuple(sorted(wanted.codes)))


def read_messages(
    answer: PullAnswer, queue: QueueRef, subscription: Subscription, asked: int, *, skips_damage: bool = True
) -> tuple[list[StoredMessage], int]:
    """Return the messages of the answer to a pull from `asked` on that the subscription wants, and where to read on.

    Batches are taken apart. A broker selects by the hash of a tag, which different tags may share; here the tag itself
    decides. A record that is damaged costs itself: what is before it is returned, what is behind it is read anew.

    Raises:
        RecordError: the first record is damaged, and nobody wants it skipped.
        MessageError: a body that should be a batch is none.
    """
    run = decode_run(answer.body, queue=queue)
    messages, next_offset = unwrap_batches(run.messages), answer.next_offset
    if run.failure is not None and messages:
        next_offset = messages[-1].queue_offset + answer.offset_delta + 1
    elif run.failure is not None:
        if not skips_damage:
            raise RecordError(f"the message at offset {asked} of {queue} is damaged, seek beyond it: {run.failure}")
        next_offset = asked + 1
        log.warning("damaged message skipped queue=%s offset=%d cause=%s", queue, asked, run.failure)
    if subscription.tags:
        wanted = frozenset(subscription.tags)
        messages = [message for message in messages if message.tag in wanted]
    if answer.offset_delta:
        # A static topic: records bear the offset of the physical queue behind the logical one.
        messages = [
            message.replace(queue_offset=QueueOffset(message.queue_offset + answer.offset_delta))
            for message in messages
        ]
    return messages, next_offset


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where a group begins with a queue of which it has consumed nothing yet.

    `StartPosition.FIRST` is the oldest message there is, `StartPosition.LAST` what comes from now on. While Apache's
    brokers have the first message of a queue in memory, they have every new group begin there, whatever it asks for.

    Examples:
        >>> consumer = Consumer("audit", start=StartPosition.at(datetime(2026, 1, 1, tzinfo=UTC)))
    """

    FIRST: ClassVar["StartPosition"]
    LAST: ClassVar["StartPosition"]

    wire: StartFrom
    """What brokers are told in heartbeats."""
    when_ms: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.wire, StartFrom):
            raise ArgumentError(f"a StartPosition is FIRST, LAST or StartPosition.at(...): {self.wire!r} is none")
        if self.when_ms is not None:
            check_counts(0, OFFSET_MAX, when_ms=self.when_ms)

    @classmethod
    def at(cls, when: datetime) -> "StartPosition":
        """Begin with the first message that was stored at this time or later.

        Raises:
            ArgumentError: it is no time, or has no time zone.
        """
        return cls(StartFrom.TIMESTAMP, to_ms(when))


StartPosition.FIRST = StartPosition(StartFrom.FIRST_OFFSET)
StartPosition.LAST = StartPosition(StartFrom.LAST_OFFSET)


def to_ms(when: datetime) -> int:
    """Return a moment as brokers count it: in milliseconds since 1970.

    Raises:
        ArgumentError: it is no time, or has no time zone.
    """
    check_moment("when", when)
    if when < _EPOCH:
        raise ArgumentError(f"when is a datetime from 1970 on: {when}")
    return (when - _EPOCH) // _MILLISECOND
