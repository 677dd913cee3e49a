"""Output of commands: aligned tables, or JSON."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return an aligned table; columns of numbers are right-aligned.

    Column names start with `#`, as in mqadmin: scripts skip such lines.
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
    """Return one aligned line per name and value."""
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
    """Return a time with milliseconds in the local time zone, or an empty string for None, 0 or a negative time."""
    if not milliseconds or milliseconds < 0:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def print_json(value: object, *, in_one_line: bool = False) -> None:
    """Print a value as JSON, indented or in one line."""
    encoded = msgspec.json.encode(_plain(value))
    click.echo(encoded if in_one_line else msgspec.json.format(encoded, indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(member) for member in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value
