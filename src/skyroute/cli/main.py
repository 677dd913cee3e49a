"""The command `skyroute`."""

import click

from skyroute import __version__
from skyroute.cli.lazy import Later, LazyGroup

_COMMANDS = {
    "up": Later("skyroute.cli.up", "up", "Run a name server and a broker in one process."),
    "nameserver": Later(
        "skyroute.cli.nameserver", "nameserver", "Run a name server for brokers and clients of RocketMQ."
    ),
    "broker": Later("skyroute.cli.broker", "broker", "Run a broker, which keeps messages, for clients of RocketMQ."),
    "admin": Later(
        "skyroute.cli.admin.commands",
        "admin",
        "Look at a cluster and change it, as mqadmin does.",
    ),
    "journal": Later(
        "skyroute.cli.journal.commands",
        "journal",
        "Read what a name server has recorded: every change of a route.",
    ),
    "pipeline": Later(
        "skyroute.cli.pipeline.commands",
        "pipeline",
        "Ask the cluster's history and its topics, with Spark.",
    ),
}


@click.group(cls=LazyGroup, later=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="skyroute", message="%(prog)s %(version)s")
def main() -> None:
    """RocketMQ's system in Python."""
