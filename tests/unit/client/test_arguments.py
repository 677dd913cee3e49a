"""Invalid arguments raise at once, and the error names the argument."""

import contextlib
import inspect
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import skyroute
from skyroute import (
    Admin,
    Compression,
    Consumer,
    Credentials,
    Message,
    Producer,
    PullConsumer,
    RetryLater,
    Session,
    SimpleConsumer,
    SkyrouteError,
    StartPosition,
    sql,
)
from skyroute.client.consuming.intervals import Intervals
from skyroute.client.consuming.strategies import Average, Configured, ConsistentHash, MachineRoom, NearbyMachineRoom
from skyroute.client.errors import ArgumentError, ClientError
from skyroute.message.errors import InvalidMessageError, InvalidNameError

NOWHERE = "127.0.0.1:1"

NAN = float("nan")
INVALID_VALUES: list[Any] = [
    *(
        None,
        True,
        5,
        -1,
        0,
        1.5,
        NAN,
        float("inf"),
        10**30,
        "",
        " ",
        "x",
        "\x01",
        "\udc80",
        b"x",
        [],
        [None],
        {},
        {1: 2},
    ),
    *(object(), object, print, datetime(2026, 1, 1)),  # noqa: DTZ001 - without a zone on purpose
]
"""Values that applications pass by mistake."""


@pytest.mark.parametrize(
    "name", ["request_timeout_s", "connect_timeout_s", "route_poll_interval_s", "heartbeat_interval_s"]
)
@pytest.mark.parametrize("value", ["3", 0, -1, None, float("nan")])
def test_a_session_refuses_invalid_times(name: str, value: object) -> None:
    with pytest.raises(ClientError, match=rf"{name} is .*: expected seconds, more than 0"):
        Session(NOWHERE, **{name: value})  # type: ignore[arg-type]  # invalid on purpose


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
        ("tls", 0),
        ("tls", None),
        ("retries", True),
        ("retries", 1 << 40),
        ("retry_unsafe", "no"),
        ("avoid_slow", None),
        ("compression_level", 99),
        ("compression_level", -1),
        ("compression_level", "5"),
        ("check", "commit"),
        ("trace", 1),
        ("session", NOWHERE),
        ("send_timeout_s", NAN),
        ("send_timeout_s", float("inf")),
        ("send_timeout_s", True),
        ("instance_name", 5),
        ("unit_name", b"unit"),
        ("namespace", 5),
        ("namespace", "no blanks"),
        ("client_ip", "nonsense"),
        ("client_ip", 127),
        ("vip_channel", "false"),
        ("watch_routes", None),
        ("clock", 5),
    ],
)
def test_the_error_of_a_producer_names_the_invalid_argument(name: str, value: object) -> None:
    with pytest.raises(ClientError, match=rf"^{name} is "):
        Producer("g", NOWHERE, **{name: value})  # type: ignore[arg-type]  # invalid on purpose


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", "CLUSTERING"),  # would be taken for broadcasting
        ("start", "FIRST"),
        ("strategy", "average"),
        ("concurrency", 1.5),
        ("batch_size", "2"),
        ("pull_batch", 0),
        ("reconsume_times_max", -1),
        ("consume_timeout_s", 0),
        ("queue_messages_max", -1),
        ("queue_bytes_max", "1"),
        ("offset_span_max", 0),
        ("ordered", "false"),
        ("strategy", Average),
        ("concurrency", 1_000_000),
        ("suspend_s", -1),
        ("suspend_s", "1"),
        ("offsets", "/var/offsets"),
        ("intervals", 5),
        ("trace", None),
        ("session", Session),
    ],
)
def test_the_error_of_a_consumer_names_the_invalid_argument(name: str, value: object) -> None:
    with pytest.raises(ClientError, match=rf"^{name} is "):
        Consumer("g", NOWHERE, **{name: value})  # type: ignore[arg-type]  # invalid on purpose


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start", "FIRST"),
        ("intervals", 1.0),
        ("buffered_messages_max", 0),
        ("queue_messages_max", "1"),
        ("queue_bytes_max", -1),
        ("pull_batch", 0),
        ("strategy", "average"),
        ("auto_commit", 1),
        ("on_assignment_changed", []),
        ("session", False),
    ],
)
def test_the_error_of_a_pull_consumer_names_the_invalid_argument(name: str, value: object) -> None:
    with pytest.raises(ClientError, match=rf"^{name} is "):
        PullConsumer("g", NOWHERE, **{name: value})  # type: ignore[arg-type]  # invalid on purpose


def test_a_group_is_text() -> None:
    with pytest.raises(InvalidNameError, match="the name of a group must be text, not 5"):
        Consumer(5, NOWHERE)  # type: ignore[arg-type]  # invalid on purpose


def test_a_decorator_without_parentheses_is_refused() -> None:
    consumer = Consumer("g", NOWHERE)
    with pytest.raises(InvalidNameError, match="the name of a topic must be text"):

        @consumer.on  # type: ignore[arg-type]  # invalid on purpose
        def handle(message: object) -> None: ...


def test_an_argument_error_is_a_type_error_and_a_value_error() -> None:
    with pytest.raises(TypeError, match="retries"):
        Producer("g", NOWHERE, retries="2")  # type: ignore[arg-type]  # invalid on purpose
    with pytest.raises(ValueError, match="retries"):
        Producer("g", NOWHERE, retries=-2)


@pytest.mark.parametrize(
    ("compression", "level", "is_fine"),
    [
        (Compression.ZLIB, 0, True),
        (Compression.ZLIB, 9, True),
        (Compression.ZLIB, 10, False),
        (Compression.ZSTD, 22, True),
        (Compression.ZSTD, 0, False),
        (Compression.LZ4, 5, True),
    ],
)
def test_the_compression_level_fits_the_compression(compression: Compression, level: int, is_fine: bool) -> None:
    with (
        contextlib.nullcontext()
        if is_fine
        else pytest.raises(ArgumentError, match=r"^compression_level is .*: expected .* from")
    ):
        Producer("g", NOWHERE, compression=compression, compression_level=level)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("start", "FIRST"),
        ("start", StartPosition.at(datetime(2026, 1, 1, tzinfo=UTC))),
        ("ordered", 1),
        ("session", NOWHERE),
    ],
)
def test_the_error_of_a_simple_consumer_names_the_invalid_argument(name: str, value: object) -> None:
    with pytest.raises(ClientError, match=rf"^{name} is "):
        SimpleConsumer("g", NOWHERE, **{name: value})  # type: ignore[arg-type]  # invalid on purpose


@pytest.mark.parametrize("kind", [Producer, Consumer, PullConsumer, SimpleConsumer])
@pytest.mark.parametrize("other", [{"vip_channel": True}, {"namespace": "tenant"}, {"instance_name": "one"}])
def test_session_arguments_beside_a_shared_session_are_refused(kind: Any, other: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"session is given together with {next(iter(other))}, which"):
        kind("g", session=Session(NOWHERE), **other)
    with pytest.raises(ArgumentError, match="session is given"):
        Admin(session=Session(NOWHERE), **other)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("", "secret"), "access_key is empty: expected text that is not empty"),
        ((5, "secret"), "access_key is of type int: expected text that is not empty"),
        (("key", b"secret"), "secret_key is of type bytes: expected text that is not empty"),
        (("key", None), "secret_key is of type NoneType: expected text that is not empty"),
        (("key", "secret", 5), "security_token is of type int: expected text that is not empty"),
    ],
)
def test_credentials_are_text_and_errors_do_not_contain_them(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{text}$"):
        Credentials(*arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("body", None),
        ("body", "text"),
        ("tag", 5),
        ("tag", " "),
        ("keys", 5),
        ("keys", 0),
        ("keys", False),
        ("keys", b"key"),
        ("keys", [None]),
        ("keys", ["a b"]),
        ("properties", 5),
        ("properties", []),
        ("properties", ["name"]),
        ("properties", {"name": 5}),
        ("properties", {5: "value"}),
        ("sharding_key", 17),
        ("delay_level", "3"),
        ("delay_level", None),
        ("delay_level", 1.5),
        ("delay_level", True),
        ("delay_level", -1),
        ("deliver_after_s", "3"),
        ("deliver_after_s", -1),
        ("deliver_after_s", NAN),
        ("deliver_after_s", float("inf")),
        ("deliver_after_s", True),
        ("deliver_at", datetime(2026, 1, 1)),  # noqa: DTZ001 - invalid on purpose
        ("deliver_at", 1_758_275_140_000),
        ("deliver_at", "2026-01-01"),
        ("flag", "1"),
        ("flag", 1 << 31),
        ("flag", None),
        ("flag", True),
        ("wait_stored", 1),
        ("wait_stored", None),
    ],
)
def test_the_error_of_a_message_names_the_invalid_argument(name: str, value: object) -> None:
    with pytest.raises(InvalidMessageError, match=rf"{name.removesuffix('s').removesuffix('ie')}"):
        Message("T", **({"body": b"x"} | {name: value}))  # type: ignore[arg-type]  # invalid on purpose


@pytest.mark.parametrize("topic", [None, 5, [], ["T"], {}, b"T", "", " ", "a b", "x" * 128])
def test_an_invalid_topic_name_is_refused(topic: Any) -> None:
    with pytest.raises(InvalidNameError, match="topic"):
        Message(topic, b"x")


@pytest.mark.parametrize("value", [lambda: sql(5), lambda: sql(" "), lambda: StartPosition.at(5)])  # type: ignore[arg-type]
def test_filters_and_start_positions_are_checked(value: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError):
        value()


@pytest.mark.parametrize(
    "value",
    [
        lambda: RetryLater("5"),  # type: ignore[arg-type]
        lambda: RetryLater(-2),
        lambda: RetryLater(from_index=-1),
        lambda: RetryLater(from_index=1.5),  # type: ignore[arg-type]
        lambda: Intervals(rebalance_s=-1),
        lambda: Intervals(commit_s=NAN),
        lambda: ConsistentHash("10"),  # type: ignore[arg-type]
        lambda: MachineRoom(5),  # type: ignore[arg-type]
        lambda: Configured(["T"]),  # type: ignore[list-item]
        lambda: NearbyMachineRoom("north", "south"),  # type: ignore[arg-type]
        lambda: Consumer("g", NOWHERE).subscribe(5),  # type: ignore[arg-type]
        lambda: Consumer("g", NOWHERE).subscribe("T", 5),  # type: ignore[arg-type]
        lambda: Consumer("g", NOWHERE).subscribe("T", handler=5),  # type: ignore[arg-type]
        lambda: Consumer("g", NOWHERE).on("T", 5),  # type: ignore[arg-type]
        lambda: Consumer("g", NOWHERE).unsubscribe(None),  # type: ignore[arg-type]
    ],
)
def test_arguments_are_checked_by_the_call_that_gets_them(value: Callable[[], object]) -> None:
    with pytest.raises((ArgumentError, InvalidNameError)):
        value()


def parameters_of(kind: Any) -> list[str]:
    found = [name for name, each in inspect.signature(kind).parameters.items() if each.kind is not each.VAR_KEYWORD]
    return found + (
        list(inspect.signature(Session).parameters) if "client" in inspect.signature(kind).parameters else []
    )


@pytest.mark.parametrize(
    ("kind", "fine"),
    [
        (Session, {"name_servers": NOWHERE}),
        (Producer, {"group": "g", "name_servers": NOWHERE}),
        (Consumer, {"group": "g", "name_servers": NOWHERE}),
        (PullConsumer, {"group": "g", "name_servers": NOWHERE}),
        (SimpleConsumer, {"group": "g", "name_servers": NOWHERE}),
        (Admin, {"name_servers": NOWHERE}),
        (Message, {"topic": "T", "body": b"x"}),
        (Credentials, {"access_key": "key", "secret_key": "secret"}),
        (RetryLater, {}),
        (StartPosition.at, {}),
        (sql, {}),
    ],
    ids=lambda kind: getattr(kind, "__name__", None),
)
def test_invalid_values_raise_only_skyroute_errors(kind: Any, fine: dict[str, Any]) -> None:
    refused: set[str] = set()
    for name in parameters_of(kind):
        for value in INVALID_VALUES:
            try:
                kind(**(fine | {name: value}))
            except SkyrouteError:
                refused.add(name)
    assert refused


def test_every_public_class_is_tested_here() -> None:
    values = {"Compression", "ConsumeResult", "MessageModel", "SendStatus", "TransactionOutcome"}  # enumerations
    results = {"SendResult", "StoredMessage", "TransactionResult", "SkyrouteError", "QueueRef"}  # made by the client
    here = {
        "Intervals",
        "Session",
        "Producer",
        "Consumer",
        "PullConsumer",
        "SimpleConsumer",
        "Admin",
        "Message",
        "Credentials",
        "RetryLater",
    }
    assert set(skyroute.__all__) - {"__version__", "sql", "StartPosition"} == here | values | results
