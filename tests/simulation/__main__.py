"""`python -m tests.simulation`: run seeds, replay one with `--seed`, or look for the planted bugs with `--planted`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count, takewhile
from multiprocessing import Pool
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.simulation.planted import find_planted
from tests.simulation.scenario import Report
from tests.simulation.scenarios import ALL_PLANTED, NAMES, run_scenario, scenario_of

PROGRESS_S: Final = 30.0
SEEDS_AN_HOUR: Final = 1_000
"""Target for seeds of one simulated hour on two cores."""
RUNS_A_PROCESS: Final = 50
"""Runs after which a process is replaced, so that memory does not add up."""

W = TypeVar("W")
R = TypeVar("R")


def main() -> int:
    """Run seeds until the time is over; return 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed and print its steps")
    parser.add_argument("--planted", action="store_true", help="plant each known bug, and print which seed finds it")
    parser.add_argument("--scenario", choices=NAMES, help="the scenario of all seeds; by default they take turns")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--for", dest="for_s", type=float, default=60.0, help="seconds to run, without --seed")
    parser.add_argument("--hours", type=float, default=1.0, help="simulated hours of each seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at a time, without --seed")
    parser.add_argument("--log", action="store_true", help="print the log lines of the product")
    parser.add_argument("--trace", type=Path, help="with --seed, write each event to this file")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of texts must iterate in the same order in each run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    if arguments.log:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
    else:
        logging.basicConfig(level=logging.CRITICAL, handlers=[logging.NullHandler()])
    if arguments.planted:
        return _find_all_planted(arguments.processes)
    if arguments.seed is not None:
        name = arguments.scenario or scenario_of(arguments.seed)
        before = time.process_time()
        report = run_scenario(name, arguments.seed, arguments.hours, arguments.trace)
        print(*report.steps, sep="\n")
        _print(name, report, time.process_time() - before)
        return bool(report.violations)
    return _run_many(arguments)


def _run_many(arguments: argparse.Namespace) -> int:
    processes: int = arguments.processes
    began = printed = time.perf_counter()
    reports: list[Report] = []
    busy_s = 0.0
    seeds = takewhile(lambda _: time.perf_counter() - began < arguments.for_s, count(arguments.first))
    work = ((arguments.scenario or scenario_of(seed), seed, arguments.hours) for seed in seeds)
    for name, report, took_s in _in_processes(_run_one, work, processes):
        _print(name, report, took_s)
        reports.append(report)
        busy_s += took_s
        if time.perf_counter() - printed > PROGRESS_S:
            printed = time.perf_counter()
            _print_rate(reports, printed - began, busy_s, processes)
    _print_rate(reports, time.perf_counter() - began, busy_s, processes)
    hourly = sum(report.simulated_s for report in reports) / (time.perf_counter() - began)
    result = "met" if hourly >= SEEDS_AN_HOUR else "NOT MET"
    print(f"simulated hours per hour: {hourly:,.0f} (target >= {SEEDS_AN_HOUR:,}) {result}")
    failed = [report.seed for report in reports if report.violations]
    if failed:
        print(f"invariants violated by seeds {failed}; replay one with: make simulate SEED={failed[0]}")
    return bool(failed)


def _in_processes(call: Callable[[W], R], work: Iterable[W], processes: int) -> Iterator[R]:
    """Yield the results of calls in their order. One call for each process waits, so that none of them is idle."""
    rest = iter(work)
    with Pool(processes, maxtasksperchild=RUNS_A_PROCESS) as pool:
        waiting: deque[AsyncResult[Any]] = deque()
        for each in rest:
            waiting.append(pool.apply_async(call, (each,)))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().get()
        while waiting:
            yield waiting.popleft().get()


def _run_one(work: tuple[str, int, float]) -> tuple[str, Report, float]:
    before = time.process_time()
    return work[0], run_scenario(*work), time.process_time() - before


def _print(name: str, report: Report, took_s: float) -> None:
    print(
        f"seed {report.seed} {name}: {'VIOLATED' if report.violations else 'ok'} {report.trace_hash[:16]} "
        f"{report.simulated_s:.0f} s in {took_s:.1f} s of processor time, "
        f"sends {report.sends} acknowledged {report.acknowledged} deliveries {report.deliveries} "
        f"packets {report.packets}",
        flush=True,
    )
    for invariant, violations in report.violations.items():
        print(f"  {invariant}: {len(violations)}")
        for violation in violations[:5]:
            print(f"    {violation}")


def _print_rate(reports: list[Report], elapsed_s: float, busy_s: float, processes: int) -> None:
    hours, failed = sum(report.simulated_s for report in reports) / 3600, sum(bool(each.violations) for each in reports)
    print(
        f"{len(reports)} seeds, {failed} with violations, {hours:.1f} simulated hours in {elapsed_s:.0f} s "
        f"with {processes} processes: {hours / elapsed_s:.3f} hours per second, {hours / busy_s:.3f} per second of "
        f"processor time, {len(reports) / elapsed_s * 3600:.0f} seeds per hour",
        flush=True,
    )


def _find_all_planted(processes: int) -> int:
    """Plant each bug; return 1 if a checker does not find its bug."""
    are_found = True
    for bug, finding in zip(ALL_PLANTED, _in_processes(find_planted, ALL_PLANTED, processes), strict=True):
        are_found &= finding.seed is not None and not finding.unplanted
        result = "NOT FOUND" if finding.seed is None else f"found by seed {finding.seed}"
        if finding.unplanted:
            result = f"VIOLATIONS WITHOUT IT {finding.unplanted}"
        print(f"{bug.invariant}: {bug.name}: {result}, {finding.took_s:.1f} s of processor time", flush=True)
    return not are_found


if __name__ == "__main__":
    sys.exit(main())
