from skyroute.remoting import log_backoff
from skyroute.remoting.log_backoff import LogBackoff


def test_the_first_line_is_due_at_once_and_later_ones_after_growing_gaps() -> None:
    lines = LogBackoff()
    written = [
        (second, suppressed)
        for second in range(200)
        if (suppressed := lines.suppressed("a:1", float(second))) is not None
    ]
    assert written == [(0, 0), (10, 9), (30, 19), (70, 39), (150, 79)]


def test_a_gap_has_a_maximum() -> None:
    lines = LogBackoff()
    written = [second for second in range(0, 86_400, 60) if lines.suppressed("a:1", float(second)) is not None]
    assert {after - before for before, after in zip(written[-5:], written[-4:], strict=False)} == {3_600}


def test_each_subject_has_its_own_gaps() -> None:
    lines = LogBackoff()
    assert [lines.suppressed(thing, 0.0) for thing in ("a:1", "b:1", "a:1")] == [0, 0, None]


def test_a_reset_subject_is_logged_at_its_next_failure() -> None:
    lines = LogBackoff()
    assert lines.suppressed("a:1", 0.0) == 0
    lines.works_again("a:1")
    lines.works_again("never heard of")
    assert lines.suppressed("a:1", 1.0) == 0


def test_a_subject_is_reset_after_a_long_time() -> None:
    lines = LogBackoff()
    for second in range(100):
        lines.suppressed("a:1", float(second))
    assert lines.suppressed("a:1", 10_000.0) == 0
    assert lines.suppressed("a:1", 10_005.0) is None
    assert lines.suppressed("a:1", 10_010.0) == 1


def test_the_number_of_subjects_has_a_limit() -> None:
    lines = LogBackoff()
    for number in range(log_backoff.SUBJECTS_MAX + 1):
        assert lines.suppressed(f"a:{number}", 0.0) == 0
    assert lines.suppressed("a:0", 0.0) == 0  # forgotten with the others
    assert lines.suppressed(f"a:{log_backoff.SUBJECTS_MAX}", 0.0) is None
