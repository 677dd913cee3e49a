"""`python -m tests.reliability`: measure the figures of `docs/reliability.md` on real processes.

`--seconds` runs them shorter, `--frames` sends fewer malformed frames. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from tests.reliability import figures, soak
from tests.reliability.malformed import malformed
from tests.reliability.outcome import Outcome

Figure = Callable[[Path, float], Awaitable[list[Outcome]]]

FIGURES: Final[dict[str, tuple[Figure, float]]] = {
    "kills": (figures.kills, 300.0),
    "restarts": (figures.restarts, 60.0),
    "connections": (figures.connections, 600.0),
    "registrations": (figures.registrations, 60.0),
    "malformed": (malformed, 100.0),
    "soak": (soak.soak, 1_800.0),
}
"""By name: the function, and the seconds that the promise is about."""


def main() -> int:
    """Run the named figures; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"figures, of {', '.join(FIGURES)}; by default all but soak")
    parser.add_argument("--seconds", type=float, help="a shorter or longer run")
    parser.add_argument("--frames", type=int, default=5_000_000, help="malformed frames")
    parser.add_argument("--keep", type=Path, help="keep files and logs in this folder")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in FIGURES]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    logging.basicConfig(level=logging.CRITICAL, handlers=[logging.NullHandler()])
    is_met = True
    for name in given.names or [name for name in FIGURES if name != "soak"]:
        figure, seconds = FIGURES[name]
        if name == "malformed":
            figure = functools.partial(malformed, frames=given.frames)
        folder = Path(tempfile.mkdtemp(prefix=f"skyroute-{name}-", dir=given.keep))
        began = time.monotonic()
        try:
            outcomes = asyncio.run(_run(figure, folder, given.seconds or seconds))
        finally:
            if given.keep is None:
                shutil.rmtree(folder, ignore_errors=True)
        load = os.getloadavg()[0]
        print(f"{name}: {time.monotonic() - began:.0f} s, load average {load:.1f}", flush=True)
        for outcome in outcomes:
            print(f"  {outcome}", flush=True)
            is_met &= outcome.is_met
    return not is_met


async def _run(figure: Figure, folder: Path, seconds: float) -> list[Outcome]:
    return await figure(folder, seconds)


if __name__ == "__main__":
    sys.exit(main())
