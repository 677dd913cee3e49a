"""The flags that several commands have. Nothing here imports a server: help and completion come at once."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


def _as_pairs(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not key.strip() or not equals:
            raise click.BadParameter(f"{value!r} is not of the form KEY=VALUE")
        pairs[key.strip()] = text
    return pairs


def settings_option(command: F) -> F:
    """Add `-D KEY=VALUE`."""
    return click.option(
        "-D",
        "options",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_as_pairs,
        help="One setting; it wins over the file. May be given many times.",
    )(command)


def metrics_option(command: F) -> F:
    """Add `--metrics-port`."""
    return click.option(
        "--metrics-port",
        metavar="PORT",
        type=click.IntRange(0, 65535),
        help="Where to serve /metrics, /livez and /readyz: metricsPort. Needs the extra metrics; 0 turns it off.",
    )(command)


def name_servers_option(command: F) -> F:
    """Add `-n`, for commands that look at a cluster, and by default at the one on this machine."""
    return click.option(
        "-n",
        "--namesrvAddr",
        "name_servers",
        metavar="HOST:PORT[;HOST:PORT]",
        envvar="NAMESRV_ADDR",
        show_envvar=True,
        default="127.0.0.1:9876",
        show_default=True,
        help="The name servers of the cluster, Apache's or ours.",
    )(command)
