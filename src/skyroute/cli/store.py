"""`skyroute store verify` and `repair`: check and repair the files of a stopped broker."""

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
from skyroute.broker.store.files.json_file import read_json
from skyroute.broker.store.settings import StoreSettings
from skyroute.broker.store.verification.findings import Report
from skyroute.broker.store.verification.repair import Repair
from skyroute.broker.store.verification.verify import StoreCheck
from skyroute.broker.table_readers import TABLES
from skyroute.broker.tables.attributes import BATCH_QUEUE, QUEUE_TYPE
from skyroute.broker.tables.topics import read_topics
from skyroute.cli.admin.output import print_json
from skyroute.cli.options import CONTEXT, examples, settings_option
from skyroute.cli.progress_line import ProgressLine
from skyroute.errors import SkyrouteError
from skyroute.files.errors import StorageError

FINDINGS_SHOWN: Final = 100
"""Findings that are printed; --json has more."""
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


def _store_options(command: _Command) -> _Command:
    """Add the store folder, the options with its settings, and --json."""
    path = click.argument("path", type=click.Path(path_type=Path))
    config = click.option(
        "-c",
        "--configFile",
        "config_file",
        metavar="FILE",
        help="Settings file of the broker: needed if it sets file sizes.",
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    return path(config(settings_option(as_json(command))))


@store.command(
    epilog=examples(
        "skyroute store verify ~/store",
        "skyroute store verify ~/store -D mappedFileSizeCommitLog=67108864 --json",
    )
)
@_store_options
def verify(path: Path, config_file: str | None, options: dict[str, str], *, as_json: bool) -> None:
    """Check every record, queue, index entry and table of a store. Changes nothing.

    Exit code 0: no damage. 1: damage found. 2: the store cannot be checked.
    """
    try:
        report = _verify(path, _settings(path, config_file, options))
    except SkyrouteError as error:
        _fail(error, as_json=as_json)
    _print_report(path, report, as_json=as_json)
    sys.exit(1 if report.count else 0)


@store.command(
    epilog=examples(
        "skyroute store repair ~/store --to ~/store-repaired",
        "skyroute store repair ~/store --to /mnt/store -c broker.conf",
    )
)
@_store_options
@click.option("--to", "target", type=click.Path(path_type=Path), required=True, help="New folder for the copy.")
def repair(path: Path, target: Path, config_file: str | None, options: dict[str, str], *, as_json: bool) -> None:
    """Copy a store without its damage.

    Every valid record keeps its position; queues and index are rebuilt. The store itself is not changed. To use the
    copy, set storePathRootDir to it.

    Exit code 0: the copy has no damage. 1: it has. 2: no copy could be made.
    """
    try:
        settings = _settings(path, config_file, options)
        work = Repair(path, target, TABLES, damage_of, settings, partial(_is_batch_topic, path))
        with ProgressLine("repairing:", work.progress):
            repaired = work.run(int(time.time() * 1000))
        report = work.report
    except SkyrouteError as error:
        _fail(error, as_json=as_json)
    if as_json:
        print_json({"path": str(path), "to": str(target), **asdict(repaired), "verified": _as_dict(report)})
    else:
        click.echo(
            f"{target} has {repaired.records} records. Lost: {repaired.lost_bytes} bytes of the commit log "
            f"in {repaired.lost_ranges} ranges."
        )
        for loss in repaired.losses:
            click.echo(f"LOST {loss}")
        _print_report(target, report, as_json=False)
    sys.exit(1 if report.count else 0)


def _settings(path: Path, config_file: str | None, options: dict[str, str]) -> StoreSettings | None:
    """Return the given settings, or None: file sizes are then read from the files."""
    own = path / "config" / "broker.properties"
    if config_file is None and not options and not own.exists():
        return None

    given = {**options, "storePathRootDir": str(path)}
    file = config_file or (str(own) if own.exists() else None)
    return BrokerConfig.load(file, options=given, environment={}).store_settings()


def _is_batch_topic(path: Path, topic: str) -> bool:
    """Return whether a topic is a batch topic (`queue.type=BatchCQ`), by the topic table or its backup."""
    for name in ("topics.json", "topics.json.bak"):
        try:
            found = read_json(path / "config" / name, read_topics).configs.get(topic)
        except (StorageError, FileNotFoundError):
            continue
        return found is not None and found.attributes.get(QUEUE_TYPE) == BATCH_QUEUE
    return False


def _verify(path: Path, settings: StoreSettings | None) -> Report:
    check = StoreCheck(path, TABLES, damage_of, settings)
    with ProgressLine("checking:", check.progress):
        return check.run()


def _fail(error: Exception, *, as_json: bool) -> NoReturn:
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
        click.echo(f"{path} has no damage. Checked: {checked or 'nothing'}.")
