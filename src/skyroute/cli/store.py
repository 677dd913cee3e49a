"""`skyroute store verify` and `repair`: the files of a broker that does not run."""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from skyroute.broker.config import BrokerConfig
from skyroute.broker.scheduling.timer_check import damage_of
from skyroute.broker.store.errors import StoreError
from skyroute.broker.store.files.json_file import read_json
from skyroute.broker.store.settings import StoreSettings
from skyroute.broker.store.verification.findings import Report
from skyroute.broker.store.verification.repair import Repair
from skyroute.broker.store.verification.verify import StoreCheck
from skyroute.broker.table_readers import TABLES
from skyroute.broker.tables.attributes import BATCH_QUEUE, QUEUE_TYPE
from skyroute.broker.tables.topics import read_topics
from skyroute.cli.admin.output import print_json
from skyroute.cli.flags import CONTEXT, settings_option
from skyroute.cli.help import examples
from skyroute.cli.progress import Progress
from skyroute.errors import SkyrouteError

FINDINGS_SHOWN: Final = 100
"""How many findings are printed; --json has more."""
CANNOT_CHECK: Final = 2

_Command = Callable[..., Any]


@click.group(
    context_settings=CONTEXT,
    epilog=examples(
        "skyroute store verify /var/lib/skyroute/store",
        "skyroute store verify ~/store -c broker.conf --json",
        "skyroute store repair ~/store --to ~/store-repaired",
    ),
)
def store() -> None:
    """Check and repair the files of a stopped broker."""


def _of_store(command: _Command) -> _Command:
    """Give a command the folder, and the options that say how its files were written."""
    path = click.argument("path", type=click.Path(path_type=Path))
    config = click.option(
        "-c",
        "--configFile",
        "config_file",
        metavar="FILE",
        help="The broker's settings: needed where it sets sizes of files that are not the defaults.",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="The result for a program.")
    return path(config(settings_option(as_json(command))))


@store.command(
    epilog=examples(
        "skyroute store verify ~/store",
        "skyroute store verify ~/store -D mappedFileSizeCommitLog=67108864 --json",
    )
)
@_of_store
def verify(path: Path, config_file: str | None, options: dict[str, str], *, as_json: bool) -> None:
    """Check every record, queue, index entry and table of a store, and change nothing.

    Exit code: 0 if all is sound, 1 if something is not, 2 if it cannot be checked.
    """
    try:
        report = _verify(path, _settings(path, config_file, options))
    except SkyrouteError as error:
        _give_up(error, as_json=as_json)
    _print_report(path, report, as_json=as_json)
    sys.exit(1 if report.count else 0)


@store.command(
    epilog=examples(
        "skyroute store repair ~/store --to ~/store-repaired",
        "skyroute store repair ~/store --to /mnt/store -c broker.conf",
    )
)
@_of_store
@click.option(
    "--to", "target", type=click.Path(path_type=Path), required=True, help="A new folder for the copy that is made."
)
def repair(path: Path, target: Path, config_file: str | None, options: dict[str, str], *, as_json: bool) -> None:
    """Make a sound copy of a store: every good record at its position, queues and index rebuilt, damage left out.

    The store itself is not changed. Point storePathRootDir to the copy to use it.

    Exit code: 0 if the copy is sound, 1 if not, 2 if none could be made.
    """
    try:
        settings = _settings(path, config_file, options)
        work = Repair(path, target, TABLES, damage_of, settings, partial(_keeps_batches, path))
        with Progress("repairing:", work.how_far):
            repaired = work.run(int(time.time() * 1000))
        report = work.report
    except SkyrouteError as error:
        _give_up(error, as_json=as_json)
    if as_json:
        print_json({"path": str(path), "to": str(target), **asdict(repaired), "verified": _as_dict(report)})
    else:
        click.echo(
            f"{target} has {repaired.records} records. Lost: {repaired.lost_bytes} bytes of the log "
            f"in {repaired.lost_ranges} places."
        )
        for loss in repaired.losses:
            click.echo(f"LOST {loss}")
        _print_report(target, report, as_json=False)
    sys.exit(1 if report.count else 0)


def _settings(path: Path, config_file: str | None, options: dict[str, str]) -> StoreSettings | None:
    """Return the sizes that were given; None where none were, and files have to tell."""
    own = path / "config" / "broker.properties"
    if config_file is None and not options and not own.exists():
        return None

    given = {**options, "storePathRootDir": str(path)}
    file = config_file or (str(own) if own.exists() else None)
    return BrokerConfig.load(file, options=given, environment={}).store_settings()


def _keeps_batches(path: Path, topic: str) -> bool:
    """Return whether the table of topics, or its backup, says that a topic keeps batches whole."""
    for name in ("topics.json", "topics.json.bak"):
        try:
            found = read_json(path / "config" / name, read_topics).configs.get(topic)
        except (StoreError, FileNotFoundError):
            continue
        return found is not None and found.attributes.get(QUEUE_TYPE) == BATCH_QUEUE
    return False


def _verify(path: Path, settings: StoreSettings | None) -> Report:

    check = StoreCheck(path, TABLES, damage_of, settings)
    with Progress("checking:", check.how_far):
        return check.run()


def _give_up(error: Exception, *, as_json: bool) -> NoReturn:
    if as_json:
        print_json({"error": str(error)})
    else:
        click.echo(f"Error: {error}", err=True)
    sys.exit(CANNOT_CHECK)


def _as_dict(report: Report) -> dict[str, object]:
    return {
        "sound": not report.count,
        "count": report.count,
        "by_area": dict(report.by_area),
        "checked": dict(report.checked),
        "notes": report.notes,
        "findings": [asdict(finding) for finding in report.findings],
    }


def _print_report(path: Path, report: Report, *, as_json: bool) -> None:
    if as_json:
        print_json({"path": str(path), **_as_dict(report)})
        return
    for finding in report.findings[:FINDINGS_SHOWN]:
        place = finding.file if finding.offset is None else f"{finding.file} at byte {finding.offset}"
        click.echo(f"{place}: {finding.what}\n  cost: {finding.cost}\n  to do: {finding.advice}")
    if report.count > FINDINGS_SHOWN:
        click.echo(f"... and {report.count - FINDINGS_SHOWN} more")
    for note in report.notes:
        click.echo(f"note: {note}")
    checked = ", ".join(f"{count} {name}" for name, count in report.checked.items())
    if report.count:
        areas = ", ".join(f"{area} {count}" for area, count in sorted(report.by_area.items()))
        click.echo(f"{report.count} findings ({areas}) in {path}. Checked: {checked or 'nothing'}.")
    else:
        click.echo(f"{path} is sound. Checked: {checked or 'nothing'}.")
