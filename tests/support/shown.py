"""The programs in `examples`, and the programs and commands in the documents."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import click

from skyroute.cli.main import main

ROOT = Path(__file__).parents[2]

PRINTED = {
    "send_and_consume.py": r"(sent \w+ OK\n|booked \d coffees paid order-\d\n){20,}",
    "ordered.py": r"(order-\d placed→paid→brewed→served\n){4}",
    "request_reply.py": r"42, if you asked for everything\n",
    "pull.py": r"read 100 messages\n",
    "receive.py": r"received 20 messages\n",
    "script.py": r"(sent OK\n){3}read\nline 0\nline 1\nline 2\n",
    "transaction.py": r"ten COMMIT\ntoo much ROLLBACK\n",
}
"""What each example prints on success."""
NAME_SERVER = "127.0.0.1:9876"
"""The name server of the programs in the documents."""


def programs(document: str) -> list[str]:
    """Return the Python programs in a document."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def table_below(document: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading, without the table's head."""
    text = (ROOT / document).read_text(encoding="utf-8").split(f"\n{heading}\n", 1)[1]
    lines = re.findall(r"(?m)^\|(.*)\|$", re.split(r"(?m)^#+ ", text)[0])
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines[2:]]


def code_spans(cell: str) -> list[str]:
    """Return the texts between backticks."""
    return re.findall(r"`([^`]*)`", cell)


def programs_for(name_servers: str) -> list[str]:
    """Return the programs in the documents that need a cluster, with its address."""
    shown = [*programs("README.md"), *programs("docs/client.md")]
    return [
        program.replace(NAME_SERVER, name_servers)
        for program in shown
        if NAME_SERVER in program and not wants_spark(program)
    ]


def wants_spark(program: str) -> bool:
    """Whether a program runs on Spark."""
    return "spark = session()" in program


def runs_for_ever(program: str) -> bool:
    """Whether a program runs until it is stopped."""
    return "consumer.run()" in program


def command_lines(document: Path) -> list[str]:
    """Return the command lines in a document that call `skyroute`."""
    text = document.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [re.fullmatch(r"(?:docker run .* )?(skyroute (?:(?!  #).)+).*", line) for line in lines]
    return [match[1].strip() for match in found if match and "[-" not in match[1]]


def check_arguments(arguments: Sequence[str], folder: Path) -> None:
    """Check that `skyroute` accepts these arguments, without running the command; create the folders it needs.

    Raises:
        click.ClickException: The command, an option or a value is unknown.
    """
    rest = [re.sub("^/(var|data)/", f"{folder}/", word) for word in arguments]
    for option, value in pairwise(rest):
        if option in ("--journal", "--archive", "--path"):
            (folder / value).mkdir(parents=True, exist_ok=True)
    command: click.Command = main
    context = click.Context(main, info_name="skyroute")
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=found.name)
    if not {"-h", "--help"} & set(rest):
        accepted = command.make_context(command.name, rest, parent=context.parent)
        assert accepted.command is command


def arguments_of(line: str) -> list[str]:
    """Return the arguments of a command line, without the program."""
    return shlex.split(line.partition(" > ")[0])[1:]
