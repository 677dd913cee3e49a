"""Reads the bytes kept in `tests/golden`."""

from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parents[2] / "golden"


def golden_bytes(name: str) -> bytes:
    """The bytes of a `.hex` file."""
    return bytes.fromhex((_FOLDER / name).read_text("ascii"))


def golden_line(name: str) -> bytes:
    """The one line of a text file."""
    return (_FOLDER / name).read_bytes().removesuffix(b"\n")
