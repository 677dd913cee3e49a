"""`skyroute broker`: takes the options of mqbroker."""

import os
from typing import TYPE_CHECKING, Final

import click

from skyroute.cli.logs import LogSettings, log_options
from skyroute.cli.options import CONTEXT, examples, metrics_option, secure_option, settings_option

if TYPE_CHECKING:
    from skyroute.broker.broker import Broker

_IMPORTANT: Final = frozenset(
    {
        *("brokerClusterName", "brokerName", "brokerId", "brokerIP1", "brokerRole", "namesrvAddr", "bindAddress"),
        *("listenPort", "storePathRootDir", "flushDiskType", "fileReservedTime", "deleteWhen", "diskMaxUsedSpaceRatio"),
        *("autoCreateTopicEnable", "autoCreateSubscriptionGroup", "brokerPermission", "maxMessageSize"),
        *("rejectTransactionMessage", "transactionTimeOut", "transactionCheckMax", "transactionCheckInterval"),
    }
)


def advertise_option_settings(advertise: str | None) -> dict[str, str]:
    """Return the settings of `--advertise HOST` or `--advertise HOST:PORT`.

    Raises:
        click.BadParameter: the port is invalid.
    """
    if not advertise:
        return {}
    host, colon, port = advertise.rpartition(":")
    # An IPv6 address contains colons, and has brackets only before a port.
    if not colon or (":" in host and not host.endswith("]")):
        return {"brokerIP1": advertise.strip("[]")}
    if not (port.isascii() and port.isdigit()) or not 0 < int(port[:6]) < 65536:
        raise click.BadParameter(f"{advertise!r} is neither HOST nor HOST:PORT", param_hint="--advertise")
    return {"brokerIP1": host.strip("[]"), "advertisedPort": port}


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "skyroute broker -n 127.0.0.1:9876 -D storePathRootDir=/var/lib/skyroute/broker",
        'skyroute broker -c broker.conf -n "10.0.0.1:9876;10.0.0.2:9876" --advertise 10.0.0.5',
        "skyroute broker -c broker.conf -m",
    ),
)
@click.option(
    "-n",
    "--namesrvAddr",
    "name_servers",
    metavar="HOST:PORT;...",
    help="Name servers to register with. Default: the setting namesrvAddr, else the variable NAMESRV_ADDR.",
)
@click.option("-c", "--configFile", "config_file", metavar="FILE", help="Properties file with the settings.")
@click.option("-p", "--printConfigItem", "print_config", is_flag=True, help="Print all effective settings and exit.")
@click.option("-m", "--printImportantConfig", "print_important", is_flag=True, help="Print the main settings and exit.")
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    help="Address that clients connect to (setting brokerIP1). Default: the interface to the name servers.",
)
@settings_option
@metrics_option
@secure_option
@log_options("info")
def broker(
    name_servers: str | None,
    config_file: str | None,
    advertise: str | None,
    options: dict[str, str],
    metrics_port: int | None,
    log_settings: LogSettings,
    *,
    secure: bool,
    print_config: bool,
    print_important: bool,
) -> None:
    """Run a broker that stores and delivers messages.

    Takes the options and the properties file of mqbroker. Stops on SIGTERM and SIGINT.
    """
    from skyroute.broker.broker import Broker
    from skyroute.broker.config import BrokerConfig
    from skyroute.cli.server_process import print_line, run, server_command

    with server_command("broker", log_settings):
        options |= advertise_option_settings(advertise)
        if name_servers:
            options["namesrvAddr"] = name_servers
        if metrics_port is not None:
            options["metricsPort"] = str(metrics_port)
        if secure:
            options["secure"] = "true"
        config = BrokerConfig.load(config_file, options=options, environment=os.environ)
        if config_file is not None:
            print_line(f"load config properties file OK, {config_file}")
        if print_config or print_important:
            lines = config.render_all().splitlines()
            print_line("\n".join(line for line in lines if print_config or line.partition("=")[0] in _IMPORTANT))
            return
        server = Broker(config)
        run("broker", [config], [server], lambda: print_line(_boot_line(server)))


def _boot_line(server: "Broker") -> str:
    config = server.config
    name_servers = f" and name server is {';'.join(config.name_servers)}" if config.name_servers else ""
    return (
        f"The broker[{config.broker_name}, {server.address}] boot success. "
        f"serializeType={config.serialize_type}{name_servers}"
    )
