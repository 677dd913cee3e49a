"""`python -m tests.simulation`: run seeds, or replay one with `--seed`."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from pathlib import Path

from tests.simulation.scenario import SETTLE_S, Plan, Report, run


def main() -> int:
    """Run seeds until the time is over; return 1 if an invariant was violated."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed and print its steps")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--for", dest="for_s", type=float, default=60.0, help="seconds to run, without --seed")
    parser.add_argument("--hours", type=float, default=1.0, help="simulated hours of each seed")
    parser.add_argument("--log", action="store_true", help="print the log lines of the product")
    parser.add_argument("--trace", type=Path, help="with --seed, write each event to this file")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets of texts must iterate in the same order in each run
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    logging.basicConfig(level=logging.INFO if arguments.log else logging.CRITICAL, format="%(name)s %(message)s")
    plan = Plan(load_s=max(60.0, arguments.hours * 3600 - SETTLE_S))
    if arguments.seed is not None:
        began = time.perf_counter()
        report = run(arguments.seed, plan, arguments.trace)
        print(*report.steps, sep="\n")
        _print(report, time.perf_counter() - began)
        return bool(report.violations)
    return _run_many(arguments.first, arguments.for_s, plan)


def _run_many(seed: int, for_s: float, plan: Plan) -> int:
    began, busy_before = time.perf_counter(), time.process_time()
    simulated_s, failed = 0.0, []
    seeds = 0
    while (elapsed := time.perf_counter() - began) < for_s:
        at = time.perf_counter()
        report = run(seed, plan)
        gc.collect()
        _print(report, time.perf_counter() - at)
        simulated_s += report.simulated_s
        seeds += 1
        if report.violations:
            failed.append(seed)
        seed += 1
    elapsed = time.perf_counter() - began
    hours, busy_s = simulated_s / 3600, time.process_time() - busy_before
    print(
        f"{seeds} seeds, {hours:.1f} simulated hours in {elapsed:.0f} s ({busy_s:.0f} s of processor time): "
        f"{hours / elapsed:.3f} hours per second, {hours / busy_s:.3f} per second of processor time"
    )
    if failed:
        print(f"invariants violated by seeds {failed}; replay one with: make simulate SEED={failed[0]}")
    return bool(failed)


def _print(report: Report, took_s: float) -> None:
    print(
        f"seed {report.seed}: {'VIOLATED' if report.violations else 'ok'} {report.trace_hash[:16]} "
        f"{report.simulated_s:.0f} s in {took_s:.1f} s, sends {report.sends} acknowledged {report.acknowledged} "
        f"deliveries {report.deliveries} packets {report.packets}"
    )
    for name, violations in report.violations.items():
        print(f"  {name}: {len(violations)}")
        for violation in violations[:5]:
            print(f"    {violation}")


if __name__ == "__main__":
    sys.exit(main())
