"""Filters, start positions and the messages of a pull."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from skyroute.client.consuming.subscription import (
    Expression,
    StartPosition,
    make_subscription,
    read_messages,
    sql,
    to_ms,
)
from skyroute.client.errors import ClientError
from skyroute.message.errors import RecordError, TagExpressionError
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.pull import PullAnswer, PullStatus
from tests.support.fake_broker import encode_batch, encode_record

QUEUE = QueueRef("T", "b", 3)
EVERYTHING = make_subscription("T", "*", 0)


def record(offset: int, body: bytes = b"x", tag: str = "A", sys_flag: int = 0) -> bytes:
    return encode_record(
        QUEUE, offset, offset * 100, body, {"TAGS": tag}, port=10911, stored_at_ms=1_000, sys_flag=sys_flag
    )


def answer(*records: bytes, offset_delta: int = 0) -> PullAnswer:
    return PullAnswer(PullStatus.FOUND, 0, 0, 0, offset_delta=offset_delta, body=b"".join(records))


def test_a_text_is_a_tag_expression() -> None:
    assert make_subscription("T", "B||A", 7) == Subscription("T", "B||A", "TAG", 7, ("A", "B"), (65, 66))
    assert make_subscription("T", Expression("A"), 7) == Subscription("T", "A", "TAG", 7, ("A",), (65,))


@pytest.mark.parametrize("text", ["*", ""])
def test_everything_has_no_tags(text: str) -> None:
    assert make_subscription("T", text, 7) == Subscription("T", "*", "TAG", 7, (), ())


def test_a_condition_has_no_tags_and_stays_as_it_is() -> None:
    assert make_subscription("T", sql(" a > 5 "), 7) == Subscription("T", " a > 5 ", "SQL92", 7, (), ())


def test_an_expression_without_a_tag_is_refused() -> None:
    for text in ("||", "  ", " || "):
        with pytest.raises(TagExpressionError):
            make_subscription("T", text, 0)
    with pytest.raises(ClientError, match=r"expression is .*: expected tags"):
        make_subscription("T", ["A", "B"], 0)  # type: ignore[arg-type]  # that is the slip
    with pytest.raises(ClientError, match="empty"):
        sql("  ")


def test_messages_bear_their_queue_and_the_very_tag_decides() -> None:
    two = answer(record(0, tag="Aa"), record(1, tag="BB"))
    found, next_offset = read_messages(two, QUEUE, make_subscription("T", "BB", 0), 0)
    assert next_offset == two.next_offset
    assert [(message.queue, message.queue_offset, message.tag) for message in found] == [(QUEUE, 1, "BB")]


def test_a_condition_is_the_brokers_business() -> None:
    found, _ = read_messages(answer(record(0), record(1)), QUEUE, make_subscription("T", sql("a > 5"), 0), 0)
    assert len(found) == 2


def test_batches_are_split_before_tags_are_filtered() -> None:
    batch = encode_batch([(b"one", {"TAGS": "A"}), (b"two", {"TAGS": "B"})])
    found, _ = read_messages(answer(record(5, batch, sys_flag=0xC0)), QUEUE, make_subscription("T", "B", 0), 5)
    assert [(message.queue_offset, message.body) for message in found] == [(6, b"two")]


def test_offsets_of_a_static_topic_are_those_of_the_logical_queue() -> None:
    found, _ = read_messages(answer(record(5), offset_delta=100), QUEUE, EVERYTHING, 105)
    assert [message.queue_offset for message in found] == [105]


def test_a_damaged_record_costs_itself() -> None:
    damaged = record(7)[:4] + bytes(4) + record(7)[8:]
    found, next_offset = read_messages(answer(record(5), record(6), damaged, record(8)), QUEUE, EVERYTHING, 5)
    assert ([message.queue_offset for message in found], next_offset) == ([5, 6], 7)
    assert read_messages(answer(damaged, record(8)), QUEUE, EVERYTHING, 7) == ([], 8)
    with pytest.raises(RecordError, match="offset 7"):
        read_messages(answer(damaged, record(8)), QUEUE, EVERYTHING, 7, skips_damage=False)
    assert read_messages(answer(record(7)[:-1]), QUEUE, EVERYTHING, 7) == ([], 8)
    found, next_offset = read_messages(answer(record(6), damaged, offset_delta=100), QUEUE, EVERYTHING, 106)
    assert ([message.queue_offset for message in found], next_offset) == ([106], 107)


def test_start_positions_have_the_wires_names() -> None:
    assert StartPosition.FIRST.wire == "CONSUME_FROM_FIRST_OFFSET"
    assert StartPosition.LAST.wire == "CONSUME_FROM_LAST_OFFSET"
    start = StartPosition.at(datetime(2024, 1, 1, tzinfo=UTC))
    assert (start.wire, start.when_ms) == ("CONSUME_FROM_TIMESTAMP", 1_704_067_200_000)
    assert StartPosition.FIRST.when_ms is None


def test_times_are_converted_from_any_zone_and_need_one() -> None:
    east = timezone(timedelta(hours=8))
    assert to_ms(datetime(2024, 1, 1, 8, tzinfo=east)) == 1_704_067_200_000
    assert to_ms(datetime(1970, 1, 1, 0, 0, 0, 1_999, tzinfo=UTC)) == 1
    with pytest.raises(ClientError, match="time zone"):
        StartPosition.at(datetime(2024, 1, 1))  # noqa: DTZ001 - that is what is wrong with it
