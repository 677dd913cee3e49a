"""The command `skyroute`."""

import click

from skyroute import __version__
from skyroute.cli.lazy import Later, LazyGroup

_COMMANDS = {
    "nameserver": Later("skyroute.cli.serve", "nameserver", "Run a name server for brokers and clients of RocketMQ."),
    "admin": Later(
        "skyroute.cli.admin.commands",
        "admin",
        "Look at a cluster and change it, as mqadmin does.",
    ),
}


@click.group(cls=LazyGroup, later=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="skyroute", message="%(prog)s %(version)s")
def main() -> None:
    """RocketMQ's system in Python."""
