"""Notifies brokers of a new smallest broker id in their group, so that a slave can act as master."""

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Iterable
from typing import Final

from skyroute.remoting.client import connect
from skyroute.remoting.errors import RemotingError
from skyroute.routing.events import RouteEvent, SmallestIdChanged
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request

log = logging.getLogger(__name__)

BROKERS_MAX: Final = 1_000
"""Maximum number of brokers notified at the same time. Further notices are dropped: brokers also poll."""

NOTICES_MAX: Final = 100
"""Maximum number of queued notices for one broker. The oldest are dropped: only the last one matters."""


class Notifier:
    """Notifies each broker of changes in their order. A slow broker does not delay the others."""

    def __init__(self, *, connect_timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._waiting: dict[str, deque[Request]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def put(self, events: Iterable[RouteEvent]) -> None:
        """Queue the notices for these events."""
        for event in events:
            if isinstance(event, SmallestIdChanged) and event.acting_master:
                self._put(event)

    def _put(self, event: SmallestIdChanged) -> None:
        fields = {"minBrokerId": str(event.smallest_id), "minBrokerAddr": event.smallest_address}
        recipients = event.others
        if event.offline_address is not None:
            # The broker with the new smallest id needs the notice too: it becomes the acting master.
            fields["offlineBrokerAddr"] = event.offline_address
            recipients = (event.smallest_address, *event.others)
        elif event.ha_address is not None:
            fields["haBrokerAddr"] = event.ha_address
        for address in recipients:
            self._send(address, Request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, dict(fields)))

    def _send(self, address: str, request: Request) -> None:
        waiting = self._waiting.get(address)
        if waiting is not None:
            waiting.append(request)
        elif len(self._waiting) < BROKERS_MAX:
            self._waiting[address] = deque([request], NOTICES_MAX)
            task = asyncio.get_running_loop().create_task(self._deliver(address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            log.warning("notice dropped broker=%s reason=already notifying %d brokers", address, BROKERS_MAX)

    async def _deliver(self, address: str) -> None:
        waiting = self._waiting[address]
        try:
            channel = await connect(address, tls=self._tls, timeout_s=self._connect_timeout_s)
            while waiting:
                channel.send_oneway(waiting.popleft())
            channel.close()
        except RemotingError as error:
            log.warning("notice lost broker=%s reason=%s", address, error)
        finally:
            del self._waiting[address]

    async def stop(self) -> None:
        """Cancel the notices under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
