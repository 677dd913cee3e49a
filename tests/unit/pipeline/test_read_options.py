"""Options of a read are parsed under all their names, and all wrong ones are reported at once."""

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import ArrayType, BinaryType, DateType, IntegerType, LongType, StringType, StructType

from skyroute.message.queue_ref import QueueRef
from skyroute.pipeline.data_source import RocketMQSource
from skyroute.pipeline.options import OptionsError
from skyroute.pipeline.source.columns import COLUMNS, BodyFormat, chosen_names
from skyroute.pipeline.source.options import Position, PositionKind, ReadOptions, read_options

NAMES = [column.name for column in COLUMNS]
DEFAULT = ["topic", "broker_name", "queue_id", "queue_offset", "store_timestamp", "tags", "keys", "body"]


def read(**given: str) -> ReadOptions:
    return read_options(CaseInsensitiveDict({"nameServer": "127.0.0.1:9876", "topic": "Orders", **given}))


def error_of(**given: str) -> str:
    with pytest.raises(OptionsError) as caught:
        read(**given)
    return str(caught.value)


def test_name_server_and_topic_are_enough() -> None:
    options = read()
    assert options.topics == ("Orders",)
    assert options.start is None
    assert options.end is None
    assert options.fail_on_data_loss
    assert list(options.columns) == DEFAULT


def test_option_names_are_case_insensitive() -> None:
    assert read(FAILONDATALOSS="false", MaxOffsetsPerTrigger="5").max_offsets_per_trigger == 5


@pytest.mark.parametrize(
    ("alias", "text", "field", "value"),
    [
        ("pullTimeout", "2500", "pull_timeout_s", 2.5),
        ("pollTimeoutMs", "2500", "pull_timeout_s", 2.5),
        ("pullTimeoutMs", "2500", "pull_timeout_s", 2.5),
        ("pullBatchSize", "64", "pull_messages", 64),
        ("group", "billing", "consumer_group", "billing"),
        ("consumerGroup", "billing", "consumer_group", "billing"),
        ("tags", "paid || sent", "expression", "paid || sent"),
        ("subExpression", "paid", "expression", "paid"),
        ("maxTriggerDelay", "15m", "max_trigger_delay_s", 900.0),
        ("maxTriggerDelay", "250ms", "max_trigger_delay_s", 0.25),
        ("minPartitions", "9", "min_partitions", 9),
        ("maxRecordsPerPartition", "9", "max_records_per_partition", 9),
    ],
)
def test_options_are_read_under_all_their_names(alias: str, text: str, field: str, value: object) -> None:
    assert getattr(read(**{alias: text}), field) == value


@pytest.mark.parametrize("name", ["subscribe", "topics", "path"])
def test_topics_have_several_names(name: str) -> None:
    options = read_options(CaseInsensitiveDict({"namesrvAddr": "127.0.0.1:9876", name: "Orders, Bills,Orders"}))
    assert options.topics == ("Orders", "Bills")


def test_all_wrong_options_are_reported_at_once_with_suggestions() -> None:
    text = error_of(
        startingOfsets="earliest",
        failOnDataLoss="maybe",
        maxOffsetsPerTrigger="0",
        startingTimestamp="yesterday",
        columns="topic,bodi",
        endingOffsets="earliest",
        assign='{"Orders": "broker-a:0"}',
        secretKey="s3cret",
        maxTriggerDelay="soon",
        rejects="drop",
        subExpression="||",
    )
    for problem in (
        "unknown option startingofsets: did you mean startingOffsets?",
        "failOnDataLoss: invalid value 'maybe' (expected true or false)",
        "maxOffsetsPerTrigger: invalid value '0' (expected a whole number, 1 or more)",
        "startingTimestamp: invalid value 'yesterday' (expected milliseconds since 1970",
        "bodi is not one: did you mean body?",
        "endingOffsets: invalid value 'earliest' (expected JSON such as",
        '(expected JSON such as {"Orders": ["broker-a:0"',
        "topic and assign both set what to read",
        "accessKey and secretKey need each other",
        "maxTriggerDelay: invalid value 'soon' (expected a duration such as",
        "rejects: invalid value 'drop' (expected one of fail, column)",
        "subExpression: invalid value '||' (expected tags such as",
    ):
        assert problem in text
    assert "s3cret" not in text


def test_a_single_problem_is_in_the_first_line() -> None:
    assert error_of(startingOfsets="earliest") == (
        "wrong options for rocketmq: unknown option startingofsets: did you mean startingOffsets?"
    )


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("kafka.bootstrap.servers", "nameServer"),
        ("kafka.group.id", "groupId"),
        ("includeHeaders", "includeProperties"),
        ("kafkaConsumer.pollTimeoutMs", "pullTimeoutMs"),
    ],
)
def test_options_of_kafka_are_recognized(name: str, ours: str) -> None:
    assert f"unknown option {name.lower()}: did you mean {ours}?" in error_of(**{name: "1"})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"startingTimestamp": "1700000000"}, "milliseconds since 1970; 1700000000 seconds are 1700000000000"),
        ({"startingTimestamp": "9" * 30}, "milliseconds since 1970, before the year 10000"),
        ({"endingOffsetsByTimestamp": '{"Orders": {"b:0": 1700000000}}'}, "1700000000 seconds are 1700000000000"),
        (
            {"startingTimestamp": "2026-11-15T11:00", "endingTimestamp": "2026-11-15T10:00"},
            "endingTimestamp is before startingTimestamp",
        ),
        (
            {
                "startingOffsets": '{"Orders": {"b:0": 7, "b:1": 0}}',
                "endingOffsets": '{"Orders": {"b:0": 6, "b:1": -1}}',
            },
            "endingOffsets of Orders@b:0 is 6, below startingOffsets",
        ),
        ({"subExpression": "price > 3"}, "set expressionType=sql92 for a condition"),
    ],
    ids=str,
)
def test_a_read_that_would_silently_return_the_wrong_rows_is_refused(given: dict[str, str], problem: str) -> None:
    assert problem in error_of(**given)


def test_missing_options_are_reported() -> None:
    with pytest.raises(OptionsError, match=r"(?s)nameServer is missing.*topic is missing"):
        read_options(CaseInsensitiveDict())


def test_the_name_server_defaults_to_the_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:9876")
    assert read_options(CaseInsensitiveDict({"topic": "Orders"})).connection.name_server == "127.0.0.1:9876"


def test_a_name_server_must_be_host_and_port() -> None:
    assert "expected host:port" in error_of(nameServer="somewhere")


def test_two_names_of_one_option_must_have_the_same_value() -> None:
    assert "topic and subscribe are the same option with different values" in error_of(subscribe="Bills")


def test_a_minimum_above_the_maximum_is_rejected() -> None:
    assert "minOffsetsPerTrigger is larger than maxOffsetsPerTrigger" in error_of(
        minOffsetsPerTrigger="10", maxOffsetsPerTrigger="9"
    )


def test_report_group_offsets_needs_a_group() -> None:
    assert "reportGroupOffsets needs groupId" in error_of(reportGroupOffsets="true")


@pytest.mark.parametrize(
    ("name", "text", "position"),
    [
        ("startingOffsets", "earliest", Position(PositionKind.EARLIEST)),
        ("startingOffsets", "LATEST", Position(PositionKind.LATEST)),
        (
            "startingOffsets",
            '{"Orders": {"broker-a:0": 3, "b:roker:1": -2}}',
            Position(
                PositionKind.OFFSETS, {QueueRef("Orders", "broker-a", 0): 3, QueueRef("Orders", "b:roker", 1): -2}
            ),
        ),
        (
            "startingTimestamp",
            "1700000000000",
            Position(PositionKind.TIME, time_ms=1700000000000, fail_if_no_message=True),
        ),
        (
            "startingOffsetsByTimestamp",
            '{"Orders": {"broker-a:0": 1700000000000}}',
            Position(PositionKind.TIME, {QueueRef("Orders", "broker-a", 0): 1700000000000}, fail_if_no_message=True),
        ),
    ],
)
def test_a_start_is_a_keyword_offsets_or_a_timestamp(name: str, text: str, position: Position) -> None:
    assert read(**{name: text}).start == position


@pytest.mark.parametrize(
    "text", ["", "first", "[]", "{", '{"Orders": 3}', '{"Orders": {"broker-a:0": "3"}}', '{"Orders": {"0": 3}}', "3"]
)
def test_malformed_offsets_are_rejected(text: str) -> None:
    if not text:
        assert read(startingOffsets=text).start is None
    else:
        assert "startingOffsets: invalid value" in error_of(startingOffsets=text)


@pytest.mark.parametrize(("offset", "side"), [(-3, "starting"), (-2, "ending")])
def test_offsets_below_the_earliest_are_rejected(offset: int, side: str) -> None:
    error = error_of(**{f"{side}Offsets": f'{{"Orders": {{"broker-a:0": {offset}}}}}'})
    assert f"{side}Offsets: invalid value" in error
    assert "expected offsets of 0 or more" in error


def test_only_one_option_may_set_the_start() -> None:
    assert "both set the start" in error_of(startingOffsets="earliest", startingTimestamp="5")


def test_columns_are_returned_in_the_chosen_order() -> None:
    assert read(columns="body, topic").columns == ("body", "topic")
    assert read(columns="body,queueOffset", legacyColumns="true").columns == ("body", "queue_offset")
    assert read(columns="body", rejects="column").columns == ("body", "reject")
    assert read(includeProperties="true").columns == (*DEFAULT[:-1], "properties", "body")


def source(**given: str) -> RocketMQSource:
    return RocketMQSource(CaseInsensitiveDict({"nameServer": "127.0.0.1:9876", "topic": "Orders", **given}))


def test_a_schema_has_the_columns_or_their_legacy_names() -> None:
    assert source().schema().names == DEFAULT
    assert source(columns=" * ").schema().names == [name for name in NAMES if name != "reject"]
    assert source(legacyColumns="true", columns="queueId,bornTimestamp").schema().names == ["queueId", "bornTimestamp"]


def test_a_stream_rejects_an_ending_position() -> None:
    chosen = source(endingOffsets="latest")
    with pytest.raises(OptionsError, match="a stream takes no ending position"):
        chosen.streamReader(chosen.schema())


def test_a_custom_schema_must_use_known_columns_and_types() -> None:
    wrong = StructType().add("body", StringType()).add("queue_id", IntegerType()).add("colour", StringType())
    with pytest.raises(OptionsError, match=r"(?s)body: type string \(expected binary\).*unknown column colour"):
        source().reader(wrong)
    source().reader(StructType().add("body", BinaryType()).add("queue_id", IntegerType()))


def test_a_custom_schema_of_a_json_body_must_use_types_that_can_be_parsed() -> None:
    fields = StructType().add("id", LongType()).add("days", ArrayType(DateType()))
    with pytest.raises(OptionsError, match="body: type date cannot be parsed: use bodyFormat=string and from_json"):
        chosen_names(StructType().add("body", fields), BodyFormat.JSON)
    assert chosen_names(StructType().add("body", StructType().add("id", LongType())), BodyFormat.JSON) == ["body"]


def test_secrets_are_not_shown() -> None:
    assert "s3cret" not in repr(read(accessKey="me", secretKey="s3cret"))


@pytest.mark.parametrize(
    ("text", "time_ms", "moves"),
    [
        ("1700000000000", 1_700_000_000_000, False),
        ("2023-11-14T22:13:20", 1_700_000_000_000, False),
        ("2023-11-15T06:13:20+08:00", 1_700_000_000_000, False),
        ("-1h", 1_699_996_400_000, True),
        ("-90 s", 1_699_999_910_000, True),
    ],
)
def test_a_time_is_a_number_an_iso_time_or_relative(text: str, time_ms: int, *, moves: bool) -> None:
    given = CaseInsensitiveDict({"nameServer": "127.0.0.1:9876", "topic": "Orders", "startingTimestamp": text})
    start = read_options(given, now_ms=1_700_000_000_000).start
    assert start is not None
    assert (start.time_ms, start.moves) == (time_ms, moves)


def test_a_wrong_time_and_a_group_start_without_a_group_are_rejected() -> None:
    assert "startingTimestamp: invalid value 'soon' (expected milliseconds since 1970" in error_of(
        startingTimestamp="soon"
    )
    assert "startingOffsets=group needs groupId" in error_of(startingOffsets="group")


def test_columns_of_a_body_need_the_format_json() -> None:
    assert "bodySchema needs bodyFormat=json" in error_of(bodySchema="id INT")
    assert "bodySchema: invalid value 'id FOO'" in error_of(bodyFormat="json", bodySchema="id FOO")
