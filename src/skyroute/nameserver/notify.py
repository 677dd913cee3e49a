"""Tells brokers that another of their group now has the smallest id, so that a slave can act for a lost master."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Iterable
from typing import Final

from skyroute.remoting.client import Channel, connect
from skyroute.remoting.errors import RemotingError
from skyroute.routing.events import RouteEvent, SmallestIdChanged
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request

log = logging.getLogger(__name__)

WAITING_MAX: Final = 10_000
"""Notices not yet sent; beyond that the newest are dropped, for brokers ask for themselves every second."""

CHANNELS_MAX: Final = 256
"""Connections to brokers kept open; the longest open is closed for a new one."""


class Notifier:
    """Sends notices one after another, so that each broker hears of changes in the order they happened."""

    def __init__(self, *, connect_timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._waiting: asyncio.Queue[tuple[str, Request]] = asyncio.Queue(WAITING_MAX)
        self._channels: dict[str, Channel] = {}

    def put(self, events: Iterable[RouteEvent]) -> None:
        """Queue the notices that these changes call for."""
        for event in events:
            if isinstance(event, SmallestIdChanged) and event.acting_master:
                self._put(event)

    def _put(self, event: SmallestIdChanged) -> None:
        fields = {"minBrokerId": str(event.smallest_id), "minBrokerAddr": event.smallest_address}
        recipients = event.others
        if event.offline_address is not None:
            # The new smallest must hear of it too: it is the one that starts to act.
            fields["offlineBrokerAddr"] = event.offline_address
            recipients = (event.smallest_address, *event.others)
        elif event.ha_address is not None:
            fields["haBrokerAddr"] = event.ha_address
        for address in recipients:
            try:
                self._waiting.put_nowait((address, Request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, dict(fields))))
            except asyncio.QueueFull:
                log.warning("notice dropped broker=%s reason=%d are waiting", address, WAITING_MAX)

    async def run(self) -> None:
        """Send for as long as the server lives."""
        try:
            while True:
                address, request = await self._waiting.get()
                try:
                    channel = await self._channel(address)
                    channel.send_oneway(request)
                except RemotingError as error:
                    log.warning("notice lost broker=%s reason=%s", address, error)
        finally:
            for channel in self._channels.values():
                channel.close()

    async def _channel(self, address: str) -> Channel:
        channel = self._channels.pop(address, None)
        if channel is None or channel.closed:
            channel = await connect(address, tls=self._tls, timeout_s=self._connect_timeout_s)
        if len(self._channels) >= CHANNELS_MAX:
            oldest = next(iter(self._channels))
            with contextlib.suppress(RemotingError):
                self._channels.pop(oldest).close()
        self._channels[address] = channel
        return channel
