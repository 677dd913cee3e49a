"""A broker: its parts, its start and its stop."""

import logging
from collections.abc import Mapping
from typing import Final

from skyroute.broker.advertised_address import settle
from skyroute.broker.components import Components
from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.store.files.disk import Disk
from skyroute.clock import Clock, SystemClock
from skyroute.observing.pages import Pages, require_metrics_extra
from skyroute.observing.requests import RequestTimes, make_dispatcher
from skyroute.remoting.address import join_address
from skyroute.remoting.background import Background
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.dispatch import Dispatcher, Handler
from skyroute.remoting.errors import BindError
from skyroute.remoting.server import Server
from skyroute.remoting.tls import ServerTls
from skyroute.wire.calls.send import read_send_header
from skyroute.wire.codes import RequestCode
from skyroute.wire.fast_path import FastPath, HeaderDecoder

log = logging.getLogger(__name__)

FAST_PORT_DISTANCE: Final = 2
"""So far below the port lies a second one, where nobody waits for messages: for sends that must not queue behind it."""
HA_PORT_DISTANCE: Final = 1
REQUEST_BOUNDS_S: Final = (0.001, 0.003, 0.005, 0.007, 0.01, 0.1, 1.0, 2.0, 3.0)
"""Between which times requests are told apart, for those who watch: as Apache's brokers do."""
_DECODERS: Final[Mapping[int, HeaderDecoder]] = {RequestCode.SEND_MESSAGE_V2: read_send_header}
_WAITING_CODES: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Broker:
    """One broker. `start` it inside a running loop, `stop` it there; it can be embedded in any program."""

    def __init__(self, config: BrokerConfig, *, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self._disk = disk
        self._servers: list[Server] = []
        self._background = Background()
        self._polling = BusyPolling()
        self._parts: Components | None = None
        self._times = RequestTimes(REQUEST_BOUNDS_S, self.clock.monotonic) if config.metrics_address else None
        self._pages: Pages | None = None
        self._is_serving = False
        self.address = ""
        """Where clients reach us, as `host:port`, once started."""

    def __repr__(self) -> str:
        return f"<Broker {self.config.broker_name} {self.address if self._parts else 'not running'}>"

    @property
    def parts(self) -> Components:
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
        dispatcher = make_dispatcher({}, self._times, FastPath(decoders=_DECODERS))
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
            await self._open_pages()
            self._parts = parts = Components(
                config, identity, self.clock, self._close_connection, self._disk, self._polling
            )
            parts.load()
            handlers = parts.handlers()
            dispatcher.set_handlers(handlers)
            await server.serve()
            if config.listen_port:
                await self._open_fast_port(tls, handlers)
            config.listen_port = server.port
        except BaseException:
            await self.kill()  # what was kept stays as it was
            raise
        for work in (*parts.background(), tls.watch()):
            self._background.spawn(work)
        self._is_serving = True
        await parts.registrar.start()
        self._background.spawn(parts.registrar.run())

    def _server(self, tls: ServerTls, dispatcher: Dispatcher) -> Server:
        return Server(
            dispatcher,
            tls=tls,
            clock=self.clock,
            on_disconnect=self._on_disconnect,
            limits=self.config.limits(),
            polling=self._polling,
        )

    async def _open_fast_port(self, tls: ServerTls, handlers: Mapping[int, Handler]) -> None:
        prompt = {code: handler for code, handler in handlers.items() if code not in _WAITING_CODES}
        server = self._server(tls, make_dispatcher(prompt, self._times, FastPath(decoders=_DECODERS)))
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
        self._is_serving = False
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.registrar.stop()
            await parts.flushing.settled()
        for server in self._servers:
            await server.stop()
        await self._background.end()
        if parts is not None:
            await parts.close()
        await self._close_pages()

    async def kill(self) -> None:
        """End as a process does that dies: nobody is told, and nothing more is written. To try what happens then."""
        for server in self._servers:
            server.abort()
        await self._background.end()
        parts, self._parts = self._parts, None
        if parts is not None:
            await parts.kill()
        await self._close_pages()

    # For those who watch

    async def _open_pages(self) -> None:
        address = self.config.metrics_address
        if self._times is None or address is None:
            return
        require_metrics_extra()
        from skyroute.broker.metrics import BrokerMetrics  # noqa: PLC0415 - it needs that extra
        from skyroute.observing.exposition import Exposition  # noqa: PLC0415 - so does this

        metrics = BrokerMetrics(self.config, lambda: self._parts, self._servers, self._times)
        self._pages = Pages(Exposition("broker", metrics.collect).render, self._why_not_ready)
        await self._pages.start(*address)

    async def _close_pages(self) -> None:
        if self._pages is not None:
            await self._pages.stop()

    def _why_not_ready(self) -> str | None:
        parts = self._parts
        if parts is None or not self._is_serving:
            return "the broker is starting or stopping"
        if parts.flushing.is_over:
            return "the disk refused what was stored: mend it, and restart the broker"
        if not self.config.name_servers:
            return "no name server is known, so clients cannot find this broker: set namesrvAddr or give -n"
        if not parts.registrar.has_registered:
            return f"no name server has taken our registration yet: {';'.join(self.config.name_servers)}"
        return None

    # Connections

    def _close_connection(self, number: int) -> None:
        for server in self._servers:
            server.close_connection(number)

    def _on_disconnect(self, connection: int) -> None:
        if self._parts is not None:
            self._parts.on_disconnect(connection)
