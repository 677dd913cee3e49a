"""Requests to other brokers of the cluster, by broker name, and to name servers."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from skyroute.errors import SkyrouteError
from skyroute.remoting.client import Channel, connect
from skyroute.remoting.errors import RemotingError
from skyroute.remoting.signing import Signer
from skyroute.routing.topology import MASTER_ID
from skyroute.wire.calls.topics import decode_cluster_view, encode_cluster_query
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

T = TypeVar("T")

CALL_S: Final = 3.0
"""Time limit of a request to another broker, as in Apache's brokers (`forwardTimeout`)."""
PEERS_MAX: Final = 256
"""Open connections to other brokers; beyond, the oldest is closed when its calls are done."""
REFRESH_S: Final = 1.0
"""Least time between two requests for the addresses of brokers."""


class PeerBrokers:
    """Calls other brokers, and finds their addresses at the name servers."""

    def __init__(
        self,
        name_servers: Sequence[str],
        monotonic: Callable[[], float],
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._name_servers = tuple(name_servers)
        self._monotonic = monotonic
        self._tls = tls
        self._signer = signer
        self._addresses: dict[str, Mapping[int, str]] = {}
        """Addresses by broker id, by broker name."""
        self._channels: dict[str, asyncio.Task[Channel]] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refresh_at = 0.0

    def __repr__(self) -> str:
        return f"<PeerBrokers known={len(self._addresses)} connections={len(self._channels)}>"

    async def call(
        self, broker_name: str, request: Request, timeout_s: float = CALL_S, *, master_only: bool = False
    ) -> Response:
        """Send a request to the master of a broker group, or if it is away to the smallest id, unless `master_only`.

        Raises:
            RemotingError: the broker has no address, or did not respond in time.
        """
        addresses = self._addresses.get(broker_name)
        if addresses is None or (master_only and MASTER_ID not in addresses):
            await self._refresh()
            addresses = self._addresses.get(broker_name)
        if addresses is None:
            raise RemotingError(f"no name server knows broker {broker_name[:80]}")
        if master_only and MASTER_ID not in addresses:
            raise RemotingError(f"broker {broker_name[:80]} has no master")
        try:
            channel = await self._channel(addresses[min(addresses)])
            return await channel.call(request, timeout_s)
        except RemotingError:
            self._addresses.pop(broker_name, None)  # it may have another one now
            raise

    async def call_address(self, address: str, request: Request, timeout_s: float = CALL_S) -> Response:
        """Send a request to a broker by its address.

        Raises:
            RemotingError: it did not respond in time.
        """
        return await (await self._channel(address)).call(request, timeout_s)

    async def call_name_server(self, request: Request, decode: Callable[[Response], T]) -> T | None:
        """Return the decoded response of the first name server that gives a valid one; None if none does.

        One that gives none is asked last from then on: it may take `CALL_S` each time, as long as clients wait for us.
        """
        for name_server in self._name_servers:
            try:
                channel = await self._channel(name_server)
                return decode(await channel.call(request, CALL_S))
            except SkyrouteError as error:
                log.debug("no response code=%d name_server=%s reason=%s", request.code, name_server, error)
                others = tuple(other for other in self._name_servers if other != name_server)
                self._name_servers = (*others, name_server)
        return None

    async def stop(self) -> None:
        """Close all connections."""
        tasks = [*self._channels.values(), *([] if self._refreshing is None else [self._refreshing])]
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Channel):
                result.close()
        self._channels.clear()

    async def _channel(self, address: str) -> Channel:
        opening = self._channels.get(address)
        if opening is not None and opening.done() and (opening.exception() is not None or opening.result().closed):
            opening = None
        if opening is None:
            self._close_oldest()
            opening = asyncio.get_running_loop().create_task(
                connect(address, tls=self._tls, timeout_s=CALL_S, signer=self._signer)
            )
            self._channels.pop(address, None)
            self._channels[address] = opening
        return await asyncio.shield(opening)

    def _close_oldest(self) -> None:
        while len(self._channels) >= PEERS_MAX:
            oldest = self._channels.pop(next(iter(self._channels)))
            if oldest.done() and oldest.exception() is None:
                oldest.result().close()
            else:
                oldest.cancel()

    async def _refresh(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            if self._monotonic() < self._refresh_at:
                return
            self._refresh_at = self._monotonic() + REFRESH_S
            self._refreshing = asyncio.get_running_loop().create_task(self._read_addresses())
        await asyncio.shield(self._refreshing)

    async def _read_addresses(self) -> None:
        addresses = await self.call_name_server(encode_cluster_query(), _decode_addresses)
        if addresses is not None:
            self._addresses = addresses


def _decode_addresses(response: Response) -> dict[str, Mapping[int, str]]:
    if response.code != ResponseCode.SUCCESS:
        raise RemotingError(f"response {response.code} {response.remark}")
    groups = decode_cluster_view(response.body).groups
    return {group.name: group.addresses for group in groups if group.addresses}
