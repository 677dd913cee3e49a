"""The checker of epochs finds what it is for."""

import pytest

from tests.support.epoch_history import Seen, violations

GOOD = [Seen("n0", "a", 1, 1), Seen("n1", "a", 2, 2), Seen("n1", "b", 2, 7), Seen("n0", "a", 0, None)]


def test_a_history_with_one_master_per_epoch_is_good() -> None:
    assert violations(GOOD, stored=GOOD[:2], elections=GOOD[:2]) == []


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"seen": [*GOOD, Seen("n2", "a", 2, 1)]}, "epoch 2 of a has masters"),
        ({"seen": [*GOOD, Seen("n2", "a", 2, None)]}, "epoch 2 of a has masters"),
        ({"seen": GOOD, "stored": [GOOD[1], GOOD[0]]}, "went back from 2 to 1"),
        ({"seen": GOOD, "elections": [GOOD[1], Seen("n0", "a", 2, 2)]}, "both gave epoch 2"),
    ],
)
def test_an_epoch_given_twice_is_found(more: dict[str, list[Seen]], text: str) -> None:
    (found,) = violations(**more)
    assert text in found
