"""The configuration of a console."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from skyroute.client.session.session import ClientArguments
from skyroute.settings.config import home_folder
from skyroute.settings.networks import Networks

PORT: Final = 8088
ROWS_A_PAGE: Final = 50
"""Rows on one page of a list."""
USERS_NAME: Final = "users"
AUDIT_NAME: Final = "audit.jsonl"


def default_folder() -> Path:
    """Return the default folder for users and audit log."""
    return home_folder() / "skyroute" / "console"


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits for browser connections: their number, and how long the console waits for a client."""

    connections_max: int = 1_000
    address_connections_max: int = 100
    """From one IPv4 address or IPv6 /64 network; trusted proxies are only bound by the total."""
    header_s: float = 5.0
    """To send the header of a request, and to complete the TLS handshake before the first one."""
    keep_alive_s: int = 5
    """Idle time between two requests of a connection."""
    body_s: float = 10.0
    """To send the body of a request, plus its size divided by `bytes_per_s`."""
    unread_s: float = 30.0
    """To read a response, plus its size divided by `bytes_per_s`."""
    bytes_per_s: int = 16 * 1024
    """Lowest rate at which a client may send a body or read a response."""


@dataclass(frozen=True, kw_only=True)
class ConsoleConfig:
    """The settings of a console."""

    name_servers: str | Sequence[str]
    host: str = "127.0.0.1"
    port: int = PORT
    folder: Path = field(default_factory=default_folder)
    """Contains the users file and the audit log."""
    sign_in: bool | None = None
    """Whether users must sign in; None: only if `host` is not a loopback address."""
    names: Sequence[str] = ()
    """Host names besides `host` that browsers may use, such as that of a proxy."""
    trusted_proxies: Networks = field(default_factory=Networks)
    """Proxies whose `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host` are trusted."""
    user_header: str | None = None
    """Header in which a proxy names the user that it has authenticated; None: not used."""
    user_header_proxies: Networks = field(default_factory=Networks)
    """Proxies whose `user_header` is trusted; it is ignored from all other addresses."""
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    journals: Mapping[str, Path] = field(default_factory=dict)
    """Journal folders of name servers, by the name that pages show."""
    report: Path | None = None
    """Report written by `skyroute pipeline report`, which the route history links to."""
    access_logs: Sequence[Path] = ()
    """Audit logs of servers on this machine, whose decisions the audit page shows."""
    access_rules: Path | None = None
    """Rules file of a server on this machine, whose users can sign in; None: only the console's own users."""
    access_cluster: str = "DefaultCluster"
    """Cluster of which these users need Get to look, and Update to make changes."""
    controllers: str | None = None
    """Addresses of controllers, separated by semicolons; None: the cluster has none."""
    certificate: Path | None = None
    key: Path | None = None
    client: ClientArguments = field(default_factory=ClientArguments)

    @property
    def must_sign_in(self) -> bool:
        """Whether users must sign in."""
        return not is_loopback(self.host) if self.sign_in is None else self.sign_in

    @property
    def users_path(self) -> Path:
        return self.folder / USERS_NAME

    @property
    def audit_path(self) -> Path:
        return self.folder / AUDIT_NAME


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
