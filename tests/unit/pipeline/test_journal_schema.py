"""Spark's schema of a journal record matches the records that name servers write."""

import re
from pathlib import Path

import pytest

from skyroute.nameserver.journal.schema import Record, State
from skyroute.pipeline.journal.reading import NoJournalError, journal_folder
from skyroute.pipeline.journal.schema import MAPPING, RECORD, REQUIRED, STATE
from skyroute.routing.topology import StaticMapping
from tests.unit.nameserver.journal.changes import joined, write


def names(fields: str) -> list[str]:
    """Names of the outermost fields, in order."""
    while (flat := re.sub(r"<[^<>]*>", "", fields)) != fields:
        fields = flat
    return [field.split()[0].strip(":") for field in fields.split(",")]


def inside(struct: str) -> str:
    return struct.removeprefix("struct<").removesuffix(">")


def test_the_schema_has_every_field_in_order() -> None:
    assert names(RECORD) == list(Record.__struct_fields__)
    assert names(inside(STATE)) == list(State.__struct_fields__)
    assert names(inside(MAPPING)) == list(StaticMapping.__slots__)


def test_required_fields_are_those_without_a_default() -> None:
    assert Record.__struct_fields__[: -len(Record.__struct_defaults__)] == REQUIRED


def test_a_journal_is_found_by_its_memory_folder_or_its_own_folder(tmp_path: Path) -> None:
    write(tmp_path / "journal", joined())
    assert journal_folder(tmp_path) == journal_folder(tmp_path / "journal") == tmp_path / "journal"
    (tmp_path / "other").mkdir()
    with pytest.raises(NoJournalError, match="no journal in"):
        journal_folder(tmp_path / "other")
