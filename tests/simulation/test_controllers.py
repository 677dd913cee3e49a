"""Simulated controllers keep the promises about epochs, and planted bugs are found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from unittest import mock

import pytest

pytest.importorskip("aetcd", reason="needs skyroute[etcd]")

from tests.simulation.controllers import INVARIANTS, PLANTED, ControllerReport, run_controllers

SEEDS = range(1, 9)
"""Seeds of which one must show a planted bug."""


def run_planted(seed: int, planted: str) -> ControllerReport:
    with PLANTED[planted]():
        return run_controllers(seed)


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with mock.patch.dict(os.environ, PYTHONHASHSEED="0"), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_masters_and_epochs_stay_unique_whatever_fails(process: ProcessPoolExecutor, seed: int) -> None:
    report = process.submit(run_controllers, seed).result()
    assert report.violations == {}
    assert report.elections > 5
    assert report.acknowledged > 500


def test_the_same_seed_gives_the_same_trace(process: ProcessPoolExecutor) -> None:
    assert (
        process.submit(run_controllers, 1).result().trace_hash == process.submit(run_controllers, 1).result().trace_hash
    )


def test_every_invariant_has_a_planted_bug() -> None:
    assert PLANTED.keys() == INVARIANTS.keys()


@pytest.mark.parametrize("invariant", list(PLANTED))
def test_a_planted_bug_is_found(process: ProcessPoolExecutor, invariant: str) -> None:
    assert any(invariant in process.submit(run_planted, seed, invariant).result().violations for seed in SEEDS)
