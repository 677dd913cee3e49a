"""`skyroute controller`: takes the options of mqcontroller."""

import os

import click

from skyroute.cli.logs import LogSettings, log_options
from skyroute.cli.options import CONTEXT, examples, metrics_option, secure_option, settings_option


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "skyroute controller -c controller.conf",
        "skyroute controller -D controllerDLegerPeers=n0-10.0.0.1:9878 -D controllerStorePath=/var/lib/controller",
        "skyroute controller -c controller.conf -p",
    ),
)
@click.option("-c", "--configFile", "config_file", metavar="FILE", help="Properties file with the settings.")
@click.option("-p", "--printConfigItem", "print_config", is_flag=True, help="Print all effective settings and exit.")
@settings_option
@metrics_option
@secure_option
@log_options("info")
def controller(
    config_file: str | None,
    options: dict[str, str],
    metrics_port: int | None,
    log_settings: LogSettings,
    *,
    secure: bool,
    print_config: bool,
) -> None:
    """Run a controller that elects the masters of broker groups.

    Takes the options and the properties file of mqcontroller. Its state is a file on this machine, or in etcd with
    etcdEndpoints, for several controllers. While none runs, brokers keep their roles. Stops on SIGTERM and SIGINT.
    """
    from skyroute.cli.controller_journal import ControllerJournal
    from skyroute.cli.server_process import print_line, run, server_command
    from skyroute.controller.config import ControllerConfig
    from skyroute.controller.server import ControllerServer

    with server_command("controller", log_settings):
        if metrics_port is not None:
            options["metricsPort"] = str(metrics_port)
        if secure:
            options["secure"] = "true"
        config = ControllerConfig.load(config_file, options=options, environment=os.environ)
        if config_file is not None:
            print_line(f"load config properties file OK, {config_file}")
        if print_config:
            print_line(config.render_all().rstrip("\n"))
            return
        journal = ControllerJournal(config.state_file.parent, config.advertised_address)
        server = ControllerServer(config, record=journal.record if config.journal_enabled else None)
        run(
            "controller",
            [config],
            [journal, server] if config.journal_enabled else [server],
            lambda: print_line(
                f"The Controller Server boot success. serializeType={config.serialize_type}, address {server.address}"
            ),
        )
