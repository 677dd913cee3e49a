"""Runs the fuzzer on one target: `python -m tests.fuzz.one_target TARGET`, and the arguments of libFuzzer.

`tests.fuzz.run` starts it. To run one input, give its file instead of the arguments.
"""

import importlib
import sys

import atheris


def main() -> None:
    _, target, *arguments = sys.argv
    with atheris.instrument_imports(include=["skyroute"]):
        check = importlib.import_module(f"tests.fuzz.targets.{target}").check
    atheris.Setup([target, *arguments], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
