"""The simulation finds planted bugs, and the same seed gives the same run.

Runs are in a process of their own, with the same hashes of texts each time: otherwise each run of the tests would be
another simulation, and a bug that only some of them meet would make the tests flaky.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from unittest import mock

import pytest

from tests.simulation.checkers import CHECKERS
from tests.simulation.planted import PLANTED, SEEDS, PlantedBug, find_planted
from tests.simulation.pops import CALM, CRASHES, PopScenario
from tests.simulation.replicas import ACTING, FAILING, LOST, ReplicaScenario
from tests.simulation.scenario import Plan, Scenario, run
from tests.simulation.scenarios import ALL_PLANTED

SHORT = Plan(load_s=240.0, gap_s=6.0, fault_gap_s=40.0, settle_s=240.0)
KILLED_TWICE = Plan(
    load_s=300.0, gap_s=1.0, faults=("kill_twice",), fault_gap_s=12.0, sync_flush=True, handler_failures=0.0
)


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with mock.patch.dict(os.environ, PYTHONHASHSEED="0"), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


def test_the_same_seed_gives_the_same_trace(process: ProcessPoolExecutor) -> None:
    first = process.submit(run, 3, SHORT).result()
    with mock.patch.dict(os.environ, PYTHONHASHSEED="0"), ProcessPoolExecutor(1, get_context("spawn")) as other:
        second = other.submit(run, 3, SHORT).result()
    assert first.trace_hash == second.trace_hash
    assert first.packets == second.packets > 0
    assert first.acknowledged > 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_cluster_with_faults_keeps_its_promises(process: ProcessPoolExecutor, seed: int) -> None:
    report = process.submit(run, seed, SHORT).result()
    assert report.violations == {}
    assert report.deliveries >= report.acknowledged > 0


@pytest.mark.parametrize(
    ("scenario", "plan"),
    [
        *((PopScenario, plan) for plan in (CALM, CRASHES)),
        *((ReplicaScenario, plan) for plan in (FAILING, LOST, ACTING)),
    ],
    ids=["pops-calm", "pops-crashes", "replicas-failing", "replicas-lost", "replicas-acting"],
)
def test_pops_and_replicas_keep_their_promises(
    process: ProcessPoolExecutor, scenario: type[Scenario], plan: Plan
) -> None:
    report = process.submit(run, 2, plan, scenario_of=scenario).result()
    assert report.violations == {}
    assert report.deliveries > report.acknowledged / 2 > 0
    assert report.acknowledged > report.sends / 2


def test_another_seed_gives_another_trace(process: ProcessPoolExecutor) -> None:
    plan = replace(SHORT, load_s=60.0, settle_s=10.0, fault_gap_s=0.0)
    assert process.submit(run, 1, plan).result().trace_hash != process.submit(run, 2, plan).result().trace_hash


@pytest.mark.parametrize("loses_names", [False, True])
def test_a_power_failure_soon_after_a_kill_loses_nothing(process: ProcessPoolExecutor, *, loses_names: bool) -> None:
    assert process.submit(run, 1, replace(KILLED_TWICE, loses_names=loses_names)).result().violations == {}


def test_every_invariant_has_a_planted_bug() -> None:
    assert {bug.invariant for bug in PLANTED} == CHECKERS.keys()
    assert {bug.invariant for bug in ALL_PLANTED} > CHECKERS.keys()


@pytest.mark.parametrize("bug", ALL_PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(process: ProcessPoolExecutor, bug: PlantedBug) -> None:
    finding = process.submit(find_planted, bug).result()
    assert finding.unplanted == {}, "the run must be without violations when nothing is planted"
    assert finding.seed in SEEDS, f"{bug.invariant}: not violated by seeds {SEEDS}"
