"""Commands that are imported only when they are asked for, so that help comes at once."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click


class Later(NamedTuple):
    """A command that has not been imported yet. The summary is here, because listing must not import."""

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """A group that knows its commands by name and summary alone until one is called."""

    def __init__(self, *args: Any, later: Mapping[str, Later], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._later = later

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._later)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._later:
            return None
        module, attribute, _ = self._later[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, later.summary) for name, later in self._later.items()])
