"""When free memory is given back to the system."""

from __future__ import annotations

from skyroute.remoting.free_memory import TRIM_AT_ONCE_BYTES, TRIM_BYTES, TRIM_GAP_S, Trimming


def test_few_freed_bytes_never_cause_a_trim() -> None:
    trimming = Trimming(0.0)
    assert not trimming.is_due(TRIM_BYTES - 1, 1e6)
    assert trimming.is_due(TRIM_BYTES, 1e6)
    assert not trimming.is_due(2 * TRIM_BYTES - 1, 2e6), "it counts from the last time"


def test_freed_bytes_wait_for_the_trim_gap() -> None:
    trimming = Trimming(0.0)
    assert not trimming.is_due(TRIM_BYTES, 0.9 * TRIM_GAP_S)
    assert trimming.is_due(TRIM_BYTES, TRIM_GAP_S)
    assert not trimming.is_due(2 * TRIM_BYTES, 1.9 * TRIM_GAP_S)


def test_many_freed_bytes_are_trimmed_at_once() -> None:
    trimming = Trimming(0.0)
    assert trimming.is_due(TRIM_AT_ONCE_BYTES, 0.0)
    assert trimming.is_due(2 * TRIM_AT_ONCE_BYTES, 0.0)
