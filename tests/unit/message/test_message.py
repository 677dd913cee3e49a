"""What an application may send."""

import dataclasses
import pickle
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from skyroute.message.errors import InvalidMessageError, InvalidNameError
from skyroute.message.message import Message


def test_the_short_form() -> None:
    message = Message("orders", b"{}")
    assert message.to_properties() == {}
    assert message == Message("orders", bytearray(b"{}"))


def test_every_field_travels_as_a_property() -> None:
    message = Message(
        "orders",
        b"{}",
        tag="paid",
        keys=["o-17", "c-4"],
        properties={"color": "red"},
        sharding_key="c-4",
        delay_level=3,
        wait_stored=False,
    )
    assert message.to_properties() == {
        "color": "red",
        "TAGS": "paid",
        "KEYS": "o-17 c-4",
        "__SHARDINGKEY": "c-4",
        "DELAY": "3",
        "WAIT": "false",
    }


def test_one_key_may_be_written_plainly() -> None:
    assert Message("orders", b"", keys="o-17").keys == ("o-17",)
    assert Message("orders", b"", keys="").keys == ()


def test_delivery_by_the_clock() -> None:
    at = datetime(2026, 1, 1, 1, 0, 0, 1999, tzinfo=timezone(timedelta(hours=1)))
    assert Message("orders", b"", deliver_at=at).to_properties() == {"TIMER_DELIVER_MS": "1767225600001"}
    assert Message("orders", b"", deliver_after_s=1.5).to_properties() == {"TIMER_DELAY_MS": "1500"}


def test_a_message_can_be_changed_into_another_and_sent_elsewhere() -> None:
    message = Message("orders", b"", keys=["a"], properties={"x": "1"})
    assert dataclasses.replace(message, tag="paid").to_properties() == {"x": "1", "KEYS": "a", "TAGS": "paid"}
    assert pickle.loads(pickle.dumps(message)) == message
    message.to_properties()["x"] = "2"
    assert message.properties == {"x": "1"}


@pytest.mark.parametrize(
    "fields",
    [
        {"tag": ""},
        {"tag": " "},
        {"tag": "a\x02"},
        {"keys": ["a b"]},
        {"keys": [""]},
        {"keys": "a\x01"},
        {"properties": {"TAGS": "a"}},
        {"properties": {"__SHARDINGKEY": "a"}},
        {"properties": {"": "a"}},
        {"properties": {"a": " "}},
        {"properties": {"a": 1}},
        {"properties": {"a": None}},
        {"properties": {None: "a"}},
        {"keys": [1]},
        {"properties": {"a\x01": "b"}},
        {"delay_level": -1},
        {"deliver_after_s": -0.1},
        {"deliver_after_s": float("nan")},
        {"deliver_at": datetime(2026, 1, 1)},  # noqa: DTZ001 - a time without a zone is what is refused
        {"deliver_at": datetime(2026, 1, 1, tzinfo=UTC), "delay_level": 1},
        {"flag": 1 << 31},
        {"body": "text"},
    ],
)
def test_what_breaks_a_rule_is_refused_at_once(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessageError):
        Message(**{"topic": "orders", "body": b"", **fields})


def test_a_topic_that_cannot_be_is_refused_at_once() -> None:
    with pytest.raises(InvalidNameError):
        Message("or.ders", b"")


def test_a_message_is_shown_without_its_body() -> None:
    shown = repr(Message("orders", b"x" * 1_000_000, tag="paid", keys="a"))
    assert shown == "Message(topic='orders', body=1000000 bytes, properties={'TAGS': 'paid', 'KEYS': 'a'})"
