"""`admin_command` makes a command of an async function: shared options, output as text or JSON, errors in one line."""

import asyncio
import functools
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import click

from skyroute.cli.admin.output import print_json
from skyroute.cli.options import CONTEXT, client_options, examples
from skyroute.cli.progress_line import ProgressLine
from skyroute.client.admin import Admin
from skyroute.client.admin.base import Failures
from skyroute.client.session.session import ClientArguments
from skyroute.errors import SkyrouteError

Output = tuple[str, object] | tuple[str, object, Failures] | tuple[str, object, Failures, int]
"""A command's result: text, JSON value, errors by server if some failed, and its exit code if not derived from them."""

Function = TypeVar("Function", bound=Callable[..., Any])

logging.getLogger("skyroute").addHandler(logging.NullHandler())  # commands print errors themselves
logging.getLogger("skyroute.client.admin").addHandler(logging.lastResort or logging.NullHandler())  # incomplete results

Work = Callable[..., Awaitable[Output]] | Callable[..., AsyncIterator[Output]]


def admin_command(
    name: str, example: str = "", *, failed: int = 1, asks_controllers: bool = False
) -> Callable[[Work], click.Command]:
    """Make a command of an async function `(admin, **options) -> Output`; its docstring is the help.

    An async generator prints each of its outputs at once, as one JSON value per line with --json.

    Args:
        name: Name of the command, as in mqadmin.
        example: Options of the example in the help.
        failed: Exit code if a SkyrouteError is raised, or the output names servers that failed.
        asks_controllers: The command has an option `controllers`, and works without name servers.
    """

    def decorate(function: Work) -> click.Command:
        @functools.wraps(function)
        def run(
            name_servers: str | None,
            client: ClientArguments,
            tenant: str | None,
            *,
            as_json: bool,
            **options: Any,
        ) -> None:
            client["namespace"] = tenant
            if asks_controllers and name_servers is None:
                name_servers = options["controllers"]  # a session needs an address; no name server is asked
            elif name_servers is None and not os.environ.get("NAMESRV_ADDR"):
                name_servers = options.get("broker")  # as with mqadmin, -b is enough for a request to one server

            async def work() -> int:
                async with Admin(name_servers, **client) as admin:
                    outcome = function(admin, **options)
                    if not isinstance(outcome, AsyncIterator):
                        with ProgressLine("waiting for the cluster", lines=False):
                            output = await outcome
                        return _print(name, output, failed, as_json=as_json)
                    code = 0
                    async for each in outcome:
                        code = max(code, _print(name, each, failed, as_json=as_json, in_one_line=True))
                    return code

            try:
                code = asyncio.run(work())
            except SkyrouteError as error:
                _print_error(name, error)
                code = failed
            if code:
                sys.exit(code)

        command: Callable[..., None] = run
        for option in reversed(_SHARED):
            command = option(command)
        name_server = "" if asks_controllers or example.startswith("-n") else " -n 127.0.0.1:9876"
        epilog = examples(f"skyroute admin {name}{name_server} {example}".rstrip())
        return click.command(name, context_settings=CONTEXT, epilog=epilog)(command)

    return decorate


def _print(name: str, output: Output, failed: int, *, as_json: bool, in_one_line: bool = False) -> int:
    """Print an output and return the exit code."""
    text, value = output[:2]
    if as_json:
        print_json(value, in_one_line=in_one_line)
    elif text:
        click.echo(text)
    failures: Failures = output[2] if len(output) > 2 else {}
    for where, error in failures.items():
        _print_error(name, f"{where}: {error}")
    return failed if failures else output[3] if len(output) > 3 else 0


def _print_error(name: str, error: object) -> None:
    # A server's remark may have several lines.
    click.echo(f"skyroute admin {name}: {' '.join(str(error).split())}", err=True)


class _Either(click.Option):
    """`-b` or `-c`: the two options exclude each other."""

    needed = True

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        given = ("broker" in opts) + ("cluster" in opts)
        if given > 1 or (self.needed and not given):
            raise click.UsageError("Give either -b (a broker's address) or -c (a cluster).", ctx)
        return super().handle_parse_result(ctx, opts, args)


class _EitherOrNone(_Either):
    needed = False


cluster_or_parent = click.option("-c", "--cluster", metavar="NAME", help="Cluster, or parent topic of a light queue.")


def broker_or_cluster(long_cluster: str = "--clusterName", *, needed: bool = True) -> Callable[[Function], Function]:
    """Add `-b` and `-c`: exactly one must be given, or, if not `needed`, at most one."""
    kind = _Either if needed else _EitherOrNone
    broker = click.option("-b", "--brokerAddr", "broker", cls=kind, metavar="HOST:PORT", help="Address of a broker.")
    cluster = click.option("-c", long_cluster, "cluster", cls=kind, metavar="NAME", help="Brokers of this cluster.")
    return lambda function: broker(cluster(function))


_SHARED = (
    click.option(
        "-n",
        "--namesrvAddr",
        "name_servers",
        metavar="HOST:PORT[;HOST:PORT]",
        envvar="NAMESRV_ADDR",
        show_envvar=True,
        help="Name servers of the cluster.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
    client_options,
    click.option("--tenant", metavar="NAMESPACE", help="Use topic and group names of this namespace."),
)
