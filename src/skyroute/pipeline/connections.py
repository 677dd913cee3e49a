"""Connections of this process to clusters, kept for the next task.

Spark runs many tasks one after another in one worker process. A later task reuses the connections of an earlier one.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from skyroute.client.session.session import Session
from skyroute.client.session.signing import Credentials
from skyroute.pipeline.options import ConnectionOptions
from skyroute.pipeline.pull_socket import PullSocket
from skyroute.remoting.loops import loop_factory
from skyroute.remoting.tls import client_context
from skyroute.wire.command import Request

R = TypeVar("R")

CLUSTERS_MAX: Final = 8
"""Clusters one process stays connected to. The least recently used connection is closed first."""

IDLE_SOCKETS_MAX: Final = 16
"""Idle pull sockets kept for each cluster."""


class ClusterConnection:
    """A client session with one cluster for synchronous callers. Its event loop runs only inside `run`."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self._credentials = _credentials(options)
        self._tls = client_context(options.tls, test_mode=False) if options.tls.enabled else None
        self._idle: dict[str, PullSocket] = {}
        self._run_lock = threading.Lock()
        self._runner = asyncio.Runner(loop_factory=loop_factory())
        self.session = self.run(self._start())
        """The started session. Use it only in coroutines passed to `run`."""

    async def _start(self) -> Session:
        session = Session(
            self.options.name_server,
            namespace=self.options.namespace,
            credentials=self._credentials,
            tls=self._tls or False,
            connect_timeout_s=self.options.connect_timeout_s,
            request_timeout_s=self.options.request_timeout_s,
            watch_routes=False,
        )
        await session.start()
        return session

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine and return its result. Calls from several threads run one at a time."""
        with self._run_lock:
            return self._runner.run(work)

    def sign(self, request: Request) -> Request:
        """Return the request, signed if the options have an access key."""
        if self._credentials is not None:
            self._credentials.sign(request)
        return request

    def borrow_socket(self, address: str, timeout_s: float) -> PullSocket:
        """Return a pull socket for the caller alone. The caller returns it with `return_socket` or closes it.

        Raises:
            OSError: the broker cannot be reached.
        """
        idle = self._idle.pop(address, None)
        if idle is not None and idle.is_idle:
            idle.set_timeout(timeout_s)
            return idle
        if idle is not None:
            idle.close()
        return PullSocket(address, self._tls, self.options.connect_timeout_s, timeout_s)

    def return_socket(self, pull_socket: PullSocket) -> None:
        """Keep a socket without open requests for the next task, or close it if there are enough."""
        if pull_socket.address in self._idle or len(self._idle) >= IDLE_SOCKETS_MAX:
            pull_socket.close()
        else:
            self._idle[pull_socket.address] = pull_socket

    def close(self) -> None:
        """Close the session and all idle sockets."""
        while self._idle:
            self._idle.popitem()[1].close()
        self.run(self.session.stop())
        self._runner.close()


def _credentials(options: ConnectionOptions) -> Credentials | None:
    if options.access_key is None or options.secret_key is None:
        return None
    return Credentials(options.access_key, options.secret_key, options.security_token)


_connections: dict[ConnectionOptions, ClusterConnection] = {}
"""In order of use, the least recent first."""


def connect(options: ConnectionOptions) -> ClusterConnection:
    """Return this process's connection to a cluster.

    Raises:
        SkyrouteError: the options are not valid for a session.
    """
    connection = _connections.pop(options, None) or ClusterConnection(options)
    _connections[options] = connection
    if len(_connections) > CLUSTERS_MAX:
        _connections.pop(next(iter(_connections))).close()
    return connection


@atexit.register
def close_all() -> None:
    """Close all connections of this process."""
    while _connections:
        _connections.popitem()[1].close()


def _drop_inherited() -> None:
    _inherited.update(_connections)
    _connections.clear()


_inherited: dict[ConnectionOptions, ClusterConnection] = {}
"""Connections copied by a fork. They belong to the parent: the child neither uses nor closes them."""

os.register_at_fork(after_in_child=_drop_inherited)
