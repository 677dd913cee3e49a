"""`skyroute up`: a whole cluster in one process, for development."""

from pathlib import Path
from typing import Final

import click

from skyroute.cli.logs import LogSettings, log_options
from skyroute.cli.options import CONTEXT, examples, metrics_option, port_option, settings_option

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
    help="Folder of messages, topics and offsets; kept between runs.",
)
@port_option("--port", "broker", 10911)
@port_option("--ns-port", "name server", 9876)
@click.option(
    "--bind",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0 accepts connections from other machines.",
)
@port_option("--console-port", "web console", 8088)
@click.option("--no-console", is_flag=True, help="Do not start the web console.")
@click.option("--advertise", metavar="HOST[:PORT]", help="Address that clients use to connect to the broker.")
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

    Settings of -D apply to the broker. With --metrics-port PORT, the name server serves metrics on PORT and the broker
    on PORT + 1. Stops on ctrl-C.
    """
    from skyroute.cli.all_in_one import run_cluster  # noqa: PLC0415 - help and completion need no server

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
