"""What Spark takes a record of the journal for is what a record is."""

import re
from pathlib import Path

import pytest

from skyroute.nameserver.journal.schema import Record, State
from skyroute.pipeline.journal.reading import NoJournalError, journal_folder
from skyroute.pipeline.journal.schema import MAPPING, RECORD, REQUIRED, STATE
from skyroute.routing.topology import StaticMapping
from tests.unit.nameserver.journal.changes import joined, write


def names(members: str) -> list[str]:
    """Names of the outermost members, in order."""
    while (flat := re.sub(r"<[^<>]*>", "", members)) != members:
        members = flat
    return [member.split()[0].strip(":") for member in members.split(",")]


def inside(struct: str) -> str:
    return struct.removeprefix("struct<").removesuffix(">")


def test_every_member_is_there_in_its_order() -> None:
    assert names(RECORD) == list(Record.__struct_fields__)
    assert names(inside(STATE)) == list(State.__struct_fields__)
    assert names(inside(MAPPING)) == list(StaticMapping.__slots__)


def test_required_are_those_without_a_default() -> None:
    assert Record.__struct_fields__[: -len(Record.__struct_defaults__)] == REQUIRED


def test_a_journal_is_found_in_a_memory_folder_and_by_itself(tmp_path: Path) -> None:
    write(tmp_path / "journal", joined())
    assert journal_folder(tmp_path) == journal_folder(tmp_path / "journal") == tmp_path / "journal"
    (tmp_path / "other").mkdir()
    with pytest.raises(NoJournalError, match="there is no journal in"):
        journal_folder(tmp_path / "other")
