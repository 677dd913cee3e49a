"""A broker: its parts, its start and its stop."""

import logging
from collections.abc import Mapping
from typing import Final

from skyroute.broker.advertised import settle
from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.parts import Parts
from skyroute.broker.store.disk import Disk
from skyroute.clock import Clock, SystemClock
from skyroute.remoting.background import Background
from skyroute.remoting.connection import join_address
from skyroute.remoting.dispatch import Dispatcher, Handler
from skyroute.remoting.errors import BindError
from skyroute.remoting.server import Server
from skyroute.remoting.tls import ServerTls
from skyroute.wire.codes import RequestCode

log = logging.getLogger(__name__)

FAST_PORT_DISTANCE: Final = 2
"""So far below the port lies a second one, where nobody waits for messages: for sends that must not queue behind it."""
HA_PORT_DISTANCE: Final = 1
_WAITING_CODES: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Broker:
    """One broker. `start` it inside a running loop, `stop` it there; it can be embedded in any program."""

    def __init__(self, config: BrokerConfig, *, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self._disk = disk
        self._servers: list[Server] = []
        self._background = Background()
        self._parts: Parts | None = None
        self.address = ""
        """Where clients reach us, as `host:port`, once started."""

    def __repr__(self) -> str:
        return f"<Broker {self.config.broker_name} {self.address if self._parts else 'not running'}>"

    @property
    def parts(self) -> Parts:
        """What a broker that was started consists of."""
        assert self._parts is not None, "the broker was not started"
        return self._parts

    # Start

    async def start(self) -> None:
        """Open what was kept, begin to serve, and register.

        Raises:
            SkyrouteError: a file, a certificate or a port cannot be used; its text says which and why.
        """
        config = self.config
        advertised = settle(config)
        tls = ServerTls(config.tls)
        dispatcher = Dispatcher({})
        server = self._server(tls, dispatcher)
        await server.bind(config.bind_address, config.listen_port)
        self._servers = [server]
        try:
            port = config.advertised_port or server.port
            identity = Identity.at(
                advertised.host,
                advertised.ip,
                port,
                cluster=config.broker_cluster_name,
                name=config.broker_name,
                broker_id=config.broker_id,
                ha_address=join_address(advertised.ha_host, config.ha_listen_port or port + HA_PORT_DISTANCE),
            )
            self.address = identity.address
            self._parts = parts = Parts(config, identity, self.clock, self._close_connection, self._disk)
            parts.load()
            handlers = parts.handlers()
            dispatcher.answer_with(handlers)
            await server.serve()
            if config.listen_port:
                await self._open_fast_port(tls, handlers)
            config.listen_port = server.port
        except BaseException:
            await self.kill()  # what was kept stays as it was
            raise
        for work in (*parts.background(), tls.watch()):
            self._background.spawn(work)
        await parts.registrar.start()
        self._background.spawn(parts.registrar.run())

    def _server(self, tls: ServerTls, dispatcher: Dispatcher) -> Server:
        return Server(
            dispatcher, tls=tls, clock=self.clock, on_disconnect=self._on_disconnect, limits=self.config.limits()
        )

    async def _open_fast_port(self, tls: ServerTls, handlers: Mapping[int, Handler]) -> None:
        prompt = {code: handler for code, handler in handlers.items() if code not in _WAITING_CODES}
        server = self._server(tls, Dispatcher(prompt))
        port = self.config.listen_port - FAST_PORT_DISTANCE
        try:
            await server.start(self.config.bind_address, port)
        except BindError as error:
            log.warning("no second port for sends port=%d reason=%s", port, error)
        else:
            self._servers.append(server)

    # Stop

    async def stop(self) -> None:
        """Say goodbye, serve what is under way, put everything on the disk, and end as soon as the disk lets us."""
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.registrar.stop()
            await parts.flushing.settled()
        for server in self._servers:
            await server.stop()
        await self._background.end()
        if parts is not None:
            await parts.close()

    async def kill(self) -> None:
        """End as a process does that dies: nobody is told, and nothing more is written. To try what happens then."""
        for server in self._servers:
            server.abort()
        await self._background.end()
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.kill()

    # Connections

    def _close_connection(self, number: int) -> None:
        for server in self._servers:
            server.close_connection(number)

    def _on_disconnect(self, connection: int) -> None:
        if self._parts is not None:
            self._parts.on_disconnect(connection)
