"""Periodic tasks: evict brokers with expired leases, log the key-value table."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from skyroute.clock import Clock
from skyroute.nameserver.kv_config import KvConfig
from skyroute.nameserver.server_events import Publish
from skyroute.remoting.stall_detection import StallDetector
from skyroute.routing.events import BrokerLeft, RouteEvent
from skyroute.routing.table import RouteTable

log = logging.getLogger(__name__)

LATE_S: Final = 1.0
"""Delay of a scan from which on this process counts as stalled."""
LATE_SCANS_MAX: Final = 3
"""Maximum number of late scans in a row that evict no broker."""
KV_FIRST_PRINT_S: Final = 60.0
KV_PRINT_S: Final = 600.0
KV_LOGGED_A_STEP: Final = 256 * 1024
"""Characters of values logged in one turn of the loop; a line costs as much as `KV_LINE_COST` more."""
KV_LINE_COST: Final = 4096


@dataclass(slots=True)
class LeaseScan:
    """Evicts brokers whose leases have expired."""

    table: RouteTable
    publish: Publish
    close_connection: Callable[[int], None]
    interval_s: float
    clock: Clock
    held_share: Callable[[], float] = lambda: 0.0
    """Share of brokers above which leases that expire together are extended once; 0 for never."""
    late_scans: int = field(default=0, init=False)
    """Number of scans that were late and evicted no broker."""
    mass_holds: int = field(default=0, init=False)
    """Number of scans that extended leases because too many had expired."""
    _stall: StallDetector = field(init=False)

    def __post_init__(self) -> None:
        self._stall = StallDetector(
            self.interval_s, min(self.interval_s, LATE_S), self.clock.monotonic(), in_a_row_max=LATE_SCANS_MAX
        )

    def scan(self, now: float) -> bool:
        """Evict brokers with expired leases, or the first of many, and return whether there were any.

        A late scan evicts none: heartbeats may wait unread in their sockets.
        """
        if self._stall.holds_back(now):
            self.late_scans += 1
            log.warning("lease scan late, eviction postponed to the next scan seconds=%.1f", self._stall.late_s)
            return False
        if (share := self.held_share()) > 0:
            self._hold(now, share)
        return self.evict(now)

    def evict(self, now: float) -> bool:
        """Evict brokers with expired leases, or the first of many, and return whether there were any."""
        events = self.table.evict_expired(now)
        self.publish(events)
        self._close_unused(events)
        return bool(events)

    def _hold(self, now: float, share: float) -> None:
        held = self.table.hold_expired(now, share_max=share)
        if held:
            self.mass_holds += 1
            log.warning("mass expiry held, leases extended once brokers=%d share_max=%g", len(held), share)
        self.publish(held)

    def _close_unused(self, events: Iterable[RouteEvent]) -> None:
        for event in events:
            # The brokers of a container share a connection: evicting one must not disconnect the others.
            if isinstance(event, BrokerLeft):
                for connection in event.unused_connections:
                    self.close_connection(connection)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            is_evicting = self.scan(self.clock.monotonic())
            while is_evicting:
                await asyncio.sleep(0)  # heartbeats are read meanwhile
                is_evicting = self.evict(self.clock.monotonic())


async def print_kv(kv: KvConfig) -> None:
    """Log the key-value table periodically, so that it can be restored after a loss."""
    await asyncio.sleep(KV_FIRST_PRINT_S)
    while True:
        for _ in log_kv(kv):
            await asyncio.sleep(0)
        await asyncio.sleep(KV_PRINT_S)


def log_kv(kv: KvConfig) -> Iterator[None]:
    """Log the key-value table, in steps: it may have many entries, or long ones."""
    cost = 0
    for namespace, entries in kv.tables().items():
        for key, value in entries.items():
            log.info("kv config namespace=%r key=%r value=%r", namespace, key, value)
            cost += KV_LINE_COST + len(value)
            if cost > KV_LOGGED_A_STEP:
                cost = 0
                yield
