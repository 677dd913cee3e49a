"""What docs/spark.md says is so, and its programs run."""

import re
from pathlib import Path

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from skyroute.pipeline.data_source import RocketMQSource
from skyroute.pipeline.options import OptionReader
from skyroute.pipeline.source import options as read_side
from skyroute.pipeline.source.columns import COLUMNS
from tests.support.shown import NAME_SERVER, ROOT, programs, wants_spark

DOCUMENT = "docs/spark.md"
PROGRAMS = [program for name in ("README.md", DOCUMENT) for program in programs(name) if wants_spark(program)]


def rows(title: str) -> list[list[str]]:
    """The rows of the table below a heading."""
    text = (ROOT / DOCUMENT).read_text(encoding="utf-8").split(f"\n{title}\n", 1)[1]
    lines = re.findall(r"(?m)^\|(.*)\|$", re.split(r"(?m)^## ", text)[0])
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines[2:]]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


def test_options_are_listed_with_their_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[OptionReader] = []

    class Noted(OptionReader):
        def finish(self) -> None:
            made.append(self)
            super().finish()

    monkeypatch.setattr(read_side, "OptionReader", Noted)
    read_side.read_options(CaseInsensitiveDict({"nameServer": NAME_SERVER, "topic": "Orders"}))
    listed = {words(cells[0])[0]: tuple(words(cells[1])) for cells in rows("## Options of a read")}
    assert listed == made[0].names


def test_columns_are_listed_with_their_types() -> None:
    listed = [(words(cells[0])[0], cells[1]) for cells in rows("## Columns")]
    assert listed == [(column.name, column.type.simpleString()) for column in COLUMNS]
    source = RocketMQSource(
        CaseInsensitiveDict(
            {"nameServer": NAME_SERVER, "topic": "Orders", "includeProperties": "true", "rejects": "column"}
        )
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
    """In this process, where `session()` is the session that all of these tests share."""
    monkeypatch.chdir(tmp_path)
    # Spark's paths are those of Java, which knows nothing of a change of folders.
    exec(re.sub(r'"(orders\.\w+)"', rf'"{tmp_path}/\1"', program.replace(NAME_SERVER, orders)), {})
    printed = capsys.readouterr().out
    if "orders.parquet" in program:
        assert "10 orders" in printed
    elif "reject" in program:
        assert "10 good 0 bad" in printed
    else:
        assert "paid" in printed or "text" in printed
