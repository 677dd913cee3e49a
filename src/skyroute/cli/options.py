"""Options and help texts that several commands share. Imports no server or client: help and completion stay fast."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from skyroute.client.session.session import ClientArguments
    from skyroute.client.session.signing import Credentials

F = TypeVar("F", bound=Callable[..., Any])

CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


def examples(*lines: str) -> str:
    """Return the epilog of a command's help: example commands, one per line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


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
        help="Set one setting; overrides the file. Repeatable.",
    )(command)


def metrics_option(command: F) -> F:
    """Add `--metrics-port`."""
    return click.option(
        "--metrics-port",
        metavar="PORT",
        type=click.IntRange(0, 65535),
        help="Serve /metrics, /livez and /readyz on this port (setting metricsPort); 0: off. Needs skyroute[metrics].",
    )(command)


def secure_option(command: F) -> F:
    """Add `--secure`."""
    return click.option(
        "--secure",
        is_flag=True,
        help="Refuse to start if other machines can connect without authentication or TLS (setting secure).",
    )(command)


def port_option(name: str, server: str, default: int) -> Callable[[F], F]:
    """Return an option for the port of a server."""
    text, ports = f"Port of the {server}; 0: any free port.", click.IntRange(0, 65535)
    return click.option(name, metavar="PORT", type=ports, default=default, show_default=True, help=text)


def name_servers_option(command: F) -> F:
    """Add `-n` with this machine's name server as the default."""
    return click.option(
        "-n",
        "--namesrvAddr",
        "name_servers",
        metavar="HOST:PORT[;HOST:PORT]",
        envvar="NAMESRV_ADDR",
        show_envvar=True,
        default="127.0.0.1:9876",
        show_default=True,
        help="Name servers of the cluster (Apache RocketMQ or Skyroute).",
    )(command)


def _credentials_in(path: str) -> "Credentials":
    from skyroute.client.session.signing import Credentials
    from skyroute.settings.errors import ConfigError

    try:
        return Credentials.from_file(path)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None


def client_options(command: F) -> Any:
    """Add options for credentials and TLS; the command gets them as `client`, arguments of a session."""

    @wraps(command)
    def call(
        *args: Any,
        access_key: str | None,
        secret_key: str | None,
        credentials_file: str | None,
        tls: bool,
        tls_ca: str | None,
        **others: Any,
    ) -> Any:
        client: ClientArguments = {"tls": tls}
        if tls_ca:
            from skyroute.remoting.tls_settings import TlsClientSettings

            client["tls"] = TlsClientSettings(enabled=True, auth_server=True, trust_cert_path=tls_ca)
        if access_key:
            from skyroute.client.session.signing import Credentials

            if not secret_key:
                raise click.UsageError("--access-key needs --secret-key, or ROCKETMQ_SECRET_KEY.")
            client["credentials"] = Credentials(access_key, secret_key)
        elif credentials_file:
            client["credentials"] = _credentials_in(credentials_file)
        return command(*args, client=client, **others)

    for option in (
        click.option(
            "--tls-ca",
            metavar="PATH",
            envvar="SKYROUTE_TLS_CA",
            show_envvar=True,
            help="Connect with TLS; certificates must be of an authority in this PEM file.",
        ),
        click.option("--tls", is_flag=True, help="Connect with TLS; certificates are not verified without --tls-ca."),
        click.option(
            "--credentials-file",
            metavar="PATH",
            envvar="SKYROUTE_CREDENTIALS_FILE",
            show_envvar=True,
            help="File with accessKey and secretKey, such as mqadmin's tools.yml.",
        ),
        click.option("--secret-key", metavar="KEY", envvar="ROCKETMQ_SECRET_KEY", show_envvar=True, help="Secret key."),
        click.option(
            "--access-key",
            metavar="KEY",
            envvar="ROCKETMQ_ACCESS_KEY",
            show_envvar=True,
            help="Access key of the account that signs requests.",
        ),
    ):
        call = option(call)
    return call
