"""`skyroute nameserver`: the flags of Java's mqnamesrv."""

import os

import click

from skyroute.cli.flags import CONTEXT, metrics_option, settings_option
from skyroute.cli.help import examples
from skyroute.cli.logs import LogSettings, log_options


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "skyroute nameserver -c namesrv.properties",
        "skyroute nameserver -D listenPort=9877 -D needWaitForService=true --metrics-port 9878",
        "skyroute nameserver -c namesrv.properties -p",
    ),
)
@click.option(
    "-n",
    "--namesrvAddr",
    "upstream",
    metavar="HOST:PORT;...",
    envvar="NAMESRV_ADDR",
    default="",
    help="Name servers to ask for routes that are not known here, where clusterTest is set. "
    "Defaults to the variable NAMESRV_ADDR.",
)
@click.option("-c", "--configFile", "config_file", metavar="FILE", help="Properties file with settings.")
@click.option("-p", "--printConfigItem", "print_config", is_flag=True, help="Print all effective settings and exit.")
@settings_option
@metrics_option
@log_options("info")
def nameserver(
    upstream: str,
    config_file: str | None,
    options: dict[str, str],
    metrics_port: int | None,
    log_settings: LogSettings,
    *,
    print_config: bool,
) -> None:
    """Run a name server for brokers and clients of RocketMQ.

    It takes the flags and the properties file of mqnamesrv, and stops on SIGTERM and SIGINT.
    """
    from skyroute.cli.serve import process, run, tell  # noqa: PLC0415 - help and completion need no server
    from skyroute.nameserver.config import NameServerConfig  # noqa: PLC0415 - as above
    from skyroute.nameserver.server import NameServer  # noqa: PLC0415 - as above

    with process("nameserver", log_settings):
        if metrics_port is not None:
            options["metricsPort"] = str(metrics_port)
        config = NameServerConfig.load(config_file, options=options, environment=os.environ)
        if config_file is not None:
            tell(f"load config properties file OK, {config_file}")
        if print_config:
            tell(config.render_all().rstrip("\n"))
            return
        server = NameServer(
            config, upstream=tuple(address.strip() for address in upstream.split(";") if address.strip())
        )
        run(
            "name server",
            [config],
            [server],
            lambda: tell(
                f"The Name Server boot success. serializeType={config.serialize_type}, address {server.address}"
            ),
        )
