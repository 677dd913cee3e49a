"""Options of a read: names of Spark's Kafka source and of rocketmq-spark, and every wrong one named at once."""

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType

from skyroute.message.queue_ref import QueueRef
from skyroute.pipeline.data_source import RocketMQSource
from skyroute.pipeline.options import OptionsError
from skyroute.pipeline.source.columns import COLUMNS
from skyroute.pipeline.source.options import Position, ReadOptions, Where, read_options

NAMES = [column.name for column in COLUMNS]


def read(**given: str) -> ReadOptions:
    return read_options(CaseInsensitiveDict({"nameServer": "127.0.0.1:9876", "topic": "Orders", **given}))


def refused(**given: str) -> str:
    with pytest.raises(OptionsError) as caught:
        read(**given)
    return str(caught.value)


def test_two_options_are_enough() -> None:
    options = read()
    assert options.topics == ("Orders",)
    assert options.start is None
    assert options.end is None
    assert options.fail_on_data_loss
    assert list(options.columns) == [name for name in NAMES if name not in ("properties", "reject")]


def test_names_are_read_in_any_case() -> None:
    assert read(FAILONDATALOSS="false", MaxOffsetsPerTrigger="5").max_offsets_per_trigger == 5


@pytest.mark.parametrize(
    ("alias", "text", "field", "value"),
    [
        ("pullTimeout", "2500", "pull_timeout_s", 2.5),
        ("pollTimeoutMs", "2500", "pull_timeout_s", 2.5),
        ("pullTimeoutMs", "2500", "pull_timeout_s", 2.5),
        ("pullBatchSize", "64", "pull_messages", 64),
        ("group", "billing", "group", "billing"),
        ("consumerGroup", "billing", "group", "billing"),
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


def test_every_wrong_option_is_named_at_once_with_the_nearest_right_one() -> None:
    text = refused(
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
    for piece in (
        "startingofsets is not an option: did you mean startingOffsets?",
        "failOnDataLoss is true or false, not 'maybe'",
        "maxOffsetsPerTrigger is a whole number, 1 or more, not '0'",
        "startingTimestamp is a whole number",
        "bodi is none: did you mean body?",
        "endingOffsets is JSON such as",
        "assign is JSON such as",
        "topic and assign all say what to read",
        "accessKey and secretKey go together",
        "maxTriggerDelay is a time with its unit",
        "rejects is one of fail, column",
        "subExpression is tags such as",
    ):
        assert piece in text
    assert "s3cret" not in text


def test_what_is_missing_is_said() -> None:
    with pytest.raises(OptionsError, match=r"(?s)nameServer is missing.*topic is missing"):
        read_options(CaseInsensitiveDict())


def test_the_environment_says_where_name_servers_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:9876")
    assert read_options(CaseInsensitiveDict({"topic": "Orders"})).connection.name_server == "127.0.0.1:9876"


def test_a_name_server_is_host_and_port() -> None:
    assert "host:port is expected" in refused(nameServer="somewhere")


def test_two_names_of_one_option_may_not_differ() -> None:
    assert "topic and subscribe are the same option and differ" in refused(subscribe="Bills")


def test_bounds_that_exclude_each_other_are_refused() -> None:
    assert "no batch could be both" in refused(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="9")


def test_reporting_needs_a_group() -> None:
    assert "reportGroupOffsets needs groupId" in refused(reportGroupOffsets="true")


@pytest.mark.parametrize(
    ("name", "text", "position"),
    [
        ("startingOffsets", "earliest", Position(Where.EARLIEST)),
        ("startingOffsets", "LATEST", Position(Where.LATEST)),
        (
            "startingOffsets",
            '{"Orders": {"broker-a:0": 3, "b:roker:1": -2}}',
            Position(Where.OFFSETS, {QueueRef("Orders", "broker-a", 0): 3, QueueRef("Orders", "b:roker", 1): -2}),
        ),
        ("startingTimestamp", "1700000000000", Position(Where.TIME, time_ms=1700000000000, fails_if_none=True)),
        (
            "startingOffsetsByTimestamp",
            '{"Orders": {"broker-a:0": 1700000000000}}',
            Position(Where.TIME, {QueueRef("Orders", "broker-a", 0): 1700000000000}, fails_if_none=True),
        ),
    ],
)
def test_a_start_is_a_word_offsets_or_a_time(name: str, text: str, position: Position) -> None:
    assert read(**{name: text}).start == position


@pytest.mark.parametrize(
    "text", ["", "first", "[]", "{", '{"Orders": 3}', '{"Orders": {"broker-a:0": "3"}}', '{"Orders": {"0": 3}}', "3"]
)
def test_offsets_that_are_none_are_refused(text: str) -> None:
    if not text:
        assert read(startingOffsets=text).start is None
    else:
        assert "startingOffsets is" in refused(startingOffsets=text)


@pytest.mark.parametrize(("offset", "side"), [(-3, "starting"), (-2, "ending")])
def test_there_is_nothing_before_the_earliest_offset_and_no_end_at_it(offset: int, side: str) -> None:
    assert f"{side}Offsets is of offsets from 0 on" in refused(
        **{f"{side}Offsets": f'{{"Orders": {{"broker-a:0": {offset}}}}}'}
    )


def test_only_one_option_says_where_to_begin() -> None:
    assert "all say where to begin" in refused(startingOffsets="earliest", startingTimestamp="5")


def test_columns_are_those_that_are_chosen_in_their_order() -> None:
    assert read(columns="body, topic").columns == ("body", "topic")
    assert read(columns="body,queueOffset", legacyColumns="true").columns == ("body", "queue_offset")
    assert read(columns="body", rejects="column").columns == ("body", "reject")
    assert "properties" in read(includeProperties="true").columns


def source(**given: str) -> RocketMQSource:
    return RocketMQSource(CaseInsensitiveDict({"nameServer": "127.0.0.1:9876", "topic": "Orders", **given}))


def test_a_schema_has_the_columns_and_the_old_names_on_request() -> None:
    assert source(includeProperties="true").schema().names == [name for name in NAMES if name != "reject"]
    assert source(legacyColumns="true", columns="queueId,bornTimestamp").schema().names == ["queueId", "bornTimestamp"]


def test_a_stream_has_no_end() -> None:
    chosen = source(endingOffsets="latest")
    with pytest.raises(OptionsError, match="a stream has no end"):
        chosen.streamReader(chosen.schema())


def test_a_schema_of_ones_own_has_our_columns_and_types() -> None:
    wrong = StructType().add("body", StringType()).add("queue_id", IntegerType()).add("colour", StringType())
    with pytest.raises(OptionsError, match=r"(?s)body is binary, not string.*colour is not a column"):
        source().reader(wrong)
    source().reader(StructType().add("body", BinaryType()).add("queue_id", IntegerType()))


def test_secrets_are_not_shown() -> None:
    assert "s3cret" not in repr(read(accessKey="me", secretKey="s3cret"))
