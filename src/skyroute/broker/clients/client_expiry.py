"""Evicts clients without heartbeats, and expired queue locks."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from skyroute.broker.clients.change_notifications import ChangeNotifications
from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.clients.queue_locks import QueueLocks
from skyroute.broker.config import BrokerConfig
from skyroute.clock import Clock
from skyroute.remoting.stall_detection import StallDetector

log = logging.getLogger(__name__)

SCAN_S: Final = 10.0
LATE_S: Final = 1.0
"""A scan that is later than this means that the process stood still."""


class ClientExpiryScan:
    """Looks for clients without heartbeats every `SCAN_S`."""

    def __init__(
        self,
        clients: ConnectedClients,
        locks: QueueLocks,
        notifications: ChangeNotifications,
        close_connection: Callable[[int], None],
        config: BrokerConfig,
        clock: Clock,
    ) -> None:
        self._clients = clients
        self._locks = locks
        self._notifications = notifications
        self._close_connection = close_connection
        self._config = config
        self._clock = clock
        self._stalls = StallDetector(SCAN_S, LATE_S, clock.monotonic())

    async def scan(self) -> None:
        """Evict clients without a recent heartbeat. A late scan evicts none: heartbeats may wait in their sockets."""
        now = self._clock.monotonic()
        if self._stalls.holds_back(now):
            log.warning("client scan late, eviction postponed to the next scan late_s=%.1f", self._stalls.late_s)
            return
        self._locks.expire(now)
        for expired in self._clients.expire(now, self._config.client_expiry_s):
            for peer in expired.peers:
                log.info("client expired peer=%s", peer.address)
                self._close_connection(peer.connection)
            self._notifications.put(expired.changed)
            await asyncio.sleep(0)
