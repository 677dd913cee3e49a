"""`skyroute console`: the web console of a cluster."""

import sys
from importlib.util import find_spec
from pathlib import Path

import click

from skyroute.cli.logs import LogSettings, log_options
from skyroute.cli.options import CONTEXT, client_options, examples, name_servers_option, port_option
from skyroute.cli.server_process import print_line, run, server_command
from skyroute.client.session.session import ClientArguments
from skyroute.remoting.errors import BindError
from skyroute.settings.networks import Networks, parse_networks


def missing_extra() -> str | None:
    """Return how to install the console's packages if they are missing, else None."""
    if all(find_spec(name) for name in ("starlette", "jinja2", "uvicorn")):
        return None
    return "the console needs packages that are not installed: pip install 'skyroute[console]'"


def _networks(_context: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> Networks:
    try:
        return parse_networks(",".join(values))
    except ValueError as error:
        raise click.BadParameter(f"{error} (expected addresses or networks like 10.0.0.5 or 10.0.0.0/8)") from None


@click.group(
    context_settings=CONTEXT,
    invoke_without_command=True,
    epilog=examples(
        "skyroute console -n 127.0.0.1:9876",
        "skyroute console user alice --role operator",
        'skyroute console -n "10.0.0.1:9876;10.0.0.2:9876" --host 0.0.0.0',
    ),
)
@name_servers_option
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on.")
@port_option("--port", "console", 8088)
@click.option(
    "--data",
    metavar="FOLDER",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of users and audit log. Default: ~/skyroute/console.",
)
@click.option("--sign-in/--no-sign-in", default=None, help="Require sign-in. Default: if other machines can connect.")
@click.option("--name", "names", metavar="HOST", multiple=True, help="Another host name of this console; repeatable.")
@click.option(
    "--trusted-proxy",
    "trusted_proxies",
    metavar="ADDRESS",
    multiple=True,
    callback=_networks,
    help="Address or network of a proxy whose X-Forwarded-For, -Proto and -Host headers are used; repeatable.",
)
@click.option(
    "--user-header",
    metavar="NAME",
    help="Header in which a proxy, such as one for OIDC, names the signed-in user. Needs --user-header-from.",
)
@click.option(
    "--user-header-from",
    "user_header_proxies",
    metavar="ADDRESS",
    multiple=True,
    callback=_networks,
    help="Address or network of a proxy whose --user-header is used; repeatable.",
)
@click.option(
    "--journal",
    "journals",
    metavar="[NAME=]FOLDER",
    multiple=True,
    help="Journal of a name server on this machine (its memoryPath), for the route history page; repeatable.",
)
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Report written by skyroute pipeline report, to link to from the route history page.",
)
@click.option(
    "--access-log",
    "access_logs",
    metavar="FILE",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Audit log of a name server or broker on this machine, for the audit page; repeatable.",
)
@click.option(
    "--access-rules",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Rules file of a server on this machine: its users can sign in, with roles by their policies.",
)
@click.option(
    "--access-cluster",
    metavar="NAME",
    default="DefaultCluster",
    show_default=True,
    help="With --access-rules: Get on this cluster makes a viewer, Update an operator.",
)
@click.option(
    "--controller",
    "controllers",
    metavar="HOST:PORT[;HOST:PORT]",
    help="Controllers of the cluster, for the page of masters and sync state sets.",
)
@click.option("--certificate", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="TLS certificate.")
@click.option("--key", metavar="FILE", type=click.Path(dir_okay=False, path_type=Path), help="TLS private key.")
@client_options
@log_options("warning")
@click.pass_context
def console(
    context: click.Context,
    *,
    name_servers: str,
    host: str,
    port: int,
    data: Path | None,
    sign_in: bool | None,
    names: tuple[str, ...],
    trusted_proxies: Networks,
    user_header: str | None,
    user_header_proxies: Networks,
    journals: tuple[str, ...],
    report: Path | None,
    access_logs: tuple[Path, ...],
    access_rules: Path | None,
    access_cluster: str,
    controllers: str | None,
    certificate: Path | None,
    key: Path | None,
    client: ClientArguments,
    log_settings: LogSettings,
) -> None:
    """Serve the web console of a cluster.

    The cluster may be of Apache RocketMQ or Skyroute. `skyroute console user` adds users. Stops on SIGTERM and SIGINT.
    """
    if context.invoked_subcommand is not None:
        return
    missing = missing_extra()
    if missing:
        raise click.ClickException(missing)
    if (user_header is not None) != bool(user_header_proxies.networks):
        raise click.UsageError("--user-header and --user-header-from need each other.")
    from skyroute.console.config import ConsoleConfig, default_folder
    from skyroute.console.server import Console

    with server_command("console", log_settings):
        served = Console(
            ConsoleConfig(
                name_servers=name_servers,
                host=host,
                port=port,
                folder=data or default_folder(),
                sign_in=sign_in,
                names=names,
                trusted_proxies=trusted_proxies,
                user_header=user_header,
                user_header_proxies=user_header_proxies,
                journals=dict(map(_journal, journals)),
                report=report,
                access_logs=access_logs,
                access_rules=access_rules,
                access_cluster=access_cluster,
                controllers=controllers,
                certificate=certificate,
                key=key,
                client=client,
            )
        )
        try:
            run("console", [], [served], lambda: print_line(f"Console      {served.url}\nReady; ctrl-C stops it."))
        except BindError as error:
            print(f"skyroute console: {error}", file=sys.stderr)
            sys.exit(1)


def _journal(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    return (name, Path(folder)) if equals else (Path(text).name, Path(text))


@console.command()
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "operator"]), default="viewer", show_default=True, help="Role.")
@click.option("--remove", is_flag=True, help="Remove the user.")
@click.option(
    "--data", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path), help="The console's folder."
)
@click.option("--password-stdin", is_flag=True, help="Read the password from standard input.")
def user(name: str, role: str, data: Path | None, *, remove: bool, password_stdin: bool) -> None:
    """Add a user, change password and role of a user, or remove a user."""
    from skyroute.console.access.users import Role, make_user, read_users, write_users
    from skyroute.console.config import USERS_NAME, default_folder
    from skyroute.console.errors import UsersError

    path = (data or default_folder()) / USERS_NAME
    try:
        users = read_users(path)
        if remove:
            if users.pop(name, None) is None:
                raise click.ClickException(f"no user {name} in {path}")
        else:
            password = (
                sys.stdin.readline().rstrip("\n")
                if password_stdin
                else click.prompt(f"Password for {name}", hide_input=True, confirmation_prompt=True)
            )
            users[name] = make_user(name, Role(role), password)
        write_users(path, users)
    except UsersError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{name} {'removed' if remove else f'may sign in as {role}'}: {path}")
