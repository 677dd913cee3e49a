import subprocess
import sys

import click
import pytest

from skyroute import __version__
from skyroute.cli.main import main


def skyroute(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "skyroute", *words], capture_output=True, text=True, check=False)


def test_it_tells_its_version() -> None:
    run = skyroute("--version")
    assert (run.returncode, run.stdout) == (0, f"skyroute {__version__}\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_commands(flag: str) -> None:
    run = skyroute(flag)
    assert run.returncode == 0
    assert "nameserver  Run a name server" in run.stdout


def test_help_imports_no_command() -> None:
    check = "import sys; from skyroute.cli.main import main; main(['-h'], standalone_mode=False); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    modules = run.stdout.split("\n")[-2].split()
    assert "skyroute.cli.main" in modules
    assert not {"asyncio", "msgspec", "skyroute.cli.serve", "skyroute.nameserver"} & set(modules)


def test_the_summaries_are_those_of_the_commands() -> None:
    context = click.Context(main)
    summaries = main.get_help(context)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help is not None
        assert command.help.partition("\n")[0] in summaries


@pytest.mark.parametrize("words", [["frobnicate"], ["--frobnicate"]])
def test_an_unknown_word_is_refused(words: list[str]) -> None:
    run = skyroute(*words)
    assert run.returncode == 2
    assert "frobnicate" in run.stderr
    assert "Traceback" not in run.stderr
