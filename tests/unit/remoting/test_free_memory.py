"""When free memory is given back to the system."""

from __future__ import annotations

from skyroute.remoting.free_memory import TRIM_AT_ONCE_BYTES, TRIM_BYTES, TRIM_GAP_S, Trimming


def test_little_is_not_worth_while_however_long_ago() -> None:
    trimming = Trimming(0.0)
    assert not trimming.is_due(TRIM_BYTES - 1, 1e6)
    assert trimming.is_due(TRIM_BYTES, 1e6)
    assert not trimming.is_due(2 * TRIM_BYTES - 1, 2e6), "it counts from the last time"


def test_some_waits_for_its_time() -> None:
    trimming = Trimming(0.0)
    assert not trimming.is_due(TRIM_BYTES, 0.9 * TRIM_GAP_S)
    assert trimming.is_due(TRIM_BYTES, TRIM_GAP_S)
    assert not trimming.is_due(2 * TRIM_BYTES, 1.9 * TRIM_GAP_S)


def test_much_waits_for_nothing() -> None:
    trimming = Trimming(0.0)
    assert trimming.is_due(TRIM_AT_ONCE_BYTES, 0.0)
    assert trimming.is_due(2 * TRIM_AT_ONCE_BYTES, 0.0)
