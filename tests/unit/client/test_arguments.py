"""Slips in what an application passes are told at once, and name the argument."""

import pytest

from skyroute import Consumer, Producer, PullConsumer, Session
from skyroute.client.errors import ClientError
from skyroute.message.errors import InvalidNameError

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize("name", ["request_timeout_s", "connect_timeout_s", "poll_interval_s", "heartbeat_interval_s"])
@pytest.mark.parametrize("value", ["3", 0, -1, None, float("nan")])
def test_a_session_wants_times(name: str, value: object) -> None:
    with pytest.raises(ClientError, match=rf"{name} is a time in seconds, more than 0"):
        Session(NOWHERE, **{name: value})  # type: ignore[arg-type]  # that is the slip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("send_timeout_s", "3"),
        ("send_timeout_s", 0),
        ("retries", -1),
        ("retries", 1.5),
        ("compress_from_bytes", "4096"),
        ("body_bytes_max", 0),
        ("batch_bytes_max", None),
        ("in_flight_max", 0),
        ("in_flight_bytes_max", "1"),
        ("new_topic_queues", 0),
        ("compression", "zlib"),
        ("compression", None),
        ("credentials", ("key", "secret")),
        ("tls", "false"),
    ],
)
def test_a_producer_says_which_argument_makes_no_sense(name: str, value: object) -> None:
    with pytest.raises(ClientError, match=rf"^{name} is "):
        Producer("g", NOWHERE, **{name: value})  # type: ignore[arg-type]  # that is the slip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "CLUSTERING"),  # would be taken for broadcasting
        ("start", "FIRST"),
        ("strategy", "average"),
        ("concurrency", 1.5),
        ("batch_size", "2"),
        ("pull_batch", 0),
        ("max_reconsume_times", -1),
        ("consume_timeout_s", 0),
        ("cached_messages_max", -1),
        ("cached_bytes_max", "1"),
        ("offset_span_max", 0),
    ],
)
def test_a_consumer_says_which_argument_makes_no_sense(name: str, value: object) -> None:
    with pytest.raises(ClientError, match=rf"^{name} is "):
        Consumer("g", NOWHERE, **{name: value})  # type: ignore[arg-type]  # that is the slip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start_from", "FIRST"),
        ("auto_commit_interval_s", 0),
        ("retry_interval_s", "1"),
        ("buffered_messages_max", 0),
        ("queue_messages_max", "1"),
        ("queue_bytes_max", -1),
        ("pull_messages_max", 0),
    ],
)
def test_a_pull_consumer_says_which_argument_makes_no_sense(name: str, value: object) -> None:
    with pytest.raises(ClientError, match=rf"^{name} is "):
        PullConsumer("g", NOWHERE, **{name: value})  # type: ignore[arg-type]  # that is the slip


def test_a_group_is_text() -> None:
    with pytest.raises(InvalidNameError, match="the name of a group is text, not 5"):
        Consumer(5, NOWHERE)  # type: ignore[arg-type]  # that is the slip


def test_a_decorator_without_parentheses_is_refused() -> None:
    consumer = Consumer("g", NOWHERE)
    with pytest.raises(InvalidNameError, match="the name of a topic is text"):

        @consumer.on  # type: ignore[arg-type]  # that is the slip
        def handle(message: object) -> None: ...
