"""Every target of `make fuzz` passes on its corpus, and on some thousand changed inputs of it."""

import importlib
import random
from collections.abc import Callable

import pytest

from tests.fuzz.corpus_files import TARGETS, read_corpus
from tests.support.hang_guard import hang_guard

MUTANTS = 300
SLOW_MUTANTS = {"store": 60}
"""Changed inputs per target; `make fuzz` tries millions."""


def check_of(target: str) -> Callable[[bytes], None]:
    check: Callable[[bytes], None] = importlib.import_module(f"tests.fuzz.targets.{target}").check
    return check


def changed(inputs: list[bytes], chance: random.Random) -> bytes:
    """Return an input with some bytes changed, removed, repeated, or taken from another input."""
    data = bytearray(chance.choice(inputs))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        stop = min(at + chance.randint(0, 8), len(data))
        match chance.randrange(5):
            case 0:
                data[at:stop] = chance.randbytes(stop - at)
            case 1:
                del data[at:stop]
            case 2:
                data[at:at] = data[at:stop] * chance.randint(1, 8)
            case 3 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case _:
                other = chance.choice(inputs)
                start = chance.randrange(len(other) + 1)
                data[at:stop] = other[start : start + chance.randint(0, 40)]
    return bytes(data)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_passes_on_its_corpus(target: str) -> None:
    check, inputs = check_of(target), read_corpus(target)
    assert inputs
    with hang_guard():
        for each in (b"", *inputs):
            check(each)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_passes_on_changed_inputs(target: str) -> None:
    check, inputs = check_of(target), read_corpus(target)
    chance = random.Random(target)
    with hang_guard():
        for number in range(SLOW_MUTANTS.get(target, MUTANTS)):
            data = changed(inputs, chance)
            try:
                check(data)
            except Exception as error:
                error.add_note(f"input {number} of {target}: {data!r}")
                raise
    assert chance.random() < 1
