"""A broker: start and stop."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from skyroute.broker.advertised_address import find_advertised_address
from skyroute.broker.components import Components
from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.request_handlers import request_handlers
from skyroute.clock import Clock, SystemClock
from skyroute.enforcement.enforcer import Enforcer
from skyroute.enforcement.exposure import check_exposure
from skyroute.files.disk import Disk
from skyroute.observing.pages import Pages, require_metrics_extra
from skyroute.observing.requests import RequestTimes, make_dispatcher
from skyroute.remoting.background import Background
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.dispatch import Dispatcher, Handler
from skyroute.remoting.errors import BindError
from skyroute.remoting.server import Server
from skyroute.remoting.tls import ServerTls
from skyroute.settings.config import home_folder
from skyroute.wire.calls.send import read_send_header, read_signed_send_header
from skyroute.wire.codes import RequestCode
from skyroute.wire.fast_path import FastPath, HeaderDecoder

log = logging.getLogger(__name__)

FAST_PORT_DISTANCE: Final = 2
"""The fast port is this far below the port. It serves everything but pulls, for sends that must not wait."""
REQUEST_BOUNDS_S: Final = (0.001, 0.003, 0.005, 0.007, 0.01, 0.1, 1.0, 2.0, 3.0)
"""Upper bounds of the latency histogram buckets, in seconds, as in Apache's brokers."""
_DECODERS: Final[Mapping[int, HeaderDecoder]] = {RequestCode.SEND_MESSAGE_V2: read_send_header}
_SIGNED_DECODERS: Final[Mapping[int, HeaderDecoder]] = {RequestCode.SEND_MESSAGE_V2: read_signed_send_header}
"""For a broker that checks requests: they keep the fields of a signature."""
_PULL_CODES: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Broker:
    """One broker, which can be embedded in any program. Call `start` and `stop` in a running event loop."""

    def __init__(self, config: BrokerConfig, *, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self._disk = disk
        self._servers: list[Server] = []
        self._background = Background()
        self._polling = BusyPolling()
        self._components: Components | None = None
        self._times = RequestTimes(REQUEST_BOUNDS_S, self.clock.monotonic) if config.metrics_address else None
        self._pages: Pages | None = None
        self.enforcer: Enforcer | None = None
        """Access control, once started."""
        self._is_serving = False
        self.address = ""
        """`host:port` for clients, once started."""

    def __repr__(self) -> str:
        return f"<Broker {self.config.broker_name} {self.address if self._components else 'not running'}>"

    @property
    def components(self) -> Components:
        """The components of a started broker."""
        assert self._components is not None, "the broker was not started"
        return self._components

    # Start

    async def start(self) -> None:
        """Open the store, serve requests, and register with name servers.

        Raises:
            SkyrouteError: a file, a certificate or a port cannot be used; its text says which and why.
        """
        config = self.config
        check_exposure(config, "broker", replicates=True)
        advertised = find_advertised_address(config)
        tls = ServerTls(config.tls)
        self.enforcer = enforcer = Enforcer(
            config,
            server=config.broker_name,
            cluster=config.cluster_name,
            folder=config.store_folder / "config",
            home=Path(config.rocketmq_home or home_folder()),
            clock=self.clock,
        )
        dispatcher = self._dispatcher({})
        server = self._server(tls, dispatcher)
        await server.bind(config.bind_address, config.listen_port)
        self._servers = [server]
        try:
            port = config.advertised_port or server.port
            identity = Identity.at(
                advertised.host,
                advertised.ip,
                port,
                cluster=config.cluster_name,
                name=config.broker_name,
                broker_id=0 if config.controller_mode_enabled else config.broker_id,
            )
            self.address = identity.address
            await self._open_pages()
            self._components = components = Components(
                config, identity, self.clock, self._close_connection, self._disk, self._polling, enforcer
            )
            components.load()
            handlers = request_handlers(components)
            dispatcher.set_handlers(handlers)
            await server.serve()
            if config.listen_port:
                await self._open_fast_port(tls, handlers)
            await self._open_ha_port(components, advertised.host)
            config.listen_port = server.port
            await components.take_over_from_slaves()
        except BaseException:
            await self.kill()  # writes nothing
            raise
        for work in (*components.background(), tls.watch(), enforcer.run()):
            self._background.spawn(work)
        self._is_serving = True
        if components.roles is None:
            await components.registrar.start()
        self._background.spawn(components.registrar.run())

    def _dispatcher(self, handlers: Mapping[int, Handler]) -> Dispatcher:
        checker = None if self.enforcer is None else self.enforcer.checker
        fast_path = FastPath(decoders=_DECODERS if checker is None else _SIGNED_DECODERS)
        return make_dispatcher(handlers, self._times, fast_path, checker)

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
        handlers_without_pulls = {code: handler for code, handler in handlers.items() if code not in _PULL_CODES}
        server = self._server(tls, self._dispatcher(handlers_without_pulls))
        port = self.config.listen_port - FAST_PORT_DISTANCE
        try:
            await server.start(self.config.bind_address, port)
        except BindError as error:
            log.warning("fast port not opened port=%d reason=%s", port, error)
        else:
            self._servers.append(server)

    async def _open_ha_port(self, components: Components, advertised_host: str) -> None:
        """Open the port for slaves. Without `haListenPort`, a broker whose port is taken runs without it."""
        config = self.config
        if config.is_slave:
            return
        port = config.ha_port or (config.listen_port + 1 if config.listen_port else 0)
        if components.roles is not None:
            await components.roles.listen(port)
            return
        try:
            await components.ha_master.listen(config.bind_address, port)
        except BindError as error:
            if config.ha_port:
                raise
            log.warning("replication port not opened port=%d reason=%s", port, error)
            return
        host = config.advertised_ha_host or advertised_host
        shown = f"[{host}]" if ":" in host else host
        components.registrar.own.ha_address = f"{shown}:{components.ha_master.port}"

    # Stop

    async def stop(self) -> None:
        """Unregister, finish the requests under way, and flush everything to the disk."""
        self._is_serving = False
        components, self._components = self._components, None
        if components is not None:
            await components.registrar.stop()
            await components.flushing.drain()
            components.acknowledgement.replica_wait.stop()
            components.ha_master.stop()
        for server in self._servers:
            await server.stop()
        await self._background.end()
        if components is not None:
            await components.close()
        await self._close_pages()

    async def kill(self) -> None:
        """Stop as a crash does: do not unregister, and write nothing more. For tests."""
        for server in self._servers:
            server.abort()
        await self._background.end()
        components, self._components = self._components, None
        if components is not None:
            components.ha_master.stop()
            await components.kill()
        await self._close_pages()

    # Metrics and health

    async def _open_pages(self) -> None:
        address = self.config.metrics_address
        if self._times is None or address is None:
            return
        require_metrics_extra()
        from skyroute.broker.metrics import BrokerMetrics  # noqa: PLC0415 - needs the extra
        from skyroute.observing.exposition import Exposition  # noqa: PLC0415 - needs the extra

        metrics = BrokerMetrics(self.config, lambda: self._components, self._servers, self._times, self.enforcer)
        self._pages = Pages(Exposition("broker", metrics.collect).render, self._why_not_ready)
        await self._pages.start(*address)

    async def _close_pages(self) -> None:
        if self._pages is not None:
            await self._pages.stop()

    def _why_not_ready(self) -> str | None:
        components = self._components
        if components is None or not self._is_serving:
            return "the broker is starting or stopping"
        if components.flushing.has_stopped:
            return "a flush to the disk failed: repair the disk and restart the broker"
        if not self.config.name_servers:
            return "no name server is known, so clients cannot find this broker: set namesrvAddr or give -n"
        if not components.registrar.has_registered:
            return f"not registered yet with a name server of {';'.join(self.config.name_servers)}"
        return None

    # Connections

    def _close_connection(self, number: int) -> None:
        for server in self._servers:
            server.close_connection(number)

    def _on_disconnect(self, connection: int) -> None:
        if self.enforcer is not None:
            self.enforcer.on_disconnect(connection)
        if self._components is not None:
            self._components.on_disconnect(connection)
