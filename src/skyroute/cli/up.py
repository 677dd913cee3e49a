"""`skyroute up`: a whole cluster in one process, to try things and to develop with."""

from pathlib import Path
from typing import Final

import click

from skyroute.cli.flags import CONTEXT, metrics_option, settings_option
from skyroute.cli.help import examples
from skyroute.cli.logs import LogSettings, log_options

DATA: Final = "skyroute-data"


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "skyroute up",
        "skyroute up --data /tmp/try --port 0 --ns-port 0",
        "skyroute up --bind 0.0.0.0 --metrics-port 9901 -D flushDiskType=SYNC_FLUSH",
    ),
)
@click.option(
    "--data",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    default=DATA,
    show_default=True,
    help="Where messages, topics and offsets are kept. They are there again the next time.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=10911,
    show_default=True,
    help="The broker's port; 0 for any that is free.",
)
@click.option(
    "--ns-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=9876,
    show_default=True,
    help="The name server's port; 0 for any that is free.",
)
@click.option(
    "--bind",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen: 0.0.0.0 lets other machines in.",
)
@click.option(
    "--console-port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=8088,
    show_default=True,
    help="The web console's port; 0 for any that is free.",
)
@click.option("--no-console", is_flag=True, help="Do without the web console.")
@click.option("--advertise", metavar="HOST[:PORT]", help="The address of the broker that clients are told.")
@settings_option
@metrics_option
@log_options("warning")
def up(
    data: Path,
    port: int,
    ns_port: int,
    bind: str,
    console_port: int,
    advertise: str | None,
    options: dict[str, str],
    metrics_port: int | None,
    log_settings: LogSettings,
    *,
    no_console: bool,
) -> None:
    """Run a name server, a broker and a web console in one process.

    Settings given with -D are the broker's. It stops on ctrl-C. With --metrics-port PORT the name server's metrics are
    there, and the broker's at the next port.
    """
    from skyroute.cli.one_process import run_cluster  # noqa: PLC0415 - help and completion need no server

    run_cluster(
        data.absolute(),
        port,
        ns_port,
        bind,
        None if no_console else console_port,
        advertise,
        options,
        metrics_port,
        log_settings,
    )
