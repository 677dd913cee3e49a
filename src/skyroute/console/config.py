"""How a console is set up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from skyroute.client.session.session import ClientArguments
from skyroute.settings.config import home_folder
from skyroute.settings.networks import Networks

PORT: Final = 8088
USERS_NAME: Final = "users"
AUDIT_NAME: Final = "audit.jsonl"


def default_folder() -> Path:
    """Where a console keeps its users and its audit log, unless told otherwise."""
    return home_folder() / "skyroute" / "console"


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """How many connections browsers may hold, and how long the console waits for their peers."""

    connections_max: int = 1_000
    address_connections_max: int = 100
    """From one IPv4 address or IPv6 /64 network; trusted proxies have no limit but the total."""
    header_s: float = 5.0
    """For the header of a request, and the TLS handshake before the first one."""
    keep_alive_s: int = 5
    """How long a connection may be idle between two requests."""
    body_s: float = 10.0
    """For the body of a request, besides the time that `bytes_per_s` gives."""
    unread_s: float = 30.0
    """For the peer to read an answer, besides the time that `bytes_per_s` gives."""
    bytes_per_s: int = 16 * 1024
    """The slowest that a body may arrive or an answer be read."""


@dataclass(frozen=True, kw_only=True)
class ConsoleConfig:
    """What a console needs to know, all of it from whoever starts it."""

    name_servers: str | Sequence[str]
    host: str = "127.0.0.1"
    port: int = PORT
    folder: Path = field(default_factory=default_folder)
    """Holds the users' file and the audit log."""
    sign_in: bool | None = None
    """Whether people have to sign in; None: where others than this machine can reach the console."""
    names: Sequence[str] = ()
    """Names besides `host` under which browsers may reach it, such as that of a proxy before it."""
    trusted_proxies: Networks = field(default_factory=Networks)
    """Proxies whose `X-Forwarded-For`, `X-Forwarded-Proto` and `X-Forwarded-Host` are believed."""
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    journals: Mapping[str, Path] = field(default_factory=dict)
    """The journals of name servers that lie on this machine, by what each is to be called."""
    certificate: Path | None = None
    key: Path | None = None
    client: ClientArguments = field(default_factory=ClientArguments)

    @property
    def must_sign_in(self) -> bool:
        """Whether pages are only for those who are known."""
        return not is_loopback(self.host) if self.sign_in is None else self.sign_in

    @property
    def users_path(self) -> Path:
        return self.folder / USERS_NAME

    @property
    def audit_path(self) -> Path:
        return self.folder / AUDIT_NAME


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
