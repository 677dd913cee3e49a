"""Reads and streams many rows of 100 bytes with Spark, and shows that memory stays flat.

Run from the repository's root: `python -m benchmarks.pipeline_memory 100000000`. The resident memory of the driver's
Python, its JVM and each worker is sampled every second. The memory of a Python process must not grow by more than a
tenth plus `SLACK_MB` between its second and its last quarter; that of the JVM must stay below `JVM_MB_MAX`.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks import pipeline
from benchmarks.load.programs import load_broker

SIZE: Final = 100
SLACK_MB: Final = 32.0
GROWTH_MAX: Final = 1.1
JVM_MB_MAX: Final = 4_096.0
"""The heap of 3 GB that the benchmark sets, and what a JVM needs beside it."""
SAMPLES_MIN: Final = 8
"""Samples of a process below which nothing is said about it: it lived only for a few seconds."""
MB: Final = 1 << 20


def _tree(root: int) -> dict[int, str]:
    """Return the processes below a process, and itself, with their names."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue  # it has ended
            parents[int(folder.name)], names[int(folder.name)] = int(rest.split()[1]), name
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: names[pid] for pid in found if pid in names}


class MemorySamples:
    """Samples the resident memory of a process and all below it, every second until `stop`."""

    def __init__(self, root: int) -> None:
        self.by_process: dict[tuple[int, str], list[float]] = defaultdict(list)
        self._root = root
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        page_mb = os.sysconf("SC_PAGE_SIZE") / MB
        while not self._ends.wait(1.0):
            for pid, name in _tree(self._root).items():
                try:
                    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                except OSError:
                    continue  # it has ended
                self.by_process[pid, name].append(pages * page_mb)

    def stop(self) -> None:
        """Take no more samples."""
        self._ends.set()
        self._thread.join()


def report(what: str, samples: MemorySamples) -> bool:
    """Print the memory of each process; return whether all met their target."""
    all_flat = True
    for (pid, name), values in sorted(samples.by_process.items()):
        if len(values) < SAMPLES_MIN:
            continue
        quarter = len(values) // 4
        early, late = median(values[quarter : 2 * quarter]), median(values[-quarter:])
        # A JVM fills its heap before it collects: its memory is bounded, and not flat.
        is_jvm = name == "java"
        is_flat = max(values) <= JVM_MB_MAX if is_jvm else late <= early * GROWTH_MAX + SLACK_MB
        target = f"peak ≤ {JVM_MB_MAX:g} MB" if is_jvm else f"later ≤ {GROWTH_MAX:g} x + {SLACK_MB:g} MB"
        all_flat &= is_flat
        print(
            f"{what:8} {name:12} pid {pid:<8} {early:8.0f} MB, later {late:8.0f} MB, peak {max(values):8.0f} MB   "
            f"target: {target}  {'met' if is_flat else 'NOT MET'}",
            flush=True,
        )
    return all_flat


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("rows", type=int, nargs="?", default=10_000_000, help="number of rows (10,000,000)")
    parser.add_argument("--servers", default=sys.executable, metavar="PYTHON", help="the Python that runs our broker")
    arguments = parser.parse_args()
    topic = f"Bodies-{SIZE}"
    with pipeline.started(frozenset({"6"}), 1, with_kafka=False, servers=arguments.servers) as bench:
        load_broker(bench.our_port, "fill", topic, pipeline.QUEUES, arguments.rows, 8, 1, SIZE, 100)
        print(f"wrote {arguments.rows:,} rows of {SIZE} bytes", flush=True)
        samples = MemorySamples(bench.ours.pid)
        read = bench.ours.run("read", {"topic": topic})
        samples.stop()
        print(f"read {arguments.rows / read['seconds']:,.0f} rows/s, {read['value']:,} bytes", flush=True)
        is_whole = read["value"] == arguments.rows * SIZE
        all_flat = report("read", samples)
        samples = MemorySamples(bench.ours.pid)
        options = {"topic": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2000000"}
        took = bench.ours.time("stream_to_parquet", options, out=bench.output())
        samples.stop()
        print(f"streamed {arguments.rows / took:,.0f} rows/s to Parquet", flush=True)
        all_flat &= report("stream", samples)
    return 0 if all_flat and is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
