"""`skyroute nameserver`: takes the options of mqnamesrv."""

import os
from functools import partial
from typing import TYPE_CHECKING

import click

from skyroute.cli.logs import LogSettings, log_options
from skyroute.cli.options import CONTEXT, examples, metrics_option, secure_option, settings_option

if TYPE_CHECKING:
    from skyroute.controller.config import ControllerConfig
    from skyroute.controller.server import ControllerServer
    from skyroute.nameserver.server import NameServer


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "skyroute nameserver -c namesrv.properties",
        "skyroute nameserver -D listenPort=9877 -D needWaitForService=true --metrics-port 9901",
        "skyroute nameserver -D enableControllerInNamesrv=true -D controllerDLegerPeers=n0-10.0.0.1:9878",
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
    show_envvar=True,
    help="With clusterTest=true: name servers to query for unknown routes.",
)
@click.option("-c", "--configFile", "config_file", metavar="FILE", help="Properties file with the settings.")
@click.option("-p", "--printConfigItem", "print_config", is_flag=True, help="Print all effective settings and exit.")
@settings_option
@metrics_option
@secure_option
@log_options("info")
def nameserver(
    upstream: str,
    config_file: str | None,
    options: dict[str, str],
    metrics_port: int | None,
    log_settings: LogSettings,
    *,
    secure: bool,
    print_config: bool,
) -> None:
    """Run a name server for RocketMQ brokers and clients.

    Takes the options and the properties file of mqnamesrv. With enableControllerInNamesrv=true it also runs a
    controller. Stops on SIGTERM and SIGINT.
    """
    from skyroute.cli.server_process import print_line, run, server_command
    from skyroute.nameserver.config import NameServerConfig
    from skyroute.nameserver.server import NameServer

    with server_command("nameserver", log_settings):
        if metrics_port is not None:
            options["metricsPort"] = str(metrics_port)
        if secure:
            options["secure"] = "true"
        config = NameServerConfig.load(config_file, options=options, environment=os.environ)
        if config_file is not None:
            print_line(f"load config properties file OK, {config_file}")
        controller = _load_controller(config_file, options) if config.controller_enabled else None
        if print_config:
            lines = {*config.render_all().splitlines(), *(controller.render_all().splitlines() if controller else ())}
            print_line("\n".join(sorted(lines)))
            return
        server = NameServer(
            config, upstream=tuple(address.strip() for address in upstream.split(";") if address.strip())
        )
        run(
            "name server",
            [config] if controller is None else [config, controller],
            [server] if controller is None else [server, _controller_server(controller, server)],
            lambda: print_line(
                f"The Name Server boot success. serializeType={config.serialize_type}, address {server.address}"
            ),
        )


def _load_controller(config_file: str | None, options: dict[str, str]) -> "ControllerConfig":
    from skyroute.controller.config import EmbeddedControllerConfig

    return EmbeddedControllerConfig.load(config_file, options=options, environment=os.environ)


def _controller_server(config: "ControllerConfig", name_server: "NameServer") -> "ControllerServer":
    from skyroute.cli.controller_journal import record_in
    from skyroute.controller.server import ControllerServer

    return ControllerServer(config, record=partial(record_in, name_server), find_enforcer=lambda: name_server.enforcer)
