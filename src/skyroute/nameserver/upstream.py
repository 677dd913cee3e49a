"""Name servers of a production environment, for topics that a test environment does not have."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from skyroute.remoting.client import Channel, connect
from skyroute.remoting.errors import RemotingError
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response

FORWARDED: Final = "skyrouteForwarded"
"""Marks a request forwarded by a test environment: it is not forwarded again."""

log = logging.getLogger(__name__)


class Upstream:
    """Requests a route from the name servers of another environment, one after the other."""

    def __init__(self, addresses: Sequence[str], timeout_s: float) -> None:
        self._addresses = tuple(addresses)
        self._timeout_s = timeout_s
        self._channels: dict[str, asyncio.Task[Channel]] = {}

    async def find_route(self, topic: str, not_found: Response) -> Response:
        """Return the first route that one of them has, or `not_found`."""
        for address in self._addresses:
            try:
                channel = await self._channel(address)
                # Version 1 is older than any client: the response is in the legacy dialect, which this mode uses.
                fields = {"topic": topic, FORWARDED: "true"}
                request = Request(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, version=1)
                response = await channel.call(request, self._timeout_s)
            except RemotingError as error:
                log.warning("production name server does not respond address=%s reason=%s", address, error)
                continue
            if response.code == ResponseCode.SUCCESS and response.body:
                return Response(body=response.body)
        return not_found

    async def _channel(self, address: str) -> Channel:
        """Return the connection to a name server; concurrent callers share one attempt to connect."""
        task = self._channels.get(address)
        if task is None or (task.done() and (task.exception() is not None or task.result().closed)):
            task = asyncio.create_task(connect(address, timeout_s=self._timeout_s))
            self._channels[address] = task
        return await asyncio.shield(task)

    def close(self) -> None:
        """Close all connections."""
        for task in self._channels.values():
            if not task.done():
                task.cancel()
            elif not task.cancelled() and task.exception() is None:
                task.result().close()
        self._channels.clear()
