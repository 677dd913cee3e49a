"""What the runner of Apache's tests says of their results."""

from __future__ import annotations

import pytest

from tests.peers.apache_tests.run import PACKAGE, Results

CLASSES = [f"{PACKAGE}offset.OffsetIT", f"{PACKAGE}smoke.SmokeIT"]
KNOWN = {"offset.OffsetIT.testReset": "looks inside"}
RESET, SMOKE = "offset.OffsetIT.testReset", "smoke.SmokeIT.testSend"


def line(outcome: str, title: str, why: str = "") -> str:
    class_name, _, test = title.rpartition(".")
    return f"TEST {outcome} {test}({PACKAGE}{class_name}){why}\n"


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([line("failed", RESET, " Error"), line("passed", SMOKE)], None),
        ([line("failed", RESET), line("failed", SMOKE, " Error")], "1 tests failed"),
        ([line("passed", RESET), line("passed", SMOKE)], "1 tests in KNOWN passed: remove them from it"),
        ([line("failed", RESET)], "no test of smoke.SmokeIT has ended"),
        ([line("passed", "offset.OffsetIT.testOther"), line("passed", SMOKE)], f"{RESET} is in KNOWN, but did not run"),
        ([line("failed", f"{RESET}Later"), line("failed", RESET), line("passed", SMOKE)], "1 tests failed"),
        ([f"TEST failed {PACKAGE}smoke.SmokeIT Error\n", line("failed", RESET)], "1 tests failed"),
    ],
)
def test_only_tests_in_known_may_fail_and_all_of_them_must(lines: list[str], complaint: str | None) -> None:
    results = Results(CLASSES, KNOWN)
    assert all(results.add(text) for text in lines)
    assert results.complaints() == ([] if complaint is None else [complaint])


def test_lines_without_a_result_are_ignored_and_results_name_the_reason() -> None:
    results = Results(CLASSES, KNOWN)
    assert results.add("boot success\n") is None
    assert results.add(line("failed", RESET, " java.lang.AssertionError")) == f"known    {RESET} looks inside"
    assert results.add(line("passed", SMOKE)) == f"passed   {SMOKE}"
    assert results.add(line("ignored", SMOKE)) == f"ignored  {SMOKE}"


def test_known_tests_of_classes_that_do_not_run_are_not_missed() -> None:
    results = Results([f"{PACKAGE}smoke.SmokeIT"], KNOWN)
    results.add(line("passed", SMOKE))
    assert results.complaints() == []
