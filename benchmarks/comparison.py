"""What comparing benchmarks share: measuring Apache's server and ours in turns, and reporting the figures."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar

from benchmarks.figures import Figure, Target, table
from benchmarks.load.programs import LoadError
from benchmarks.machine import Bystanders
from tests.support.apache import PeerFailedError, PeerUnavailableError

NOISY = 0.10
"""A round is noisy if more than this share of the machine went to processes that take no part."""
LOOK_S = 0.5
"""How long to look whether the machine is quiet."""
WAIT_S = 60.0
"""How long to wait for that at once: idle brokers are dropped after 120 s."""

Side = Literal["apache", "ours"]
SIDES: tuple[Side, Side] = ("apache", "ours")


@dataclass(frozen=True, slots=True)
class Taken:
    """What one side did in one round."""

    values: tuple[float, ...]
    words: str
    noise: float


@dataclass(frozen=True, slots=True)
class Quantity:
    """The name of one value of `Taken`, and what is hoped of it."""

    what: str
    unit: str
    targets: tuple[Target, ...] = ()


@dataclass(slots=True)
class Bench:
    """One run: its length, and what it has found so far."""

    rounds: int
    seconds: float
    warm_up_s: float
    only: frozenset[str]
    patience_s: float
    """How long, in all, to wait for a quiet machine and to repeat noisy rounds."""
    scratch: Path
    figures: list[Figure] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def wants(self, *rows: str) -> bool:
        return not self.only.isdisjoint(rows)

    def say(self, line: str) -> None:
        print(f"[{time.monotonic() - self._began:4.0f} s] {line}", flush=True)

    def compare(self, row: str, measure: Callable[[Side], Taken], *quantities: Quantity) -> None:
        """Measure both sides round by round, neither always first, and keep the quietest rounds."""
        taken: list[dict[Side, Taken]] = []
        while len(taken) < self.rounds or self._may_repeat(taken):
            self._await_quiet()
            began, is_extra = time.monotonic(), len(taken) >= self.rounds
            results: dict[Side, Taken] = {}
            for side in SIDES if len(taken) % 2 == 0 else reversed(SIDES):
                result = results[side] = measure(side)
                noise = f" (others took {result.noise:.0%} of the machine)" if result.noise > NOISY else ""
                self.say(f"row {row} round {len(taken) + 1} {side:6}: {result.words}{noise}")
            taken.append(results)
            if is_extra:
                self.patience_s -= time.monotonic() - began
        kept = sorted(taken, key=_noise)[: self.rounds]
        self.noise += map(_noise, kept)
        for at, quantity in enumerate(quantities):
            apache, ours = (tuple(results[side].values[at] for results in kept) for side in SIDES)
            figure = Figure(row, quantity.what, quantity.unit, apache, ours, quantity.targets)
            self.figures.append(figure)
            self.say(f"row {row}: {quantity.what.strip()}: ours / Apache's = {figure.ratio or 0:.2f}")

    def _may_repeat(self, taken: list[dict[Side, Taken]]) -> bool:
        quiet = sum(_noise(results) <= NOISY for results in taken)
        return quiet < self.rounds and len(taken) < 2 * self.rounds and self.patience_s > 0

    def _await_quiet(self) -> None:
        """Wait for others to finish. Our own servers are idle between rounds, and count as others here."""
        began = time.monotonic()
        while (waited_s := time.monotonic() - began) < min(self.patience_s, WAIT_S):
            with Bystanders() as bystanders:
                time.sleep(LOOK_S)
            if bystanders.share <= NOISY:
                break
        if waited_s > LOOK_S:
            self.say(f"waited {waited_s:.0f} s for a quiet machine")
            self.patience_s -= waited_s


def _noise(results: Mapping[Side, Taken]) -> float:
    return max(result.noise for result in results.values())


B = TypeVar("B", bound=Bench)


def common_options(
    name: str,
    doc: str | None,
    rows: Sequence[str],
    *,
    seconds: float,
    warm_up_s: float,
    rounds: Callable[[str], int] = int,
) -> argparse.ArgumentParser:
    """Return a parser with the options of every comparing benchmark."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=(doc or "").split("\n")[0])
    parser.add_argument("--rounds", type=rounds, default=3, help="rounds of each figure (3)")
    parser.add_argument("--seconds", type=float, default=seconds, help=f"length of one measurement ({seconds:g})")
    parser.add_argument(
        "--warm-up", type=float, default=warm_up_s, metavar="SECONDS", help=f"load on Apache's first ({warm_up_s:g})"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=90.0,
        metavar="SECONDS",
        help="to wait for quiet, and repeat noise, in all (90)",
    )
    parser.add_argument(
        "--only",
        type=lambda text: _rows(text, rows),
        default=frozenset(rows),
        metavar="ROWS",
        help=f"some of {', '.join(rows)}; 1 stands for 1a, 1b and so on",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round of every figure there")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a target is not met")
    return parser


def _order(row: str) -> tuple[int, str]:
    number = row.rstrip("abc")
    return (int(number), row) if number.isdigit() else (sys.maxsize, row)


def _rows(text: str, rows: Sequence[str]) -> frozenset[str]:
    found: set[str] = set()
    for part in (part.strip() for part in text.split(",")):
        named = {row for row in rows if row == part or row.rstrip("abc") == part}
        if not named:
            raise argparse.ArgumentTypeError(f"no such row: {part}; there are {', '.join(rows)}")
        found |= named
    return frozenset(found)


def compare_and_report(
    arguments: argparse.Namespace,
    measure: Callable[[B], Sequence[str] | None],
    title: str,
    *,
    start: Callable[..., B],
) -> int:
    """Measure, print the table and the lines that `measure` returns, write the JSON file; return the exit status."""
    with tempfile.TemporaryDirectory(prefix="skyroute-bench-") as scratch:
        bench = start(
            arguments.rounds,
            arguments.seconds,
            arguments.warm_up,
            arguments.only,
            arguments.patience,
            Path(scratch),
        )
        try:
            notes = list(measure(bench) or ())
        except (LoadError, PeerFailedError, PeerUnavailableError, TimeoutError) as error:
            print(f"benchmark stopped: {error}", file=sys.stderr)
            return 2
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"\n{title}; {machine}")
    print(f"medians of {bench.rounds} rounds; ratio = ours / Apache's, round by round\n")
    print(table(sorted(bench.figures, key=lambda figure: _order(figure.row))))
    print("\n".join(["", *notes]))
    if bench.noise:
        noise = f"{median(bench.noise):.0%} of the machine in the median round, {max(bench.noise):.0%} at most"
        print(f"others took {noise}")
    if arguments.json is not None:
        report: dict[str, Any] = {"machine": machine, "rounds": bench.rounds, "seconds": bench.seconds}
        report |= {"noise": bench.noise, "notes": notes, "figures": [figure.as_json() for figure in bench.figures]}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    missed = [figure for figure in bench.figures if figure.is_met is False]
    return 1 if arguments.strict and missed else 0
