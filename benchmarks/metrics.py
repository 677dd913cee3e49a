"""What do metrics cost a name server?

Run from the repository's root: `python -m benchmarks.metrics`. Two of our name servers run side by side, one that tells
how it is and is asked every second, and one that does not; the same load is put on both in turns. `README.md` says how
to read it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from benchmarks.figures import Target, table
from benchmarks.load.programs import Brokers, HeaderForm, build, read_routes
from benchmarks.memory import FEW_TOPICS, SIDES, Bench, Side
from tests.support.apache import SkyrouteNameServer, free_port

SCRAPE_S: Final = 1.0
"""Prometheus asks every 15 seconds, or every minute."""
COST_MAX: Final = 0.03
ROWS: Final[dict[str, tuple[HeaderForm, str]]] = {
    "1": ("json", "routes that are cached"),
    "2": ("binary", "routes that a handler looks up"),
}


@dataclass(slots=True)
class MetricsBench(Bench):
    """What is switched on is the port of the metrics."""

    metrics_port: int = field(default_factory=free_port)

    def server(self, side: Side) -> SkyrouteNameServer:
        self._servers += 1
        config = {"metricsPort": str(self.metrics_port)} if side == "on" else {}
        return SkyrouteNameServer(f"metrics {side}", self.scratch / f"{side}-{self._servers}", config=config)

    def reads(self, row: str) -> None:
        """What do reads cost, with metrics that are asked for every second?"""
        form, what = ROWS[row]
        with self.pair() as servers, ExitStack() as stack:
            few = {
                side: stack.enter_context(Brokers(server.port, clusters=1, brokers=2, topics=100, first_cluster=4))
                for side, server in servers.items()
            }
            for brokers in few.values():
                brokers.register()
                self.load_pids.append(brokers.pid)

            def measure(side: Side) -> float:
                few[side].renew()
                with self._scraped() if side == "on" else nullcontext():
                    return read_routes(
                        servers[side].port, 64, 1, seconds=self.seconds, topics=FEW_TOPICS, form=form
                    ).per_s

            for side in SIDES:
                measure(side)
            pids = {side: server.pid for side, server in servers.items()}
            self.compare(row, f"{what}, read", Target("ratio at least", 1 - COST_MAX), pids, measure)

    @contextmanager
    def _scraped(self) -> Iterator[None]:
        over = threading.Event()

        def ask() -> None:
            while not over.wait(SCRAPE_S):
                with urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as page:
                    page.read()

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.metrics", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each figure (7)")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of one measurement (4)")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a target is not met")
    arguments = parser.parse_args()
    for program in ("nsload", "nsreg"):
        build(program)
    with tempfile.TemporaryDirectory(prefix="skyroute-bench-") as scratch:
        bench = MetricsBench(arguments.rounds, arguments.seconds, frozenset(ROWS), Path(scratch))
        for row in ROWS:
            bench.reads(row)
    print(table(bench.figures, ("off", "on")))
    print(f"\nOthers took up to {max(bench.noise):.0%} of the machine meanwhile.")
    return 1 if arguments.strict and any(figure.is_met is False for figure in bench.figures) else 0


if __name__ == "__main__":
    sys.exit(main())
