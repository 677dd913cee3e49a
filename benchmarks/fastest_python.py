"""Which `python3` on the PATH is the fastest that can compile the package? Prints its path.

Pythons of one version differ by a quarter and more: those of Linux distributions are built with what was learnt from
trial runs, those that people build themselves often are not. The one this runs on is the answer where no other will do.
"""

import os
import subprocess
import sys
from pathlib import Path

# Needs what a build needs: a version we support, `venv` with `pip`, and the headers of C.
_TRIAL = """
import ensurepip, os, sys, sysconfig, timeit, venv
if sys.version_info < (3, 11) or not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    sys.exit(1)
work = "s.pack_into(b, 0, 1, 2, 3); d = {n: (n, c[n:]) for n in range(20)}; b''.join(e[1] for e in d.values())"
ready = "from struct import Struct; s = Struct('>iqi'); b = bytearray(64); c = bytes(40)"
print(min(timeit.repeat(work, ready, number=2000, repeat=25)), os.path.realpath(sys.executable))
"""


def main() -> None:
    """Try each of them, and print the best."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    candidates = dict.fromkeys([sys.executable, *(str(Path(folder) / "python3") for folder in folders)])
    found: dict[str, float] = {}
    for candidate in filter(os.path.exists, candidates):
        said = subprocess.run([candidate, "-c", _TRIAL], capture_output=True, text=True, check=False).stdout.split()
        if len(said) == 2:
            found[said[1]] = min(float(said[0]), found.get(said[1], float("inf")))
    print(min(found, key=found.__getitem__) if found else sys.executable)


if __name__ == "__main__":
    main()
