"""Warns of a server that other machines can reach without protection, or refuses to start it."""

import ipaddress
import logging
from collections.abc import Iterator
from typing import NamedTuple

from skyroute.access.errors import SettingsError
from skyroute.remoting.address import join_address
from skyroute.remoting.tls_settings import TlsMode
from skyroute.settings.config import ServerConfig
from skyroute.settings.networks import parse_networks

log = logging.getLogger(__name__)


class _Lack(NamedTuple):
    """A protection that a port lacks."""

    name: str
    advice: str
    """Settings that add it."""


def check_exposure(config: ServerConfig, server: str, port: int | None = None, *, replicates: bool = False) -> None:
    """Log one warning if other machines reach a port of this server without authentication or TLS.

    Apache's servers bind everywhere and check nothing by default, and so do ours, to replace them unchanged.

    Args:
        config: The settings.
        server: What to call the server.
        port: Its port; None: `listenPort`.
        replicates: Whether it has a replication port.

    Raises:
        SettingsError: it is so, and the setting `secure` forbids it.
    """
    lacks: list[_Lack] = []
    addresses: list[str] = []
    if not is_loopback(config.bind_address):
        found = list(_lacks(config))
        if found:
            addresses.append(join_address(config.bind_address, config.listen_port if port is None else port))
        if replicates and config.secure:  # without it, that port is like that of Apache's broker
            found += _lacks_of_replication(config)
        lacks += [*found, _Lack("", "bindAddress=127.0.0.1")] if found else []
    metrics = config.metrics_address
    if metrics is not None and not is_loopback(metrics[0]):
        addresses.append(join_address(*metrics))
        lacks.append(_Lack("authentication of metrics pages", "metricsHost=127.0.0.1"))
    if not lacks:
        return
    names = [lack.name for lack in lacks if lack.name]
    advice = ", ".join(lack.advice for lack in lacks if lack.name)
    alternative = next((f", or {lack.advice}" for lack in lacks if not lack.name), "")
    if config.secure:
        where = " and ".join(addresses) or "the replication port"
        raise SettingsError(
            f"secure=true, and the {server} would accept connections from other machines on {where} without "
            f"{' and without '.join(names)}: set {advice}{alternative}"
        )
    log.warning(
        "%s accepts connections from other machines bind=%s without=%s advice=%s; "
        "secure=true refuses to start like this",
        *(server, ",".join(addresses), ",".join(names), f"{advice}{alternative}"),
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _lacks(config: ServerConfig) -> Iterator[_Lack]:
    if not config.checks_users:
        yield _Lack("authentication", "authenticationEnabled=true")
    if config.tls.mode is not TlsMode.ENFORCING:
        yield _Lack("TLS", "tls.server.mode=enforcing")
    elif config.tls.test_mode:
        yield _Lack("a certificate", "tls.test.mode.enable=false")


def _lacks_of_replication(config: ServerConfig) -> Iterator[_Lack]:
    """Give what the replication port lacks: it lets in listed addresses only, but has no TLS for them."""
    if not all(network.is_loopback for network in parse_networks(config.broker_sources).networks):
        yield _Lack("TLS of replication", "brokerSourceAddresses to loopback addresses, such as those of a tunnel")
