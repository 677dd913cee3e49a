"""The command `skyroute`."""

import click

from skyroute import __version__
from skyroute.cli.help import examples
from skyroute.cli.lazy import LazyCommand, LazyGroup

_COMMANDS = {
    "up": LazyCommand("skyroute.cli.up", "up", "Run a name server, a broker and a web console in one process."),
    "nameserver": LazyCommand(
        "skyroute.cli.nameserver", "nameserver", "Run a name server for brokers and clients of RocketMQ."
    ),
    "broker": LazyCommand("skyroute.cli.broker", "broker", "Run a broker that stores and delivers messages."),
    "console": LazyCommand("skyroute.cli.console", "console", "Serve a web page about a cluster, Apache's or ours."),
    "top": LazyCommand("skyroute.cli.top", "top", "Watch brokers, topics and groups on the terminal."),
    "admin": LazyCommand(
        "skyroute.cli.admin.commands",
        "admin",
        "Look at a cluster and change it, as mqadmin does.",
    ),
    "journal": LazyCommand(
        "skyroute.cli.journal.commands",
        "journal",
        "Read what a name server has recorded: every change of a route.",
    ),
    "store": LazyCommand("skyroute.cli.store", "store", "Check and repair the files of a stopped broker."),
    "pipeline": LazyCommand(
        "skyroute.cli.pipeline.commands",
        "pipeline",
        "Analyze route history and topics with Spark.",
    ),
    "completion": LazyCommand(
        "skyroute.cli.completion", "completion", "Print what makes a shell complete commands and options."
    ),
}


@click.group(
    cls=LazyGroup,
    later=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "skyroute up                                         # a cluster to try things on; ctrl-C stops it",
        'skyroute admin sendMessage -n 127.0.0.1:9876 -t Hello -p "My first message"',
        "skyroute admin printMsg -n 127.0.0.1:9876 -t Hello",
        "skyroute console -n 127.0.0.1:9876                  # the cluster in a web browser",
        "skyroute nameserver -c namesrv.properties           # as mqnamesrv, and skyroute broker as mqbroker",
        "skyroute COMMAND -h                                 # more about each",
    ),
)
@click.version_option(__version__, prog_name="skyroute", message="%(prog)s %(version)s")
def main() -> None:
    """RocketMQ's system in Python: name server, broker, console, and tools for clusters of Apache's or ours."""
