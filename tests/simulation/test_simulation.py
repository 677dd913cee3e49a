"""The simulation finds planted bugs, and the same seed gives the same run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from subprocess import run as run_process
from sys import executable

import pytest

from tests.simulation.planted import PLANTED, PlantedBug
from tests.simulation.scenario import Plan, run

SEEDS = range(1, 6)
SHORT = Plan(load_s=240.0, gap_s=6.0, fault_gap_s=40.0, settle_s=240.0)
KILLED_TWICE = Plan(
    load_s=300.0, gap_s=1.0, faults=("kill_twice",), fault_gap_s=12.0, sync_flush=True, handler_failures=0.0
)


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = run(3, SHORT), run(3, SHORT)
    assert first.trace_hash == second.trace_hash
    assert first.packets == second.packets > 0
    assert first.acknowledged > 0


def test_another_process_gives_the_same_trace(tmp_path: Path) -> None:
    command = [executable, "-m", "tests.simulation", "--seed", "3", "--hours", "0.1"]
    folder = Path(__file__).parents[2]
    outputs = [
        run_process(command, cwd=folder, capture_output=True, text=True, check=True, timeout=120).stdout.split(" s in ")
        for _ in range(2)
    ]
    assert outputs[0][0] == outputs[1][0]
    assert "seed 3: ok" in outputs[0][0]


def test_another_seed_gives_another_trace() -> None:
    assert run(1, SHORT).trace_hash != run(2, SHORT).trace_hash


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_cluster_with_faults_keeps_its_promises(seed: int) -> None:
    report = run(seed, SHORT)
    assert report.violations == {}
    assert report.deliveries >= report.acknowledged > 0


def test_a_power_failure_soon_after_a_kill_loses_nothing() -> None:
    assert run(1, KILLED_TWICE).violations == {}


def test_a_power_failure_soon_after_a_kill_loses_nothing_even_if_it_takes_names() -> None:
    assert run(1, replace(KILLED_TWICE, loses_names=True)).violations == {}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug) -> None:
    assert run(SEEDS[0], bug.plan).violations == {}, "the run must be without violations when nothing is planted"
    for seed in SEEDS:
        with bug.plant():
            report = run(seed, bug.plan)
        if bug.invariant in report.violations:
            return
    pytest.fail(f"{bug.invariant}: not violated by seeds {SEEDS}")
