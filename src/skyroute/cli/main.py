"""The command `skyroute`."""

import click

from skyroute import __version__
from skyroute.cli.lazy_group import LazyCommand, LazyGroup
from skyroute.cli.options import examples

_COMMANDS = {
    "up": LazyCommand("skyroute.cli.up", "up", "Run a name server, a broker and a web console in one process."),
    "nameserver": LazyCommand(
        "skyroute.cli.nameserver", "nameserver", "Run a name server for RocketMQ brokers and clients."
    ),
    "broker": LazyCommand("skyroute.cli.broker", "broker", "Run a broker that stores and delivers messages."),
    "controller": LazyCommand(
        "skyroute.cli.controller", "controller", "Run a controller that elects the masters of broker groups."
    ),
    "console": LazyCommand("skyroute.cli.console", "console", "Serve the web console of a cluster."),
    "top": LazyCommand("skyroute.cli.top", "top", "Show live rates and lag of a cluster on the terminal."),
    "admin": LazyCommand(
        "skyroute.cli.admin.commands",
        "admin",
        "Inspect and change a cluster (mqadmin-compatible).",
    ),
    "journal": LazyCommand(
        "skyroute.cli.journal.commands",
        "journal",
        "Read the route history that a name server records.",
    ),
    "store": LazyCommand("skyroute.cli.store", "store", "Check and repair the files of a stopped broker."),
    "pipeline": LazyCommand(
        "skyroute.cli.pipeline.commands",
        "pipeline",
        "Analyze route history and topics with Spark.",
    ),
    "completion": LazyCommand("skyroute.cli.completion", "completion", "Print the shell completion script."),
}


@click.group(
    cls=LazyGroup,
    lazy_commands=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "skyroute up                                         # a local cluster for development; ctrl-C stops it",
        "skyroute up --replicas 3                            # with three brokers, one of which may be killed",
        'skyroute admin sendMessage -n 127.0.0.1:9876 -t Hello -p "My first message"',
        "skyroute admin printMsg -n 127.0.0.1:9876 -t Hello",
        "skyroute console -n 127.0.0.1:9876                  # the web console",
        "skyroute nameserver -c namesrv.properties           # replaces mqnamesrv; skyroute broker replaces mqbroker",
        "skyroute COMMAND -h                                 # help of a command",
    ),
)
@click.version_option(__version__, prog_name="skyroute", message="%(prog)s %(version)s")
def main() -> None:
    """RocketMQ in Python: name server, broker, web console, and tools for Apache RocketMQ and Skyroute clusters."""
