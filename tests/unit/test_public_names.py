"""What `from skyroute import …` gives: everything is there, documented, and shown in use."""

import doctest
import inspect
import subprocess
import sys
from typing import Any

import pytest

import skyroute

NAMES = sorted(set(skyroute.__all__) - {"__version__"})


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_shown_in_use(name: str) -> None:
    thing: Any = getattr(skyroute, name)
    examples = doctest.DocTestParser().get_examples(thing.__doc__)
    assert examples, f"{name} has no example of its use"
    assert "\nExamples:\n    >>> " in inspect.cleandoc(thing.__doc__), "where the reference looks for one"
    for example in examples:
        # Those that await can only be compiled here; whole programs are in examples/, and run.
        compile(f"async def shown():\n{_indented(example.source)}", name, "exec")


def _indented(source: str) -> str:
    return "".join(f"    {line}\n" for line in source.splitlines()) + "    return\n"


@pytest.mark.parametrize("name", ["Credentials", "Message", "QueueRef"])
def test_an_example_without_a_cluster_gives_what_it_shows(name: str) -> None:
    thing: Any = getattr(skyroute, name)
    globs = {known: getattr(skyroute, known) for known in NAMES}
    test = doctest.DocTestParser().get_doctest(thing.__doc__, globs, name, None, None)
    assert doctest.DocTestRunner().run(test).failed == 0


def test_every_public_name_is_listed_and_no_other_exists() -> None:
    assert dir(skyroute) == skyroute.__all__
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = skyroute.Nothing


def test_importing_the_package_imports_no_part_of_it() -> None:
    code = "import skyroute, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if name.startswith(("skyroute.", "asyncio", "msgspec"))]
