"""What commands print: aligned tables for people, JSON for programs."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows under their column names, each column as wide as its widest cell; numbers stand to the right.

    Names get a `#` in front, as mqadmin has it, so that scripts which skip such lines go on working.
    """
    texts = [[_cell(value) for value in row] for row in rows]
    numeric = [bool(texts) and all(_is_number(row[at]) for row in texts) for at in range(len(columns))]
    heads = [f"#{column}" for column in columns]
    widths = [max(len(head), *(len(row[at]) for row in texts), 0) for at, head in enumerate(heads)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(heads), *map(line, texts)])


def pairs(values: Mapping[str, object], separator: str = " = ") -> str:
    """Return one line for each name and its value, aligned."""
    width = max(map(len, values), default=0)
    return "\n".join(f"{name:<{width}}{separator}{_cell(value)}".rstrip() for name, value in values.items())


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.2f}"
    return str(value)


def _is_number(text: str) -> bool:
    return not text or text.lstrip("-").replace(".", "", 1).isdigit()


def local_time(milliseconds: int | None) -> str:
    """Return a time as people read it, to the millisecond, in the zone of this machine; nothing for no time at all."""
    if not milliseconds or milliseconds < 0:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def print_json(value: object, *, in_a_line: bool = False) -> None:
    """Print a value for programs, keys in the order given: indented, or, as one of many, in a line of its own."""
    encoded = msgspec.json.encode(_plain(value))
    click.echo(encoded if in_a_line else msgspec.json.format(encoded, indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(member) for member in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value
