"""The command `skyroute`: a group whose parts are imported only when they are asked for, so that help comes at once."""

from importlib import import_module

import click

from skyroute import __version__

_COMMANDS = {
    "nameserver": (
        "skyroute.cli.serve",
        "nameserver",
        "Run a name server for brokers and clients of RocketMQ.",
    ),
}
"""Name to module, attribute and summary; the summary is here because listing it must not import the module."""


class LazyGroup(click.Group):
    """A group that knows its commands by name and summary alone until one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in _COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="skyroute", message="%(prog)s %(version)s")
def main() -> None:
    """RocketMQ's system in Python."""
