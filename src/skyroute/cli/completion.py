"""`skyroute completion`: the script that makes a shell complete `skyroute` commands."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from skyroute.cli.options import examples

SHELLS: Final = ("bash", "zsh", "fish")
VARIABLE: Final = "_SKYROUTE_COMPLETE"
"""Environment variable that the script sets, and click reads, when tab is pressed."""


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        'eval "$(skyroute completion bash)"                                  # in ~/.bashrc',
        'eval "$(skyroute completion zsh)"                                   # in ~/.zshrc, after compinit',
        "skyroute completion fish > ~/.config/fish/completions/skyroute.fish",
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the shell completion script.

    It completes commands and options of `skyroute`, which must be on the PATH. Open shells need to load it once.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "skyroute", VARIABLE).source())
