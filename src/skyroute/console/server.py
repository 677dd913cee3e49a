"""A running console: admin client, cluster monitor and web server."""

import asyncio
import logging
import resource
import socket
from contextlib import suppress
from dataclasses import replace
from typing import Final

import uvicorn

from skyroute.client.admin import Admin
from skyroute.clock import Clock, SystemClock
from skyroute.console.access.cluster_users import ConsoleUsers
from skyroute.console.app import make_app
from skyroute.console.cluster_data.monitor import SNAPSHOT_POLL_S, ClusterMonitor
from skyroute.console.config import ConnectionLimits, ConsoleConfig
from skyroute.console.errors import ConsoleError
from skyroute.console.guard.connections import ConnectionGuard, WebServer
from skyroute.console.web.page_context import PageContext
from skyroute.remoting.address import join_address
from skyroute.remoting.server import bind_error

log = logging.getLogger(__name__)

BACKLOG: Final = 1_024
"""Connections the kernel queues until they are accepted; clients retry others after a second."""
STOP_S: Final = 2
"""How long open responses may take when the console stops."""


class Console:
    """A web console for a cluster.

    Examples:
        >>> console = Console(ConsoleConfig(name_servers="127.0.0.1:9876"))
        >>> await console.start()
        >>> print(console.url)
    """

    def __init__(
        self, config: ConsoleConfig, *, clock: Clock | None = None, poll_interval_s: float = SNAPSHOT_POLL_S
    ) -> None:
        self.config = config
        self._clock = clock or SystemClock()
        self._admin = Admin(config.name_servers, **config.client)
        self._monitor = ClusterMonitor(self._admin, clock=self._clock, poll_interval_s=poll_interval_s)
        self._web: WebServer | None = None
        self._task: asyncio.Task[None] | None = None
        self.url = ""
        """Address of the first page, once started."""

    def __repr__(self) -> str:
        return f"<Console {self.url or 'not started'}>"

    async def start(self) -> None:
        """Serve pages; the cluster need not run yet.

        Raises:
            BindError: the address is in use or not of this machine.
            ConsoleError: users must sign in and there are none, or the certificate cannot be used.
        """
        config = self.config
        users = ConsoleUsers(config.users_path, config.access_rules, config.access_cluster)
        if config.must_sign_in and not users.read():
            raise ConsoleError(
                f"the console at {config.host} requires sign-in and has no users: add one with `skyroute console user "
                f"NAME --role operator --data {config.folder}`, or bind it to 127.0.0.1"
            )
        if config.key is not None and config.certificate is None:
            raise ConsoleError("--key is set without --certificate: set both")
        listener = _listen(config)
        try:
            await self._admin.start()
            await self._monitor.start()
            port = listener.getsockname()[1]
            context = PageContext(replace(config, port=port), self._admin, self._monitor, self._clock)
            settings = uvicorn.Config(
                make_app(context),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                proxy_headers=False,  # Forwarded reads them
                ws="none",
                log_level="error",  # below that, a client decides how much is logged
                timeout_keep_alive=config.connections.keep_alive_s,
                timeout_graceful_shutdown=STOP_S,
                ssl_certfile=config.certificate,
                ssl_keyfile=config.key,
            )
            _load(settings)
        except BaseException:
            listener.close()
            await self._monitor.stop()
            await self._admin.stop()
            raise
        guard = ConnectionGuard(_fit_open_files(config.connections), config.trusted_proxies)
        self._web = WebServer(settings, guard)
        self._task = asyncio.create_task(self._web.serve(sockets=[listener]))
        scheme = "https" if config.certificate else "http"
        self.url = f"{scheme}://{join_address(_reachable(config.host), port)}/"
        log.info("console started url=%s", self.url)

    async def stop(self) -> None:
        """Stop; open pages receive no more changes."""
        await self._monitor.stop()
        if self._web is not None and self._task is not None:
            self._web.should_exit = True
            with suppress(asyncio.CancelledError):
                await self._task
        await self._admin.stop()


def _load(settings: uvicorn.Config) -> None:
    try:
        settings.load()
    except OSError as error:  # a damaged certificate or key raises it too
        files = f"{settings.ssl_certfile} with the key {settings.ssl_keyfile or 'in it'}"
        raise ConsoleError(f"cannot use the certificate {files}: {error}") from error


def _fit_open_files(limits: ConnectionLimits) -> ConnectionLimits:
    """Return limits that leave half of the open files to the rest of the process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits
    return replace(limits, connections_max=min(limits.connections_max, max(1, soft // 2)))


def _reachable(host: str) -> str:
    """Return an address at which this machine reaches a server that listens at `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host.strip("[]"), host)


def _listen(config: ConsoleConfig) -> socket.socket:
    host = config.host.strip("[]")
    try:
        return socket.create_server(
            (host, config.port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=BACKLOG
        )
    except (OSError, OverflowError) as error:
        raise bind_error(host, config.port, error, "--host", "--port") from None
