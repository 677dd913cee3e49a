"""The open connections of a session: one for each address, opened when it is first needed."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from skyroute.client.errors import ArgumentError, NotRunningError
from skyroute.client.session.shared_task import outcome_of
from skyroute.remoting.client import Channel, connect
from skyroute.remoting.errors import ConnectError
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.wire.command import Request

CLOSE_WAIT_S: Final = 1.0
"""How long `close` waits for connections to send what is queued, before it aborts them."""


class Connections:
    """Connections to name servers and brokers."""

    def __init__(
        self,
        tls: ssl.SSLContext | None,
        connect_timeout_s: float,
        *,
        on_request: Callable[[Request, Channel], None],
        on_open: Callable[[str], None],
    ) -> None:
        """Prepare. `on_request` gets the requests of the other side; `on_open` the address of each new connection."""
        self._tls = tls
        self._connect_timeout_s = connect_timeout_s
        self._on_request = on_request
        self._on_open = on_open
        self.by_address: dict[str, Channel] = {}
        """The connections that take new requests."""
        self.open: set[Channel] = set()
        """These, and connections whose server responded GO_AWAY."""
        self.opening: dict[str, asyncio.Task[Channel]] = {}
        self._closed_by_peer = LogBackoff()
        self.is_running = False

    async def get(self, address: str, timeout_s: float | None = None) -> Channel:
        """Return the connection to an address. Concurrent callers share one attempt; each has its own timeout.

        Raises:
            ConnectError: the address cannot be connected in time.
            NotRunningError: the session is not started, or stopped.
        """
        channel = self.by_address.get(address)
        if channel is not None and not channel.closed:
            return channel
        if not isinstance(address, str):
            raise ArgumentError(f"address is {address!r}: expected 'host:port'")
        if not self.is_running:
            raise NotRunningError("the session is not running: use `async with`, or call `start` first")
        task = self.opening.get(address)
        if task is None:
            task = asyncio.create_task(self._open(address))
            self.opening[address] = task
            task.add_done_callback(lambda done: self._opened(address, done))
        try:
            async with asyncio.timeout(timeout_s):
                return await outcome_of(task)
        except TimeoutError:
            raise ConnectError(f"{address} did not accept the connection in {timeout_s:.3g} s") from None

    async def _open(self, address: str) -> Channel:
        channel = await connect(
            address,
            tls=self._tls,
            timeout_s=self._connect_timeout_s,
            on_request=self._on_request,
            on_close=self._closed,
            close_log=self._closed_by_peer,
        )
        self.by_address[address] = channel
        self.open.add(channel)
        self._on_open(address)
        return channel

    def _opened(self, address: str, task: "asyncio.Task[Channel]") -> None:
        del self.opening[address]
        if not task.cancelled():
            task.exception()  # marks it as retrieved, in case all callers were cancelled

    def retire(self, channel: Channel) -> None:
        """Send no more requests on a connection, and close it after its last response."""
        self._forget(channel)
        channel.retire()

    def _forget(self, channel: Channel) -> None:
        if self.by_address.get(channel.address) is channel:
            del self.by_address[channel.address]

    def _closed(self, channel: Channel) -> None:
        self._forget(channel)
        self.open.discard(channel)

    async def close(self) -> None:
        """Close all connections."""
        channels = list(self.open)
        self.by_address.clear()
        for channel in channels:
            channel.close()
        try:
            if channels:
                await asyncio.wait([channel.ended for channel in channels], timeout=CLOSE_WAIT_S)
        finally:
            for channel in channels:
                channel.abort()
