"""`skyroute up`: a whole cluster with one command, for development."""

from pathlib import Path
from typing import Final

import click

from skyroute.cli.broker import advertise_option_settings
from skyroute.cli.logs import LogSettings, log_options
from skyroute.cli.options import CONTEXT, examples, metrics_option, port_option, settings_option

DATA: Final = "skyroute-data"
REPLICAS_MAX: Final = 9


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "skyroute up",
        "skyroute up --replicas 3                 # a controller, and a group of three brokers that survives kill -9",
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
@click.option(
    "--replicas",
    metavar="N",
    type=click.IntRange(1, REPLICAS_MAX),
    default=1,
    show_default=True,
    help="Brokers of the group, one process each. With 2 or more, a controller replaces a dead master.",
)
@port_option("--controller-port", "controller (with --replicas)", 9878)
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
    replicas: int,
    controller_port: int,
    advertise: str | None,
    options: dict[str, str],
    metrics_port: int | None,
    log_settings: LogSettings,
    *,
    no_console: bool,
) -> None:
    """Run a name server, a broker and a web console in one process.

    With --replicas 3, a group of three brokers runs in processes of their own, on ports PORT, PORT + 10 and PORT + 20,
    with a controller. A send waits for all replicas in sync, so no message is lost when the master is killed: another
    broker becomes master, and the dead one is started again and follows.

    Settings of -D apply to all brokers. With --metrics-port PORT, the name server serves metrics on PORT, brokers on
    PORT + 1 and up, and the controller on the port after them. Stops on ctrl-C.
    """
    if advertise and replicas > 1 and "advertisedPort" in advertise_option_settings(advertise):
        raise click.BadParameter("with --replicas, give HOST: each broker has its own port", param_hint="--advertise")
    from skyroute.cli.all_in_one import UpOptions, run_cluster

    run_cluster(
        UpOptions(
            folder=data.absolute(),
            port=port,
            ns_port=ns_port,
            controller_port=controller_port,
            bind=bind,
            console_port=None if no_console else console_port,
            replicas=replicas,
            advertise=advertise,
            settings=options,
            metrics_port=metrics_port,
            logs=log_settings,
        )
    )
