"""Commands that are imported only when they are asked for, so that help comes at once."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyCommand(NamedTuple):
    """A command that has not been imported yet. The summary is here, because listing must not import."""

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """A group that knows its commands by name and summary alone until one is called."""

    def __init__(self, *args: Any, later: Mapping[str, LazyCommand], **kwargs: Any) -> None:
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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._later and not name.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches  # noqa: PLC0415 - only who has mistyped needs it

            close = get_close_matches(name, self._later, n=1)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {close[0]}?" if close else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, later.summary) for name, later in self._later.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only who presses tab needs it

        found = [CompletionItem(name, help=later.summary) for name, later in self._later.items()]
        # A group of click's own would import every command for its summary.
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(item for item in found if item.value.startswith(incomplete)), *options]
