"""Parting with clients that are silent, and with locks that nobody renews."""

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
"""How late a scan may come before this process is taken to have stood still."""


class ClientExpiryScan:
    """Looks for silent clients every `SCAN_S`."""

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
        self._lateness = StallDetector(SCAN_S, LATE_S, clock.monotonic())

    async def scan(self) -> None:
        """Evict silent clients. A late scan evicts none: heartbeats may wait in their sockets."""
        now = self._clock.monotonic()
        if self._lateness.holds_back(now):
            log.warning("client scan late, eviction postponed to the next scan late_s=%.1f", self._lateness.late_s)
            return
        self._locks.expire(now)
        for silent in self._clients.expire(now, self._config.client_expiry_s):
            for peer in silent.peers:
                log.info("client silent peer=%s", peer.address)
                self._close_connection(peer.connection)
            self._notifications.put(silent.changed)
            await asyncio.sleep(0)
