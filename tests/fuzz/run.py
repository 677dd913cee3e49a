"""Fuzzes the readers of foreign bytes, guided by coverage: `make fuzz`, `make fuzz TARGET=frame FUZZ_SECONDS=600`.

Each target runs in its own process, from its corpus in `tests/fuzz/corpus`. New inputs of a run stay in
`.cache/fuzzing` for the next one. An input that fails is in `.cache/fuzzing/failed`, and the run ends with 1: add it
to the corpus of the target, with a comment, when the fault is fixed. `--keep` adds the inputs that reach new code.
"""

import argparse
import importlib
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.fuzz.corpus_files import TARGETS, read_corpus, write_corpus

WORK: Final = Path(".cache/fuzzing")
INPUT_BYTES_MAX: Final = 4096
INPUT_S_MAX: Final = 10
"""An input that takes longer is reported: readers take milliseconds."""
MEMORY_MB_MAX: Final = 2048
KEPT_BYTES_MAX: Final = 600
KEPT_MAX: Final = 40
"""Inputs that `--keep` adds to a corpus: at most this long, and this many."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the readers of foreign bytes.")
    parser.add_argument(
        "targets", nargs="*", choices=[*TARGETS, []], metavar="TARGET", help=f"by default all: {', '.join(TARGETS)}"
    )
    parser.add_argument("--seconds", type=int, default=60, help="time for each target")
    parser.add_argument("--keep", action="store_true", help="add inputs that reach new code to the corpus")
    given = parser.parse_args()
    failed = []
    for target in given.targets or TARGETS:
        if not run(target, given.seconds):
            failed.append(target)
        if given.keep:
            keep(target)
    print(f"failed: {', '.join(failed)} (inputs in {WORK / 'failed'})" if failed else "no target failed")
    return 1 if failed else 0


def run(target: str, seconds: int) -> bool:
    """Fuzz one target for a time; return whether no input failed."""
    inputs, failed = WORK / target, WORK / "failed"
    for folder in (inputs, failed):
        folder.mkdir(parents=True, exist_ok=True)
    for number, each in enumerate(read_corpus(target)):
        (inputs / f"corpus-{number}").write_bytes(each)
    started = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz.one_target", target, str(inputs)),
            *(f"-max_total_time={seconds}", f"-artifact_prefix={failed}/{target}-", f"-max_len={INPUT_BYTES_MAX}"),
            *(f"-timeout={INPUT_S_MAX}", f"-rss_limit_mb={MEMORY_MB_MAX}", f"-dict={dictionary(target)}"),
            "-print_final_stats=1",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    (WORK / f"{target}.log").write_text(done.stdout)
    stats = dict(
        line.split(":", 1) for line in done.stdout.splitlines() if line.startswith("stat::") for line in [line[6:]]
    )
    tried = stats.get("number_of_executed_units", "?").strip()
    count = sum(1 for _ in inputs.iterdir())
    print(
        f"{target}: {'failed' if done.returncode else 'passed'}, {tried} inputs in {time.monotonic() - started:.0f} s, "
        f"{count} kept in {inputs}",
        flush=True,
    )
    if done.returncode:
        print("\n".join(done.stdout.splitlines()[-60:]), flush=True)
    return done.returncode == 0


def keep(target: str) -> None:
    """Add the inputs to the corpus that reach code which no shorter one reaches."""
    known, merged = WORK / f"{target}.known", WORK / f"{target}.merged"
    for folder in (known, merged):
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
    before = read_corpus(target)
    for number, each in enumerate(before):
        (merged / f"corpus-{number}").write_bytes(each)
    subprocess.run(
        [
            *(sys.executable, "-m", "tests.fuzz.one_target", target, "-merge=1", "-set_cover_merge=1"),
            *(f"-max_len={KEPT_BYTES_MAX}", str(merged), str(WORK / target)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    found = sorted({path.read_bytes() for path in merged.iterdir()} - set(before), key=len)
    write_corpus(target, [each for each in found if len(each) <= KEPT_BYTES_MAX][:KEPT_MAX])


def dictionary(target: str) -> Path:
    """Write the texts in the code under test, such as names of fields, for the fuzzer to use."""
    path = WORK / f"{target}.dict"
    importlib.import_module(f"tests.fuzz.targets.{target}")
    texts = {text for name, module in sys.modules.items() if name.startswith("skyroute.") for text in constants(module)}
    lines = ['"' + "".join(f"\\x{byte:02x}" for byte in text) + '"\n' for text in sorted(texts) if 2 <= len(text) <= 24]
    path.write_text("".join(lines), "ascii")
    return path


def constants(module: types.ModuleType) -> Iterator[bytes]:
    """Yield the texts in the functions and classes of a module, except sentences."""
    code: list[Any] = [
        getattr(value, "__code__", None)
        for holder in (module, *(each for each in vars(module).values() if isinstance(each, type)))
        for value in vars(holder).values()
    ]
    while code:
        found = code.pop()
        if isinstance(found, types.CodeType):
            code += found.co_consts
        elif isinstance(found, str) and found.isascii() and " " not in found:
            yield found.encode()
        elif isinstance(found, bytes):
            yield found


if __name__ == "__main__":
    sys.exit(main())
