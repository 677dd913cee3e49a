"""Connections of this process to clusters: made when first needed, kept for the next task, closed when it ends.

Spark uses a worker process for one task after another, so what one task has opened the next one finds.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from skyroute.client.session import Session
from skyroute.client.signing import Credentials
from skyroute.pipeline.line import Line
from skyroute.pipeline.options import ConnectionOptions
from skyroute.remoting.loops import loop_factory
from skyroute.remoting.tls import client_context
from skyroute.wire.command import Request

R = TypeVar("R")

CLUSTERS_MAX: Final = 8
"""How many clusters a process stays connected to; the one that was used longest ago is left for another."""

IDLE_LINES_MAX: Final = 16
"""How many lines to brokers of one cluster are kept for the next task."""


class Connection:
    """A session with one cluster, for callers that wait. Its event loop turns while one of them does."""

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self._credentials = _credentials(options)
        self._tls = client_context(options.tls, test_mode=False) if options.tls.enabled else None
        self._idle: dict[str, Line] = {}
        self._turn = threading.Lock()
        self._runner = asyncio.Runner(loop_factory=loop_factory())
        self.session = self.run(self._start())
        """Running; to be used in coroutines that are given to `run`."""

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
        """Return what comes of a coroutine; one at a time."""
        with self._turn:
            return self._runner.run(work)

    def sign(self, request: Request) -> Request:
        """Return a request with our name and signature, if we have any."""
        if self._credentials is not None:
            self._credentials.sign(request)
        return request

    def take_line(self, address: str, timeout_s: float) -> Line:
        """Return a line to a broker that nobody else uses. It is given back with `keep_line`, or closed.

        Raises:
            OSError: nobody answers there.
        """
        line = self._idle.pop(address, None)
        if line is not None and line.is_quiet:
            line.wait_at_most(timeout_s)
            return line
        if line is not None:
            line.close()
        return Line(address, self._tls, self.options.connect_timeout_s, timeout_s)

    def keep_line(self, line: Line) -> None:
        """Keep a line that waits for no answer."""
        if line.address in self._idle or len(self._idle) >= IDLE_LINES_MAX:
            line.close()
        else:
            self._idle[line.address] = line

    def close(self) -> None:
        """End the session and all lines."""
        while self._idle:
            self._idle.popitem()[1].close()
        self.run(self.session.stop())
        self._runner.close()


def _credentials(options: ConnectionOptions) -> Credentials | None:
    if options.access_key is None or options.secret_key is None:
        return None
    return Credentials(options.access_key, options.secret_key, options.security_token)


_connections: dict[ConnectionOptions, Connection] = {}


def connect(options: ConnectionOptions) -> Connection:
    """Return this process's connection to a cluster.

    Raises:
        SkyrouteError: it cannot be made of these options.
    """
    connection = _connections.pop(options, None) or Connection(options)
    _connections[options] = connection
    if len(_connections) > CLUSTERS_MAX:
        _connections.pop(next(iter(_connections))).close()
    return connection


@atexit.register
def close_all() -> None:
    """End all connections of this process."""
    while _connections:
        _connections.popitem()[1].close()


def _leave_to_parent() -> None:
    _inherited.update(_connections)
    _connections.clear()


_inherited: dict[ConnectionOptions, Connection] = {}
"""A fork takes these along. They are the parent's, and are neither used here nor taken apart."""

os.register_at_fork(after_in_child=_leave_to_parent)
