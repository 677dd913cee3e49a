"""All wrong columns and options of a write are reported at once, before any row is sent."""

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
from skyroute.pipeline.source.options import read_option_names
from tests.support.shown import code_spans, table_below

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
def test_valid_columns_are_accepted(columns: StructType) -> None:
    check_columns(columns, has_topic=True)


@pytest.mark.parametrize(
    ("columns", "problems"),
    [
        (frame(tags=TEXT), ["body: column is missing: add it, such as to_json(struct(*)) AS body"]),
        (frame(body=INT), ["body: type int (expected string or binary): write CAST(body AS string) AS body"]),
        (
            frame(body=frame(a=INT)),
            ["body: type struct<a:int> (expected string or binary): write to_json(body) AS body"],
        ),
        (
            frame(body=ArrayType(INT)),
            ["body: type array<int> (expected string or binary): write to_json(body) AS body"],
        ),
        (
            frame(body=TEXT, queue_id=TEXT),
            ["queue_id: type string (expected int): write CAST(queue_id AS int) AS queue_id"],
        ),
        (frame(body=TEXT, tag=TEXT), ["tag: unknown column: rename it to tags, or drop it"]),
        (
            frame(body=TEXT, broker_name=TEXT),
            ["broker_name: needs the column queue_id: add it, or drop broker_name"],
        ),
        (frame(body=TEXT, Body=TEXT), ["body: duplicate column: drop one"]),
        (
            frame(value=TEXT, queue_offset=LONG),
            [
                "value: unknown column: rename it to body, or drop it",
                "queue_offset: unknown column: drop it, or add it to body or properties",
                "body: column is missing: add it, such as to_json(struct(*)) AS body",
            ],
        ),
        (
            frame(body=TEXT, properties=MapType(TEXT, INT)),
            [
                "properties: type map<string,int> (expected map<string,string>):"
                " write CAST(properties AS map<string,string>) AS properties"
            ],
        ),
    ],
    ids=repr,
)
def test_wrong_columns_are_reported_with_the_fix(columns: StructType, problems: list[str]) -> None:
    with pytest.raises(SinkSchemaError) as raised:
        check_columns(columns, has_topic=True)
    lines = str(raised.value).splitlines()
    if len(problems) == 1:
        assert lines == [f"wrong columns for rocketmq: {problems[0]}"]
    else:
        assert lines == ["wrong columns for rocketmq:", *(f"  - {each}" for each in problems)]


def test_the_topic_comes_from_the_option_or_a_column() -> None:
    with pytest.raises(SinkSchemaError, match="topic: column is missing: add it, or set the option topic"):
        check_columns(frame(body=TEXT), has_topic=False)
    check_columns(frame(body=TEXT, topic=TEXT), has_topic=False)


def test_all_wrong_options_are_reported_at_once() -> None:
    wrong = {"nameServer": "127.0.0.1:9876", "topic": "two words", "sendTimeoutMs": "soon", "batchByte": "1"}
    with pytest.raises(OptionsError) as raised:
        read_write_options(wrong)
    for problem in (
        "topic: invalid value 'two words' (expected one topic name",
        "sendTimeoutMs: invalid value 'soon' (expected a whole number",
        "unknown option batchbyte: did you mean batchBytes?",
    ):
        assert problem in str(raised.value)


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_a_system_topic_is_rejected(topic: str) -> None:
    with pytest.raises(OptionsError, match="expected one topic name"):
        read_write_options({**OPTIONS, "topic": topic})


def test_the_checkpoint_location_is_left_to_spark() -> None:
    assert read_write_options({**OPTIONS, "checkpointLocation": "/tmp/x", "queryName": "q"}).topic == "Orders"


def test_options_of_a_read_are_ignored_but_filters_are_refused() -> None:
    names = read_option_names()
    shared = {**OPTIONS, "columns": "body", "includeProperties": "true", "startingOffsets": "earliest"}
    assert read_write_options(shared, names).topic == "Orders"
    with pytest.raises(OptionsError, match="tags: filters a read: remove it, or give each row a column tags"):
        read_write_options({**shared, "tags": "paid"}, names)


def test_the_path_of_save_is_the_topic() -> None:
    assert read_write_options({"nameServer": "127.0.0.1:9876", "path": "Orders"}).topic == "Orders"


def test_a_topic_cannot_be_overwritten() -> None:
    columns = frame(body=TEXT)
    with pytest.raises(OptionsError, match=r'cannot be overwritten: use mode\("append"\)'):
        writer(OPTIONS, columns, overwrite=True)
    with pytest.raises(OptionsError, match=r'use outputMode\("append"\)'):
        stream_writer(OPTIONS, columns, overwrite=True)


def test_the_hint_names_only_an_output_mode_that_spark_allows() -> None:
    with pytest.raises(OptionsError) as raised:
        stream_writer(OPTIONS, frame(body=TEXT), overwrite=True)
    assert "update" not in str(raised.value)


def test_columns_and_options_are_documented(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {code_spans(name)[0]: kind for name, kind, *_ in table_below("docs/spark.md", "### Columns of a write")}
    assert columns == {name: wanted for name, (_, wanted) in COLUMNS.items()}
    made: list[OptionReader] = []

    class Noted(OptionReader):
        def finish(self) -> None:
            made.append(self)

    monkeypatch.setattr(write_side, "OptionReader", Noted)
    read_write_options(OPTIONS)
    connecting = OptionReader(OPTIONS)
    read_connection(connecting)
    known = {name: aliases for name, aliases in made[0].names.items() if name not in connecting.names}
    options = table_below("docs/spark.md", "### Write options")
    assert {code_spans(name)[0]: tuple(code_spans(others)) for name, others, *_ in options} == known
