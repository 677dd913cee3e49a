"""`skyroute completion`: what shells need to complete our words."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from skyroute.cli.help import examples

SHELLS: Final = ("bash", "zsh", "fish")
VARIABLE: Final = "_SKYROUTE_COMPLETE"
"""What click looks for: set by the shell, with the words so far, when somebody presses tab."""


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
    """Print what makes a shell complete commands and options.

    It completes `skyroute`, where that is on the PATH; a shell that is open already has to read it once.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "skyroute", VARIABLE).source())
