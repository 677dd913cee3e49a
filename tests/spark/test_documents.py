"""docs/spark.md lists all options and columns, and its programs run."""

import re
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from skyroute.pipeline.data_source import RocketMQSource
from skyroute.pipeline.options import OptionReader
from skyroute.pipeline.source import options as read_side
from skyroute.pipeline.source.columns import COLUMNS
from tests.support.shown import NAME_SERVER, code_spans, programs, table_below, wants_spark

DOCUMENT = "docs/spark.md"
PROGRAMS = [program for name in ("README.md", DOCUMENT) for program in programs(name) if wants_spark(program)]


def test_read_options_are_documented_with_their_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[OptionReader] = []

    class Noted(OptionReader):
        def finish(self) -> None:
            made.append(self)
            super().finish()

    monkeypatch.setattr(read_side, "OptionReader", Noted)
    read_side.read_options(CaseInsensitiveDict({"nameServer": NAME_SERVER, "topic": "Orders"}))
    tables = [*table_below(DOCUMENT, "### Read options"), *table_below(DOCUMENT, "### Connection options")]
    listed = {code_spans(name)[0]: tuple(code_spans(others)) for name, others, *_ in tables}
    assert listed == made[0].names


def test_read_columns_are_documented_with_their_types() -> None:
    listed = [(code_spans(name)[0], kind) for name, kind, *_ in table_below(DOCUMENT, "### Columns of a read")]
    assert listed == [(column.name, column.type.simpleString()) for column in COLUMNS]
    source = RocketMQSource(
        CaseInsensitiveDict({"nameServer": NAME_SERVER, "topic": "Orders", "columns": "*", "rejects": "column"})
    )
    assert [(field.name, field.dataType.simpleString()) for field in source.schema().fields] == listed


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_programs_run(
    orders: str,
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, where `session()` returns the session that all tests share."""
    monkeypatch.chdir(tmp_path)
    # Java resolves relative paths against its own working directory.
    exec(re.sub(r'"(orders\.\w+)"', rf'"{tmp_path}/\1"', program.replace(NAME_SERVER, orders)), {})
    printed = capsys.readouterr().out
    if "orders.parquet" in program:
        assert "10 orders" in printed
    elif "reject" in program:
        assert "10 good 0 bad" in printed
    else:
        assert "paid" in printed or "text" in printed or "price" in printed or "newest" in printed
