"""Mutation testing: changes the code a little, and reports the changes that no test notices: `make mutation`.

mutmut makes the changes and runs the fast tests of each package (`[tool.mutmut]` in pyproject.toml); `mutants/` has its
files. A second run continues there: it tries changes of changed functions and earlier survivors. Remove `mutants/` to
try all. A change that survives is either noticed by a new test or explained in `survivors.txt`. The run ends with 1 if
a survivor is neither, or if a change was not tried.
"""

import argparse
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

EXPLAINED: Final = Path(__file__).parent / "survivors.txt"
MUTMUT: Final = (sys.executable, "-m", "mutmut")
RESULT: Final = re.compile(r"\s+(\S+): (.+)")
AREAS: Final = {
    "routing": "skyroute.routing.",
    "recovery": "skyroute.broker.store.recovery.",
    "offsets": "skyroute.client.consuming.",
}
NOTICED: Final = frozenset({"killed", "timeout", "caught by type check", "segfault"})
SURVIVED: Final = frozenset({"survived", "no tests"})


@dataclass(frozen=True, order=True)
class Change:
    """A change of one statement. Its number in mutmut's name changes with the code around it, its text does not."""

    function: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.function}\n- {self.before}\n+ {self.after}\n"


def read_explained(path: Path = EXPLAINED) -> dict[Change, str]:
    """Return the explained changes and their reasons: blocks of a function, `-` line, `+` line and `=` reason."""
    explained: dict[Change, str] = {}
    for block in path.read_text("utf-8").split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if lines:
            function, before, after, reason = lines
            explained[Change(function, before.removeprefix("- "), after.removeprefix("+ "))] = reason
    return explained


def results() -> dict[str, str]:
    """Return the status of every change by mutmut's name."""
    done = subprocess.run([*MUTMUT, "results", "--all", "true"], capture_output=True, text=True, check=True)
    return {found[1]: found[2] for line in done.stdout.splitlines() if (found := RESULT.fullmatch(line))}


def change_of(name: str) -> Change:
    """Return the change of a name."""
    diff = subprocess.run([*MUTMUT, "show", name], capture_output=True, text=True, check=True).stdout.splitlines()
    removed = [line[1:].strip() for line in diff if line.startswith("-") and not line.startswith("---")]
    added = [line[1:].strip() for line in diff if line.startswith("+") and not line.startswith("+++")]
    function = name.rpartition("__mutmut_")[0].replace(".xǁ", ".").replace("ǁ", ".").replace(".x_", ".")
    return Change(function, " ".join(removed), " ".join(added))


def main() -> int:
    parser = argparse.ArgumentParser(description="Find changes of the code that no test notices.")
    parser.add_argument("names", nargs="*", help="changes to try, such as 'skyroute.routing.leases*'; by default all")
    parser.add_argument("--children", type=int, default=1, help="processes")
    parser.add_argument("--report", action="store_true", help="show the results of the last run")
    given = parser.parse_args()
    if not given.report:
        run = (*MUTMUT, "run", "--max-children", str(given.children))
        earlier = [] if given.names else [name for name, status in results().items() if status in SURVIVED]
        subprocess.run([*run, *given.names], check=False)
        if earlier and (again := sorted(results().keys() & earlier)):
            subprocess.run([*run, *again], check=False)  # there may be new tests
    explained = read_explained()
    found = results()
    unexplained: list[Change] = []
    untried = 0
    for area, prefix in AREAS.items():
        statuses = Counter(status for name, status in found.items() if name.startswith(prefix))
        survivors = [
            change_of(name) for name, status in found.items() if name.startswith(prefix) and status in SURVIVED
        ]
        unknown = sorted(set(survivors) - explained.keys())
        unexplained += unknown
        noticed = sum(count for status, count in statuses.items() if status in NOTICED)
        tried = noticed + len(survivors)
        untried += statuses.total() - tried
        score = 100 * noticed / tried if tried else 0.0
        print(
            f"{area}: {noticed} of {tried} changes noticed ({score:.1f} %), "
            f"{len(survivors) - len(unknown)} survivors explained, {len(unknown)} not; {dict(statuses)}"
        )
    for change in unexplained:
        print(f"\n{change}= ")
    return 1 if unexplained or (untried and not given.names) else 0


if __name__ == "__main__":
    sys.exit(main())
