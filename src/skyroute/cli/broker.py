"""`skyroute broker`: the flags of Java's mqbroker."""

import os
from typing import TYPE_CHECKING, Final

import click

from skyroute.cli.flags import CONTEXT, metrics_option, settings_option
from skyroute.cli.help import examples
from skyroute.cli.logs import LogSettings, log_options

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
    """The settings that `--advertise HOST` or `--advertise HOST:PORT` stands for.

    Raises:
        click.BadParameter: the port is none.
    """
    if not advertise:
        return {}
    host, colon, port = advertise.rpartition(":")
    # An address of version 6 has colons of its own, and brackets only where a port follows.
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
    help="Name servers to register at. Defaults to the setting namesrvAddr, and that to the variable NAMESRV_ADDR.",
)
@click.option("-c", "--configFile", "config_file", metavar="FILE", help="Properties file with settings: broker.conf.")
@click.option("-p", "--printConfigItem", "print_config", is_flag=True, help="Print all effective settings and exit.")
@click.option("-m", "--printImportantConfig", "print_important", is_flag=True, help="Print the main ones and exit.")
@click.option(
    "--advertise",
    metavar="HOST[:PORT]",
    help="The address that clients are told, where it is not the one we would find out: brokerIP1.",
)
@settings_option
@metrics_option
@log_options("info")
def broker(
    name_servers: str | None,
    config_file: str | None,
    advertise: str | None,
    options: dict[str, str],
    metrics_port: int | None,
    log_settings: LogSettings,
    *,
    print_config: bool,
    print_important: bool,
) -> None:
    """Run a broker that stores and delivers messages.

    It takes the flags and the properties file of mqbroker, and stops on SIGTERM and SIGINT.
    """
    from skyroute.broker.broker import Broker  # noqa: PLC0415 - help and completion need no server
    from skyroute.broker.config import BrokerConfig  # noqa: PLC0415 - as above
    from skyroute.cli.serve import process, run, tell  # noqa: PLC0415 - as above

    with process("broker", log_settings):
        options |= advertise_option_settings(advertise)
        if name_servers:
            options["namesrvAddr"] = name_servers
        if metrics_port is not None:
            options["metricsPort"] = str(metrics_port)
        config = BrokerConfig.load(config_file, options=options, environment=os.environ)
        if config_file is not None:
            tell(f"load config properties file OK, {config_file}")
        if print_config or print_important:
            lines = config.render_all().splitlines()
            tell("\n".join(line for line in lines if print_config or line.partition("=")[0] in _IMPORTANT))
            return
        server = Broker(config)
        run("broker", [config], [server], lambda: tell(_boot_line(server)))


def _boot_line(server: "Broker") -> str:
    config = server.config
    found_at = f" and name server is {';'.join(config.name_servers)}" if config.name_servers else ""
    return (
        f"The broker[{config.broker_name}, {server.address}] boot success. "
        f"serializeType={config.serialize_type}{found_at}"
    )
