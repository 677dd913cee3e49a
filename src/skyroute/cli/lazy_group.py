"""Command groups that import a command when it is called: help and completion stay fast."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyCommand(NamedTuple):
    """Where a command is defined, and its summary for lists of commands."""

    module: str
    attribute: str
    summary: str


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def __init__(self, *args: Any, lazy_commands: Mapping[str, LazyCommand], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy_commands = lazy_commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._lazy_commands:
            return None
        module, attribute, _ = self._lazy_commands[cmd_name]
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._lazy_commands and not name.startswith("-") and not ctx.resilient_parsing:
            meant = self._find_similar(ctx, name)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {ctx.command_path} {meant}?" if meant else ""))
        return super().resolve_command(ctx, args)

    def _find_similar(self, ctx: click.Context, name: str) -> str | None:
        """Return a command of this group with a similar name, or one of a group in it with this name."""
        from difflib import get_close_matches

        if close := get_close_matches(name, self._lazy_commands, n=1):
            return close[0]
        for group_name in self._lazy_commands:
            group = self.get_command(ctx, group_name)
            if isinstance(group, LazyGroup) and name in group.list_commands(ctx):
                return f"{group_name} {name}"
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.summary) for name, command in self._lazy_commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=command.summary) for name, command in self._lazy_commands.items()]
        # click.Group's own method would import every command for its summary.
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(item for item in found if item.value.startswith(incomplete)), *options]
