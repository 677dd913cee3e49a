"""docs/journal.md agrees with the code."""

import re
import types
from enum import StrEnum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from msgspec import Struct

from skyroute.controller.events import Cause as ControllerCause
from skyroute.nameserver.journal.schema import SCHEMA_VERSION, Kind, Record, State
from skyroute.routing.events import Cause
from skyroute.routing.registration import DataVersion
from skyroute.routing.topology import QueueSettings, StaticMapping

DOCUMENT = Path(__file__).parents[4] / "docs" / "journal.md"
NAMES: dict[Any, str] = {
    int: "int",
    str: "string",
    float: "float",
    bool: "bool",
    DataVersion: "version",
    State: "state",
    QueueSettings: "settings",
    StaticMapping: "mapping",
}


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table whose first column has this heading, without backticks."""
    lines = DOCUMENT.read_text().splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |"))
    table = []
    for line in lines[at + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    return table


def described(kind: Any) -> str:
    """Return the name of a type in the document."""
    if get_origin(kind) in (Union, types.UnionType):
        (kind,) = (each for each in get_args(kind) if each is not type(None))
    if kind in NAMES:
        return NAMES[kind]
    if get_origin(kind) is dict:
        return f"map of {described(get_args(kind)[1])}"
    assert get_origin(kind) is tuple, kind
    member, second = get_args(kind)
    return f"list of {described(member)}" if second is Ellipsis else f"pairs of {described(member)}"


@pytest.mark.parametrize(("heading", "struct"), [("Field", Record), ("Field of a state", State)])
def test_the_document_has_every_field_with_its_type_in_order(heading: str, struct: type[Struct]) -> None:
    hints = get_type_hints(struct)
    written = [(name, described(hints[name])) for name in struct.__struct_fields__]
    assert [(name, kind) for name, kind, _ in rows(heading)] == written


@pytest.mark.parametrize(
    ("heading", "words"), [("Kind", Kind), ("Cause", Cause), ("Cause of a controller", ControllerCause)]
)
def test_the_document_has_every_kind_and_cause(heading: str, words: type[StrEnum]) -> None:
    assert sorted(name for name, _ in rows(heading)) == sorted(words)


def test_the_document_has_the_schema_version() -> None:
    found = re.search(r"`v` is the version of this table, now (\d+)", DOCUMENT.read_text())
    assert found is not None
    assert int(found[1]) == SCHEMA_VERSION
