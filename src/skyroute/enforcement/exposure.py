"""Warns of a server that other machines can reach without protection, or refuses to start it."""

import ipaddress
import logging
from collections.abc import Iterator

from skyroute.access.errors import SettingsError
from skyroute.remoting.address import join_address
from skyroute.remoting.tls_settings import TlsMode
from skyroute.settings.config import ServerConfig

log = logging.getLogger(__name__)


def check_exposure(config: ServerConfig, server: str, port: int | None = None) -> None:
    """Log one warning if other machines reach this server without authentication or TLS.

    Apache's servers bind everywhere and check nothing by default, and so do ours, to replace them unchanged.

    Args:
        config: The settings.
        server: What to call the server.
        port: Its port; None: `listenPort`.

    Raises:
        SettingsError: it is so, and the setting `secure` forbids it.
    """
    if is_loopback(config.bind_address):
        return
    missing = list(_missing(config))
    if not missing:
        return
    address = join_address(config.bind_address, config.listen_port if port is None else port)
    if config.secure:
        raise SettingsError(
            f"secure=true, and the {server} would accept connections from other machines on {address} without "
            f"{' and without '.join(name for name, _ in missing)}: set {', '.join(advice for _, advice in missing)}, "
            "or bindAddress=127.0.0.1"
        )
    log.warning(
        "%s accepts connections from other machines bind=%s without=%s advice=%s, or bindAddress=127.0.0.1; "
        "secure=true refuses to start like this",
        *(server, address, ",".join(name for name, _ in missing), ", ".join(advice for _, advice in missing)),
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _missing(config: ServerConfig) -> Iterator[tuple[str, str]]:
    """Give the names of missing protections, and the settings that add them."""
    if not config.checks_users:
        yield "authentication", "authenticationEnabled=true"
    if config.tls.mode is not TlsMode.ENFORCING:
        yield "TLS", "tls.server.mode=enforcing"
    elif config.tls.test_mode:
        yield "a certificate", "tls.test.mode.enable=false"
