"""What every admin command has: how to reach the cluster, how to print, and how to fail in one line."""

import asyncio
import functools
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar

import click

from skyroute.cli.admin.output import print_json
from skyroute.cli.flags import CONTEXT
from skyroute.cli.help import examples
from skyroute.cli.progress import Progress
from skyroute.client.admin import Admin
from skyroute.client.admin.base import Failures
from skyroute.client.session.session import ClientArguments
from skyroute.client.session.signing import Credentials
from skyroute.errors import SkyrouteError

Answer = tuple[str, object] | tuple[str, object, Failures] | tuple[str, object, Failures, int]
"""What a command says: a text for people, a value for programs, which servers failed, if some did, and its exit code,
if that does not follow."""

Function = TypeVar("Function", bound=Callable[..., Any])

logging.getLogger("skyroute").addHandler(logging.NullHandler())  # a command says itself, in one line, what failed
logging.getLogger("skyroute.client.admin").addHandler(logging.lastResort or logging.NullHandler())  # and what it lacks

Work = Callable[..., Awaitable[Answer]] | Callable[..., AsyncIterator[Answer]]


def admin_command(name: str, shown: str = "", *, failed: int = 1) -> Callable[[Work], click.Command]:
    """Make a command of an async function `(admin, **options) -> (text, value)`, with the options that all share.

    `shown` are the words of the example below its help.

    A third member of the answer names servers that failed: one line each on standard error, and exit code `failed`. So
    is a SkyrouteError it raises. An async generator's answers are printed as they come, in JSON one to a line. Help is
    the function's docstring.
    """

    def decorate(function: Work) -> click.Command:
        @functools.wraps(function)
        def run(
            name_servers: str | None,
            access_key: str | None,
            secret_key: str | None,
            tenant: str | None,
            *,
            tls: bool,
            as_json: bool,
            **options: Any,
        ) -> None:
            client: ClientArguments = {"tls": tls, "namespace": tenant}
            if access_key:
                client["credentials"] = Credentials(access_key, secret_key or "")

            async def work() -> int:
                async with Admin(name_servers, **client) as admin:
                    outcome = function(admin, **options)
                    if not isinstance(outcome, AsyncIterator):
                        with Progress("waiting for the cluster", lines=False):
                            answer = await outcome
                        return _show(name, answer, failed, as_json=as_json)
                    code = 0
                    async for each in outcome:
                        code = max(code, _show(name, each, failed, as_json=as_json, in_a_line=True))
                    return code

            try:
                code = asyncio.run(work())
            except SkyrouteError as error:
                _complain(name, error)
                code = failed
            if code:
                sys.exit(code)

        command: Callable[..., None] = run
        for option in reversed(_SHARED):
            command = option(command)
        where = "" if shown.startswith("-n") else " -n 127.0.0.1:9876"
        epilog = examples(f"skyroute admin {name}{where} {shown}".rstrip())
        return click.command(name, context_settings=CONTEXT, epilog=epilog)(command)

    return decorate


def _show(name: str, answer: Answer, failed: int, *, as_json: bool, in_a_line: bool = False) -> int:
    """Print an answer, and return the exit code."""
    text, value = answer[:2]
    if as_json:
        print_json(value, in_a_line=in_a_line)
    elif text:
        click.echo(text)
    failures: Failures = answer[2] if len(answer) > 2 else {}
    for where, error in failures.items():
        _complain(name, f"{where}: {error}")
    return failed if failures else answer[3] if len(answer) > 3 else 0


def _complain(name: str, what: object) -> None:
    # A remark of a server may have several lines; an error is one.
    click.echo(f"skyroute admin {name}: {' '.join(str(what).split())}", err=True)


class _Either(click.Option):
    """One of the two ways to say which brokers are meant."""

    needed = True

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        given = ("broker" in opts) + ("cluster" in opts)
        if given > 1 or (self.needed and not given):
            raise click.UsageError("Give -b (a broker's address) or -c (a cluster), one of the two.", ctx)
        return super().handle_parse_result(ctx, opts, args)


class _EitherOrNone(_Either):
    needed = False


def broker_or_cluster(long_cluster: str = "--clusterName", *, needed: bool = True) -> Callable[[Function], Function]:
    """Add `-b` and `-c`: of the two exactly one must be given, or, if not `needed`, at most one."""
    kind = _Either if needed else _EitherOrNone
    broker = click.option(
        "-b", "--brokerAddr", "broker", cls=kind, metavar="HOST:PORT", help="The broker at this address."
    )
    cluster = click.option("-c", long_cluster, "cluster", cls=kind, metavar="NAME", help="The brokers of this cluster.")
    return lambda function: broker(cluster(function))


_SHARED = (
    click.option(
        "-n",
        "--namesrvAddr",
        "name_servers",
        metavar="HOST:PORT[;HOST:PORT]",
        envvar="NAMESRV_ADDR",
        show_envvar=True,
        help="The name servers.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs."),
    click.option("--access-key", metavar="KEY", envvar="ROCKETMQ_ACCESS_KEY", show_envvar=True, help="Who we are."),
    click.option("--secret-key", metavar="KEY", envvar="ROCKETMQ_SECRET_KEY", show_envvar=True, help="What proves it."),
    click.option("--tls", is_flag=True, help="Speak TLS, and check nobody's certificate."),
    click.option("--tenant", metavar="NAMESPACE", help="Call topics and groups what the tenant's applications do."),
)
