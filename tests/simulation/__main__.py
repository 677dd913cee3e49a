"""`python -m tests.simulation`: run seeds, or replay one with `--seed`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import deque
from itertools import count
from multiprocessing import Pool
from multiprocessing.pool import AsyncResult
from pathlib import Path

from tests.simulation.scenario import SETTLE_S, Plan, Report, run


def main() -> int:
    """Run seeds until the time is over; return 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed and print its steps")
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
    plan = Plan(load_s=max(60.0, arguments.hours * 3600 - SETTLE_S))
    if arguments.seed is not None:
        before = time.process_time()
        report = run(arguments.seed, plan, arguments.trace)
        print(*report.steps, sep="\n")
        _print(report, time.process_time() - before)
        return bool(report.violations)
    return _run_many(arguments.first, arguments.for_s, plan, arguments.processes)


def _run_many(first: int, for_s: float, plan: Plan, processes: int) -> int:
    began = time.perf_counter()
    reports: list[Report] = []
    busy_s = 0.0
    with Pool(processes) as pool:
        work = ((seed, plan) for seed in count(first))
        waiting: deque[AsyncResult[tuple[Report, float]]] = deque()
        while waiting or time.perf_counter() - began < for_s:
            while len(waiting) < processes and time.perf_counter() - began < for_s:
                waiting.append(pool.apply_async(_run_one, (next(work),)))
            report, took_s = waiting.popleft().get()
            _print(report, took_s)
            reports.append(report)
            busy_s += took_s
    elapsed, hours = time.perf_counter() - began, sum(report.simulated_s for report in reports) / 3600
    print(
        f"{len(reports)} seeds, {hours:.1f} simulated hours in {elapsed:.0f} s with {processes} processes: "
        f"{hours / elapsed:.3f} hours per second, {hours / busy_s:.3f} per second of processor time"
    )
    failed = [report.seed for report in reports if report.violations]
    if failed:
        print(f"invariants violated by seeds {failed}; replay one with: make simulate SEED={failed[0]}")
    return bool(failed)


def _run_one(work: tuple[int, Plan]) -> tuple[Report, float]:
    before = time.process_time()
    report = run(*work)
    return report, time.process_time() - before


def _print(report: Report, took_s: float) -> None:
    print(
        f"seed {report.seed}: {'VIOLATED' if report.violations else 'ok'} {report.trace_hash[:16]} "
        f"{report.simulated_s:.0f} s in {took_s:.1f} s of processor time, "
        f"sends {report.sends} acknowledged {report.acknowledged} deliveries {report.deliveries} "
        f"packets {report.packets}"
    )
    for name, violations in report.violations.items():
        print(f"  {name}: {len(violations)}")
        for violation in violations[:5]:
            print(f"    {violation}")


if __name__ == "__main__":
    sys.exit(main())
