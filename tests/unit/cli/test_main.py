import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from skyroute import __version__
from skyroute.cli.admin.commands import admin
from skyroute.cli.main import main
from tests.support.shown import arguments_of, check_arguments


def skyroute(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "skyroute", *arguments], capture_output=True, text=True, check=False)


def test_version_is_printed() -> None:
    run = skyroute("--version")
    assert (run.returncode, run.stdout) == (0, f"skyroute {__version__}\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_the_commands(flag: str) -> None:
    run = skyroute(flag)
    assert run.returncode == 0
    assert "nameserver  Run a name server" in run.stdout


@pytest.mark.parametrize("arguments", [["-h"], ["nameserver", "-h"], ["broker", "-h"], ["up", "-h"]])
def test_help_imports_no_server(arguments: list[str]) -> None:
    check = (
        f"import sys; from skyroute.cli.main import main; main({arguments}, standalone_mode=False); print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    modules = run.stdout.split("\n")[-2].split()
    assert "skyroute.cli.main" in modules
    assert not {"asyncio", "msgspec", "skyroute.cli.server_process", "skyroute.nameserver", "skyroute.broker"} & set(
        modules
    )


def test_summaries_in_the_list_are_the_first_lines_of_the_help() -> None:
    context = click.Context(main)
    summaries = main.get_help(context)
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help is not None
        assert command.help.partition("\n")[0] in summaries


def test_summaries_of_admin_commands_are_the_first_lines_of_their_help() -> None:
    context = click.Context(admin)
    for name, listed in admin._lazy_commands.items():
        command = admin.get_command(context, name)
        assert command is not None
        assert command.help is not None
        assert command.help.partition("\n")[0] == listed.summary


@pytest.mark.parametrize("arguments", [["frobnicate"], ["--frobnicate"]])
def test_an_unknown_command_or_option_is_a_usage_error(arguments: list[str]) -> None:
    run = skyroute(*arguments)
    assert run.returncode == 2
    assert "frobnicate" in run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("nameservr", "nameserver"), ("admin clusterlist", "admin clusterList"), ("updateTopic", "admin updateTopic")],
)
def test_a_mistyped_command_gets_a_suggestion(typed: str, meant: str) -> None:
    run = skyroute(*typed.split())
    assert run.returncode == 2
    assert run.stderr.endswith(f"Did you mean python -m skyroute {meant}?\n")


def commands(group: click.Group, *names: str) -> Iterator[tuple[str, click.Command]]:
    """Yield all commands by full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield " ".join((*names, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, *names, name)


ALL = {"": main, **dict(commands(main))}
EXAMPLES = [
    line.partition("  #")[0].strip()
    for command in ALL.values()
    for line in (command.epilog or "").splitlines()
    if line.startswith("  skyroute ") and "COMMAND" not in line
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_in_the_help_parse(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, options and values of each example are valid; nothing is run."""
    monkeypatch.chdir(tmp_path)
    check_arguments(arguments_of(example), tmp_path)


def test_the_help_has_examples() -> None:
    assert len(EXAMPLES) > 60
    without = {name for name, command in ALL.items() if "Examples:" not in (command.epilog or command.help or "")}
    assert without <= {"console user", "journal tail", "journal show", "journal verify"}
