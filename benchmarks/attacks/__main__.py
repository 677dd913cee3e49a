"""What can a hostile peer do to our servers, and what does everyone else notice of it?

Run from the repository's root: `python -m benchmarks.attacks`. Each attack starts real servers, has a well-behaved peer
ask one of them all the time, attacks, and prints one line for each figure. `--python` starts the servers with another
interpreter, in whose environment another commit is installed. `README.md` says how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.attacks import memory, recovery, silence, sweep, values, web
from benchmarks.attacks.outcomes import ATTACKS, Outcome, markdown
from benchmarks.attacks.servers import Lab, raise_file_limit

MODULES = (silence, memory, values, web, recovery, sweep)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attacks", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", metavar="NAME,...", help=f"some attacks: {', '.join(ATTACKS)}; all but the sweeps")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that runs the servers (this one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument("--before", type=Path, metavar="FILE", help="the --json of another run: print both as Markdown")
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if a target is not met")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",") if arguments.only else [name for name in ATTACKS if "sweep" not in name]
    if unknown := [name for name in wanted if name not in ATTACKS]:
        parser.error(f"unknown attacks {', '.join(unknown)} (expected some of {', '.join(ATTACKS)})")
    raise_file_limit()
    found: list[Outcome] = []
    for name in wanted:
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="skyroute-attack-") as scratch:
            lab = Lab(os.path.abspath(arguments.python), Path(scratch))  # noqa: PTH100 - a link must stay one
            try:
                for outcome in ATTACKS[name](lab):
                    found.append(outcome)
                    print(outcome, flush=True)
            except (OSError, RuntimeError) as error:
                found.append(Outcome(name, "", "the attack itself", f"failed: {error}", wanted="done"))
                print(found[-1], flush=True)
        print(f"# {name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    figures = [outcome.as_json() for outcome in found]
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1))
    if arguments.before:
        print(markdown(json.loads(arguments.before.read_text()), figures))
    return 1 if arguments.strict and any(outcome.is_met is False for outcome in found) else 0


if __name__ == "__main__":
    sys.exit(main())
