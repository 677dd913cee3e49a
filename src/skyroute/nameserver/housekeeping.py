"""What happens when nobody speaks: leases run out, the key-value table is printed."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from skyroute.clock import Clock
from skyroute.nameserver.handlers.brokers import Publish
from skyroute.nameserver.kv_config import KvConfig
from skyroute.remoting.stall_detection import StallDetector
from skyroute.routing.events import BrokerLeft, RouteEvent
from skyroute.routing.table import RouteTable

log = logging.getLogger(__name__)

LATE_S: Final = 1.0
"""How late a scan may come before this process is taken to have stood still."""
LATE_SCANS_MAX: Final = 3
"""A process that stood still may soon do so again, before it has read all that waits; so often it evicts nobody."""
KV_FIRST_PRINT_S: Final = 60.0
KV_PRINT_S: Final = 600.0


@dataclass(slots=True)
class LeaseScan:
    """Evicts brokers that have been silent for too long."""

    table: RouteTable
    publish: Publish
    close_connection: Callable[[int], None]
    interval_s: float
    clock: Clock
    held_share: Callable[[], float] = lambda: 0.0
    """The share of brokers beyond which leases that run out together are held once more; 0 for never."""
    late_scans: int = field(default=0, init=False)
    """How many scans came so late that they evicted nobody."""
    mass_holds: int = field(default=0, init=False)
    """How many scans found more leases run out than was credible."""
    _lateness: StallDetector = field(init=False)

    def __post_init__(self) -> None:
        self._lateness = StallDetector(
            self.interval_s, min(self.interval_s, LATE_S), self.clock.monotonic(), in_a_row_max=LATE_SCANS_MAX
        )

    def scan(self, now: float) -> None:
        """Evict what has expired; nobody, if this scan itself comes late: heartbeats may wait in their sockets."""
        if self._lateness.holds_back(now):
            self.late_scans += 1
            log.warning("lease scan late seconds=%.1f: nobody is evicted before the next one", self._lateness.late_s)
            return
        if (share := self.held_share()) > 0:
            self._hold(now, share)
        events = self.table.evict_expired(now)
        self.publish(events)
        self._close_silent(events)

    def _hold(self, now: float, share: float) -> None:
        held = self.table.hold_expired(now, share_max=share)
        if held:
            self.mass_holds += 1
            log.warning("mass expiry held brokers=%d share_max=%g: they are believed once more", len(held), share)
        self.publish(held)

    def _close_silent(self, events: Iterable[RouteEvent]) -> None:
        for event in events:
            # A container's brokers share a connection: the silence of one must not cut off the others.
            if isinstance(event, BrokerLeft) and event.connection_is_unused:
                self.close_connection(event.connection)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.interval_s)
            self.scan(self.clock.monotonic())


async def print_kv(kv: KvConfig) -> None:
    """Leave the key-value table in the log now and then, for whoever reads it after a loss."""
    await asyncio.sleep(KV_FIRST_PRINT_S)
    while True:
        for namespace, entries in kv.tables().items():
            for key, value in entries.items():
                log.info("kv config namespace=%r key=%r value=%r", namespace, key, value)
        await asyncio.sleep(KV_PRINT_S)
