"""Simulated POP consumers get every message, and planted bugs are found."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from unittest import mock

import pytest

from tests.simulation.pops import CALM, CRASHES, PLANTED, run_pops
from tests.simulation.scenario import Plan

SEEDS = range(1, 6)
"""Seeds of which one must show a planted bug."""


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with mock.patch.dict(os.environ, PYTHONHASHSEED="0"), ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("plan", [CALM, CRASHES], ids=["calm", "crashes"])
def test_messages_are_acknowledged_or_come_again(process: ProcessPoolExecutor, seed: int, plan: Plan) -> None:
    report = process.submit(run_pops, seed, plan).result()
    assert report.violations == {}
    assert report.deliveries > report.acknowledged / 2 > 0


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_bug_is_found(process: ProcessPoolExecutor, planted: str) -> None:
    invariant, plan, _ = PLANTED[planted]
    for seed in SEEDS:
        if invariant in process.submit(run_pops, seed, plan, planted).result().violations:
            return
    pytest.fail(f"{invariant}: not violated by seeds {SEEDS}")
