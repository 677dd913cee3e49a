"""The corpus of each target: a text file with one input per line, as Python writes bytes. `#` starts a comment."""

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).parent / "corpus"
TARGETS: Final = tuple(sorted(path.stem for path in (Path(__file__).parent / "targets").glob("*.py")))


def read_corpus(target: str) -> list[bytes]:
    """Return the inputs of a target, in the order of the file."""
    path = CORPUS / f"{target}.txt"
    lines = path.read_text("ascii").splitlines() if path.exists() else []
    inputs = [ast.literal_eval(line) for line in lines if line and not line.startswith("#")]
    assert all(isinstance(each, bytes) for each in inputs), path
    return inputs


def write_corpus(target: str, inputs: Iterable[bytes]) -> None:
    """Add inputs to the file of a target, shortest first. Comments and earlier inputs stay."""
    path = CORPUS / f"{target}.txt"
    known = read_corpus(target)
    text = path.read_text("ascii") if path.exists() else ""
    added = sorted(set(inputs) - set(known), key=lambda each: (len(each), each))
    path.write_text(text + "".join(f"{each!r}\n" for each in added), "ascii")
