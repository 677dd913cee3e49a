"""Limits for each client address: connections, unfinished handshakes, requests and bytes per second.

No sockets and no clock: the server passes the time.
"""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

METERS_MAX: Final = 100_000
"""Maximum number of addresses that are remembered without a connection; then the oldest are forgotten."""
BURST_S: Final = 1.0
"""A client that was quiet may use the allowance of this time at once."""
WAIT_S_MAX: Final = 30.0
"""Maximum time for which a connection is not read because of its rate."""


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits for each address; 0 means none. An IPv6 client is its /64 network."""

    connections_max: int = 0
    handshakes_max: int = 0
    """Connections that have sent no complete request yet."""
    requests_per_s: int = 0
    bytes_per_s: int = 0
    is_exempt: Callable[[str], bool] = field(default=lambda address: False)
    """Whether an address has no limits: brokers, or proxies, which have many clients behind them."""

    @property
    def are_set(self) -> bool:
        """Whether there are any."""
        return bool(self.connections_max or self.handshakes_max or self.has_rates)

    @property
    def has_rates(self) -> bool:
        """Whether requests or bytes per second are limited."""
        return bool(self.requests_per_s or self.bytes_per_s)


class Allowance:
    """An allowance of units per second, which may be overdrawn: the next ones then wait."""

    __slots__ = ("_at", "_left", "_per_s")

    def __init__(self, per_s: int, now: float) -> None:
        self._per_s = per_s
        self._left = per_s * BURST_S
        self._at = now

    def charge(self, units: int, now: float) -> float:
        """Use some units; return the seconds to wait until more may be used."""
        per_s = self._per_s
        if not per_s:
            return 0.0
        self._left = min(self._left + (now - self._at) * per_s, per_s * BURST_S) - units
        self._at = now
        return min(-self._left / per_s, WAIT_S_MAX) if self._left < 0 else 0.0

    def admit(self, units: int, now: float) -> bool:
        """Use some units, unless all are used up; return whether that was so."""
        if not self._per_s:
            return True
        if self.charge(0, now) > 0:
            return False
        self._left -= units
        return True

    def is_full(self, now: float) -> bool:
        """Return whether nothing of it was used lately."""
        return self._left + (now - self._at) * self._per_s >= self._per_s * BURST_S


class ClientMeter:
    """What one address uses, over all its connections."""

    __slots__ = ("bytes", "connections", "handshakes", "key", "requests")

    def __init__(self, key: str, limits: ClientLimits, now: float) -> None:
        self.key = key
        self.connections = 0
        self.handshakes = 0
        self.requests = Allowance(limits.requests_per_s, now)
        self.bytes = Allowance(limits.bytes_per_s, now)

    def charge(self, requests: int, size: int, now: float) -> float:
        """Count requests and their bytes; return the seconds for which the connection must not be read."""
        return max(self.requests.charge(requests, now), self.bytes.charge(size, now))


class ClientMeters:
    """The meters of all addresses."""

    def __init__(self, limits: ClientLimits) -> None:
        self.limits = limits
        self._meters: dict[str, ClientMeter] = {}
        self.refused = 0
        """Number of connections refused because of their address."""

    def __len__(self) -> int:
        return len(self._meters)

    def open(self, source: str, now: float) -> "ConnectionMeter | None":
        """Count a new connection; None if its address has no limits.

        Raises:
            TooManyError: the address has too many connections or unfinished handshakes.
        """
        limits = self.limits
        if limits.is_exempt(source):
            return None
        key = client_key(source)
        meter = self._meters.get(key)
        if meter is None:
            self._make_room(now)
            meter = self._meters[key] = ClientMeter(key, limits, now)
        if limits.connections_max and meter.connections >= limits.connections_max:
            self.refused += 1
            raise TooManyError(f"{meter.connections} connections from one address are open")
        if limits.handshakes_max and meter.handshakes >= limits.handshakes_max:
            self.refused += 1
            raise TooManyError(f"{meter.handshakes} connections from one address have sent no request")
        return ConnectionMeter(self, meter)

    def forget_if_unused(self, meter: ClientMeter, now: float) -> None:
        """Forget an address without connections, unless it has used its allowance."""
        if not meter.connections and meter.requests.is_full(now) and meter.bytes.is_full(now):
            self._meters.pop(meter.key, None)

    def _make_room(self, now: float) -> None:
        """Forget addresses without connections whose allowance is whole again, or else the oldest one."""
        if len(self._meters) < METERS_MAX:
            return
        unused = [meter for meter in self._meters.values() if not meter.connections]
        for meter in [one for one in unused if one.requests.is_full(now) and one.bytes.is_full(now)] or unused[:1]:
            del self._meters[meter.key]


class ConnectionMeter:
    """What one connection uses of the limits of its address."""

    __slots__ = ("_is_handshaking", "_meters", "client", "is_throttled")

    def __init__(self, meters: ClientMeters, client: ClientMeter) -> None:
        self._meters = meters
        self.client = client
        client.connections += 1
        client.handshakes += 1
        self._is_handshaking = True
        """Whether the address counts it as a connection without a request."""
        self.is_throttled = False
        """Whether the address has used its allowance: nothing is read until the owner resets this."""

    def check(self, now: float) -> float:
        """Return for how many seconds to read nothing from now on; 0 if the allowance is not used up."""
        wait_s = self.client.charge(0, 0, now)
        return self._throttle(wait_s) if wait_s > 0 else 0.0

    def charge(self, frames: Sequence[bytes], now: float) -> float:
        """Charge the address for processed requests; return for how many seconds to read nothing from now on."""
        if self._is_handshaking:
            self._end_handshake()
        wait_s = self.client.charge(len(frames), sum(map(len, frames)), now)
        return self._throttle(wait_s) if wait_s > 0 else 0.0

    def close(self, now: float) -> None:
        """Count the end of the connection."""
        if self._is_handshaking:
            self._end_handshake()
        self.client.connections -= 1
        self._meters.forget_if_unused(self.client, now)

    def _throttle(self, wait_s: float) -> float:
        if self.is_throttled:
            return 0.0
        self.is_throttled = True
        return wait_s

    def _end_handshake(self) -> None:
        self._is_handshaking = False
        self.client.handshakes -= 1


class TooManyError(Exception):
    """An address has too many connections."""


def client_key(source: str) -> str:
    """Return the key of an address: itself, or for IPv6 its /64 network, which one client has to itself."""
    if ":" not in source:
        return source
    try:
        address = ipaddress.IPv6Address(source.partition("%")[0])
    except ValueError:
        return source
    mapped = address.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
