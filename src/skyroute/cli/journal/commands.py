"""`skyroute journal tail`, `show` and `verify`: read the route history of a name server."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final, NoReturn

import click
import msgspec

from skyroute.cli.admin.output import pairs, print_json
from skyroute.cli.journal.times import as_moment
from skyroute.cli.options import examples
from skyroute.cli.progress_line import ProgressLine
from skyroute.errors import SkyrouteError
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.journal.lines import HEADING, show_record
from skyroute.nameserver.journal.reader import Follower, find_journal, last_records, read_records
from skyroute.nameserver.journal.schema import Record
from skyroute.nameserver.journal.selection import Selection
from skyroute.nameserver.journal.verify import Report
from skyroute.nameserver.journal.verify import verify as verify_journal

FOLLOW_S: Final = 0.2
"""Interval of reads with --follow."""
PROBLEMS_SHOWN: Final = 100

_Command = Callable[..., Any]


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog=examples(
        "skyroute journal tail -f",
        "skyroute journal show -c namesrv.properties --broker broker-a --since 1h",
        "skyroute journal verify --path /var/lib/skyroute/memory-9876",
    ),
)
def journal() -> None:
    """Read the route history that a name server records.

    Give the folder (--path), or the settings file of the name server (-c). Default: the folder of the default settings.
    """


def _journal_options(command: _Command) -> _Command:
    """Add the options that locate the journal."""
    path = click.option(
        "--path",
        type=click.Path(path_type=Path, exists=True, file_okay=False),
        help="Folder of the journal, or the memoryPath that contains it.",
    )
    config = click.option("-c", "--configFile", "config_file", metavar="FILE", help="Settings file of the name server.")
    return path(config(command))


def _folder(path: Path | None, config_file: str | None) -> Path:
    if path is None:
        try:
            memory = NameServerConfig.load(config_file).persistence
        except SkyrouteError as error:
            raise click.ClickException(str(error)) from error
        if memory is None:
            raise click.ClickException("these settings have no journal: set journalEnable=true and memoryPath")
        path = memory.path
    try:
        folder = find_journal(path)
    except OSError as error:
        raise click.ClickException(f"cannot read {path}: {error.strerror}") from error
    if folder is None:
        raise click.ClickException(f"no journal in {path}: give its folder with --path, or the settings file with -c")
    return folder


@journal.command()
@_journal_options
@click.option("-n", "--lines", type=click.IntRange(min=0), default=20, show_default=True, help="Number of records.")
@click.option("-f", "--follow", is_flag=True, help="Print new records until ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, as stored.")
def tail(path: Path | None, config_file: str | None, lines: int, *, follow: bool, as_json: bool) -> None:
    """Print the last records."""
    folder = _folder(path, config_file)
    with suppress(KeyboardInterrupt) if follow else nullcontext():  # ctrl-C ends --follow
        last = _last(folder, max(lines, 1))
        seen = last[-1].seq if last else 0
        _print(last[len(last) - lines :] if lines < len(last) else last, as_json=as_json)
        if follow:
            _follow(Follower(folder, seen), as_json=as_json)


@journal.command()
@_journal_options
@click.option("--topic", help="Only records of this topic, and of the brokers that have it.")
@click.option("--broker", metavar="NAME", help="Only records of this broker group.")
@click.option(
    "--since",
    "since_ms",
    metavar="TIME",
    callback=as_moment,
    help="Start: 2026-11-15T11:00, 11:00 for today, or 10m for ten minutes ago.",
)
@click.option("--until", "until_ms", metavar="TIME", callback=as_moment, help="End.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, as stored.")
def show(
    path: Path | None,
    config_file: str | None,
    topic: str | None,
    broker: str | None,
    since_ms: int | None,
    until_ms: int | None,
    *,
    as_json: bool,
) -> None:
    """Print the records of a topic, a broker or a time."""
    folder = _folder(path, config_file)
    selection = Selection(topic, broker, since_ms=since_ms, until_ms=until_ms)
    # The brokers of a topic are known from earlier records.
    records = _read(folder, since_ms=None if topic else since_ms)
    _print((record for record in records if selection.wants(record)), as_json=as_json)


@journal.command()
@_journal_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(path: Path | None, config_file: str | None, *, as_json: bool) -> None:
    """Check the whole journal for damage.

    Exit code 0: no damage. 1: damage found.
    """
    folder = _folder(path, config_file)
    report = Report()
    try:
        with ProgressLine("reading the journal", lambda: f": {report.records} records", lines=False):
            verify_journal(folder, report)
    except OSError as error:
        raise click.ClickException(f"cannot read {folder}: {error.strerror}") from error
    if as_json:
        print_json({**msgspec.to_builtins(report), "sound": report.is_sound})
    else:
        found = msgspec.to_builtins(report)
        del found["problems"]
        click.echo(pairs({"folder": folder, **{name.replace("_", " "): value for name, value in found.items()}}))
        for problem in report.problems[:PROBLEMS_SHOWN]:
            click.echo(f"PROBLEM {problem}")
        if len(report.problems) > PROBLEMS_SHOWN:
            click.echo(f"... and {len(report.problems) - PROBLEMS_SHOWN} more")
        click.echo("the journal has no damage" if report.is_sound else "the journal is DAMAGED")
    sys.exit(0 if report.is_sound else 1)


def _read(folder: Path, *, after: int = 0, since_ms: int | None = None) -> Iterator[Record]:
    try:
        yield from read_records(folder, after=after, since_ms=since_ms)
    except (SkyrouteError, OSError) as error:
        raise click.ClickException(f"{error} (run skyroute journal verify for details)") from error


def _follow(follower: Follower, *, as_json: bool) -> NoReturn:
    while True:
        try:
            for record in follower.read_new():
                _print_line(record, as_json=as_json)
        except (SkyrouteError, OSError) as error:
            raise click.ClickException(f"{error} (run skyroute journal verify for details)") from error
        sys.stdout.flush()
        time.sleep(FOLLOW_S)


def _last(folder: Path, count: int) -> list[Record]:
    try:
        return last_records(folder, count)
    except (SkyrouteError, OSError) as error:
        raise click.ClickException(f"{error} (run skyroute journal verify for details)") from error


def _print(records: Iterable[Record], *, as_json: bool) -> None:
    if not as_json:
        click.echo(HEADING)
    for record in records:
        _print_line(record, as_json=as_json)


def _print_line(record: Record, *, as_json: bool) -> None:
    click.echo(msgspec.json.encode(record) if as_json else show_record(record))
