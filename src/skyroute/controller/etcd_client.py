"""Calls etcd: one member at a time, the next one if a member does not respond. Needs `skyroute[etcd]`."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import aetcd
from aetcd import exceptions, rpc

from skyroute.controller.errors import StoreUnavailableError
from skyroute.remoting.address import split_address

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT_S: Final = 2.0
"""How long one member may take to respond."""

_OPTIONS: Final = {
    # The default backoff grows to two minutes, longer than a member takes to restart.
    "grpc.initial_reconnect_backoff_ms": 100,
    "grpc.max_reconnect_backoff_ms": 1_000,
    "grpc.max_receive_message_length": 256 * 1024 * 1024,
}
_NEXT_MEMBER: Final = (
    exceptions.ConnectionFailedError,
    exceptions.ConnectionTimeoutError,
    rpc.BaseError,
    TimeoutError,
)
"""Errors of one member: another one may work."""


class EtcdClient:
    """The members of one etcd cluster."""

    def __init__(self, endpoints: Sequence[str], *, user: str = "", password: str = "") -> None:
        """Take addresses `host:port`. Connections open with the first call."""
        self._endpoints = tuple(endpoints)
        self._current = 0
        self._account = {"username": user, "password": password} if user else {}
        self._clients: dict[str, Any] = {}

    def __repr__(self) -> str:
        return f"<EtcdClient {self._endpoints[self._current]}>"

    async def call(self, operation: Callable[[Any], Awaitable[T]]) -> T:
        """Run an operation on an `aetcd.Client`; on the next member if one fails.

        An operation that failed may have been carried out, and is repeated: it must be a read, or compare revisions.

        Raises:
            StoreUnavailableError: no member carried it out, or etcd refuses it.
        """
        reasons: list[str] = []
        for _ in self._endpoints:
            endpoint = self._endpoints[self._current]
            try:
                return await operation(self._client(endpoint))
            except _NEXT_MEMBER as error:
                reasons.append(f"{endpoint}: {error or type(error).__name__}")
                self._current = (self._current + 1) % len(self._endpoints)
            except exceptions.UnauthenticatedError as error:
                await self._forget(endpoint)  # a token has a limited life
                reasons.append(f"{endpoint}: {error}")
            except exceptions.ClientError as error:
                raise StoreUnavailableError(f"etcd refuses a request: {endpoint}: {error}") from error
        raise StoreUnavailableError(f"etcd does not respond: {'; '.join(reasons)}")

    def _client(self, endpoint: str) -> Any:
        if endpoint not in self._clients:
            host, port = split_address(endpoint)
            self._clients[endpoint] = aetcd.Client(host, port, timeout=TIMEOUT_S, options=_OPTIONS, **self._account)
        return self._clients[endpoint]

    async def _forget(self, endpoint: str) -> None:
        client = self._clients.pop(endpoint, None)
        if client is not None:
            await client.close()

    async def close(self) -> None:
        """Close all connections."""
        for endpoint in list(self._clients):
            await self._forget(endpoint)
