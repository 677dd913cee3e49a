"""What cannot be written is said of all columns at once, with what to do, before any row is sent."""

import re

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from skyroute.pipeline.options import OptionReader, OptionsError, read_connection
from skyroute.pipeline.sink import options as write_side
from skyroute.pipeline.sink.columns import COLUMNS, SinkSchemaError, check_columns
from skyroute.pipeline.sink.options import read_write_options
from skyroute.pipeline.sink.writers import stream_writer, writer
from tests.support.shown import ROOT

OPTIONS = {"nameServer": "127.0.0.1:9876", "topic": "Orders"}


BINARY, TEXT, INT, LONG = BinaryType(), StringType(), IntegerType(), LongType()
TEXTS = MapType(TEXT, TEXT)


def frame(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@pytest.mark.parametrize(
    "columns",
    [
        frame(body=BINARY),
        frame(body=TEXT, tags=TEXT, keys=TEXT, properties=TEXTS),
        frame(BODY=BINARY, keys=ArrayType(TEXT), sharding_key=TEXT, delay_level=ByteType()),
        frame(body=BINARY, topic=TEXT, queue_id=LONG, broker_name=TEXT),
    ],
    ids=repr,
)
def test_what_can_be_written_passes(columns: StructType) -> None:
    check_columns(columns, has_topic=True)


@pytest.mark.parametrize(
    ("columns", "problems"),
    [
        (frame(tags=TEXT), ["body is missing: make it of what is to be sent, such as to_json(struct(*)) AS body"]),
        (frame(body=INT), ["body is int and must be string or binary: write CAST(body AS string) AS body"]),
        (
            frame(body=frame(a=INT)),
            ["body is struct<a:int> and must be string or binary: write to_json(body) AS body"],
        ),
        (
            frame(body=ArrayType(INT)),
            ["body is array<int> and must be string or binary: write to_json(body) AS body"],
        ),
        (
            frame(body=TEXT, queue_id=TEXT),
            ["queue_id is string and must be int: write CAST(queue_id AS int) AS queue_id"],
        ),
        (frame(body=TEXT, tag=TEXT), ["tag (string) has no place in a message: is it tags? Else drop it"]),
        (
            frame(body=TEXT, broker_name=TEXT),
            ["broker_name says nothing without queue_id: add that column, or drop it"],
        ),
        (frame(body=TEXT, Body=TEXT), ["body is there twice: drop one"]),
        (
            frame(value=TEXT, queue_offset=LONG),
            [
                "value (string) has no place in a message: is it body? Else drop it",
                "queue_offset (bigint) has no place in a message: drop it, or put it into body or properties",
                "body is missing: make it of what is to be sent, such as to_json(struct(*)) AS body",
            ],
        ),
        (
            frame(body=TEXT, properties=MapType(TEXT, INT)),
            [
                "properties is map<string,int> and must be map<string,string>:"
                " write CAST(properties AS map<string,string>) AS properties"
            ],
        ),
    ],
    ids=repr,
)
def test_what_cannot_be_written_is_named_with_the_fix(columns: StructType, problems: list[str]) -> None:
    with pytest.raises(SinkSchemaError) as raised:
        check_columns(columns, has_topic=True)
    assert str(raised.value).splitlines() == [
        "rocketmq cannot write these rows:",
        *(f"  - {each}" for each in problems),
    ]


def test_a_topic_comes_from_the_option_or_from_a_column() -> None:
    with pytest.raises(SinkSchemaError, match="topic is missing: set the option topic, or add a column topic"):
        check_columns(frame(body=TEXT), has_topic=False)
    check_columns(frame(body=TEXT, topic=TEXT), has_topic=False)


def test_every_wrong_option_is_named_at_once() -> None:
    wrong = {"nameServer": "127.0.0.1:9876", "topic": "two words", "sendTimeoutMs": "soon", "batchByte": "1"}
    with pytest.raises(OptionsError) as raised:
        read_write_options(wrong)
    for part in ("topic is the name of one topic", "sendTimeoutMs is a whole number", "did you mean batchBytes?"):
        assert part in str(raised.value)


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_a_topic_of_the_brokers_own_is_refused(topic: str) -> None:
    with pytest.raises(OptionsError, match="topic is the name of one topic"):
        read_write_options({**OPTIONS, "topic": topic})


def test_what_a_stream_tells_spark_alone_is_no_wrong_option() -> None:
    assert read_write_options({**OPTIONS, "checkpointLocation": "/tmp/x"}).topic == "Orders"


def test_what_is_saved_to_is_the_topic() -> None:
    assert read_write_options({"nameServer": "127.0.0.1:9876", "path": "Orders"}).topic == "Orders"


def test_a_topic_cannot_be_overwritten() -> None:
    columns = frame(body=TEXT)
    with pytest.raises(OptionsError, match=r'only added to: use mode\("append"\)'):
        writer(OPTIONS, columns, overwrite=True)
    with pytest.raises(OptionsError, match=r'use outputMode\("append"\)'):
        stream_writer(OPTIONS, columns, overwrite=True)


def test_columns_and_options_are_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/spark.md").read_text(encoding="utf-8").split("\n## Writing\n", 1)[1].split("\n## ", 1)[0]
    columns, options = (re.findall(r"(?m)^\| `(.*?)` \|(.*?)\|", part) for part in text.split("| option |"))
    assert {name: kind.strip() for name, kind in columns} == {name: wanted for name, (_, wanted) in COLUMNS.items()}
    made: list[OptionReader] = []

    class Noted(OptionReader):
        def finish(self) -> None:
            made.append(self)

    monkeypatch.setattr(write_side, "OptionReader", Noted)
    read_write_options(OPTIONS)
    connecting = OptionReader(OPTIONS)
    read_connection(connecting)
    known = {name: aliases for name, aliases in made[0].names.items() if name not in connecting.names}
    assert {name: tuple(re.findall(r"`(.*?)`", others)) for name, others in options} == known
