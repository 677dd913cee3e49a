"""A name server: its parts, its handlers, its start and stop."""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

from skyroute.clock import Clock, SystemClock
from skyroute.enforcement.enforcer import Enforcer
from skyroute.enforcement.exposure import check_exposure
from skyroute.files.disk import Disk
from skyroute.files.replace import ensure_replaceable
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.handlers.admin import AdminHandlers
from skyroute.nameserver.handlers.brokers import BrokerHandlers
from skyroute.nameserver.handlers.kv import KvHandlers
from skyroute.nameserver.handlers.routes import RouteHandlers
from skyroute.nameserver.handlers.watch import WatchHandlers
from skyroute.nameserver.housekeeping import LeaseScan, print_kv
from skyroute.nameserver.kv_config import KvConfig
from skyroute.nameserver.notify import Notifier
from skyroute.nameserver.persistence import Persistence
from skyroute.nameserver.publisher import Publisher
from skyroute.nameserver.route_history import RouteHistory, first_revision
from skyroute.nameserver.server_events import Change
from skyroute.nameserver.upstream import Upstream
from skyroute.nameserver.watch import Watches
from skyroute.observing.pages import Pages, require_metrics_extra
from skyroute.observing.requests import RequestTimes, make_dispatcher
from skyroute.remoting.address import join_address
from skyroute.remoting.background import Background
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.dispatch import Handler
from skyroute.remoting.server import Server
from skyroute.remoting.stepwise import StepRunner
from skyroute.remoting.tls import ServerTls, client_context
from skyroute.routing.table import RouteTable
from skyroute.settings.config import home_folder
from skyroute.wire.calls.watch import TIMEOUT_MS_MAX
from skyroute.wire.codes import RequestCode

log = logging.getLogger(__name__)

CLUSTER_DEFAULT: Final = "DefaultCluster"
"""Cluster that requests without a cluster name are about, unless `clusterName` names another."""
REQUEST_BOUNDS_S: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0)
"""Upper bounds of the latency histogram buckets, in seconds."""


class NameServer:
    """One name server. Call `start` and `stop` inside a running loop; it can be embedded in any program."""

    def __init__(
        self,
        config: NameServerConfig,
        *,
        upstream: Sequence[str] = (),
        clock: Clock | None = None,
        disk: Disk | None = None,
    ) -> None:
        self.config = config
        self._disk = disk
        self.clock = clock or SystemClock()
        self.table = RouteTable(
            brokers_max=config.brokers_max,
            topic_entries_max=config.topic_entries_max,
            registration_bytes_max=config.registration_bytes_max,
        )
        self.kv = KvConfig(config.kv_config_path, config.kv_config_bytes_max)
        is_test = bool(config.cluster_test_mode and upstream)
        self._upstream = Upstream(upstream, config.connect_timeout_s, config.signer()) if is_test else None
        self._polling = BusyPolling()
        self._step_runner = StepRunner(self._polling, self.clock)
        self._routes = RouteHandlers(
            self.table, self.kv, config, clock=self.clock, step_runner=self._step_runner, upstream=self._upstream
        )
        self._watches = Watches(RouteHistory(uuid4().hex, first_revision(self.clock))) if config.watch_enabled else None
        self._publisher = Publisher(self.table, self._routes, self._watches, config, self.clock)
        self._enforcer: Enforcer | None = None
        self._server: Server | None = None
        self._lease_scan: LeaseScan | None = None
        self._background = Background()
        self._stopping = False
        self._pages: Pages | None = None

    def __repr__(self) -> str:
        return f"<NameServer {self.address if self._server else 'not started'} {self.table!r}>"

    @property
    def address(self) -> str:
        """The listening address, as `host:port`."""
        assert self._server is not None
        return join_address(self.config.bind_address, self._server.port)

    @property
    def enforcer(self) -> Enforcer:
        """Access control of this server, once it has started."""
        assert self._enforcer is not None
        return self._enforcer

    async def start(self) -> None:
        """Load the key-value config and the snapshot, and begin to serve.

        Raises:
            SkyrouteError: a file, a certificate or the port cannot be used; its text says which and why.
        """
        config = self.config
        check_exposure(config, "name server")
        ensure_replaceable(Path(config.kv_config_path))
        self.kv.load()
        self._enforcer = enforcer = self._make_enforcer()
        tls = ServerTls(config.tls)
        outbound = (
            client_context(config.tls.client, test_mode=config.tls.test_mode) if config.tls.client.enabled else None
        )
        self._publisher.notifier = Notifier(
            connect_timeout_s=config.connect_timeout_s, tls=outbound, signer=config.signer()
        )
        times = RequestTimes(REQUEST_BOUNDS_S, self.clock.monotonic) if config.metrics_address else None
        server = Server(
            make_dispatcher(self._handlers(), times, self._routes.fast_path, enforcer.checker),
            tls=tls,
            clock=self.clock,
            on_disconnect=self._on_disconnect,
            limits=config.limits(exempt={RequestCode.REGISTER_BROKER: config.registration_frame_bytes_max}),
            polling=self._polling,
        )
        # Bind before recording: a server that restarts in a loop because its port is taken must not fill the journal.
        await server.bind(config.bind_address, config.listen_port)
        try:
            await self._open_pages(server, times)
            self._open_persistence(server.port)
            await server.serve()
        except BaseException:
            await server.stop()
            await self._close_persistence()
            await self._close_pages()
            raise
        self._server = server
        config.listen_port = server.port
        if config.cluster_test_mode and self._upstream is None:
            log.warning("clusterTest has no production name servers: set them with -n or NAMESRV_ADDR")
        self._lease_scan = LeaseScan(
            self.table,
            self._publisher.publish,
            server.close_connection,
            config.scan_interval_s,
            self.clock,
            lambda: config.mass_expiry_share,
        )
        if self._publisher.persistence is not None:
            self._background.spawn(self._publisher.persistence.run(self.table))
        if self._watches is not None:
            self._background.spawn(self._watches.run(self.clock.monotonic))
            self._background.spawn(self._watches.finish())
        finishing = self._publisher.finish_changes(self._step_runner)
        for work in (self._lease_scan.run(), finishing, tls.watch(), print_kv(self.kv), enforcer.run()):
            self._background.spawn(work)

    def _make_enforcer(self) -> Enforcer:
        config = self.config
        return Enforcer(
            config,
            server="nameserver",
            cluster=CLUSTER_DEFAULT,
            folder=Path(config.kv_config_path).parent,
            home=Path(config.rocketmq_home or home_folder()),
            clock=self.clock,
            on_change=self._routes.fast_path.forget,
            has_readers=True,
        )

    async def stop(self) -> None:
        """Finish requests under way, close every connection, and end within a bounded time."""
        self._stopping = True
        if self._watches is not None:
            self._watches.close()
        persistence, self._publisher.persistence = self._publisher.persistence, None
        snapshot = None if persistence is None else persistence.stop_recording(self.table)
        if self._server is not None:
            await self._server.stop(self.config.shutdown_wait_s if self.config.graceful_shutdown else 0.0)
        await self._background.end()
        if persistence is not None:
            await persistence.close(snapshot)
        if self._publisher.notifier is not None:
            await self._publisher.notifier.stop()
        if self._upstream is not None:
            self._upstream.close()
        await self._close_pages()

    def record(self, changes: Collection[Change]) -> None:
        """Append changes by another server of this process to the journal; they change no route."""
        if self._publisher.persistence is not None:
            self._publisher.persistence.record(changes)

    # Metrics

    async def _open_pages(self, server: Server, times: RequestTimes | None) -> None:
        address = self.config.metrics_address
        if times is None or address is None:
            return
        require_metrics_extra()
        from skyroute.nameserver.metrics import NameServerMetrics  # noqa: PLC0415 - needs that extra
        from skyroute.observing.exposition import Exposition  # noqa: PLC0415 - needs it too

        metrics = NameServerMetrics(
            table=self.table,
            kv=self.kv,
            routes=self._routes,
            fast_path=self._routes.fast_path,
            watches=self._watches,
            persistence=lambda: self._publisher.persistence,
            server=server,
            scan=lambda: self._lease_scan,
            events=self._publisher.events,
            enforcer=self._enforcer,
            times=times,
            clock=self.clock,
        )
        self._pages = Pages(Exposition("nameserver", metrics.collect).render, self._why_not_ready)
        await self._pages.start(*address)

    async def _close_pages(self) -> None:
        if self._pages is not None:
            await self._pages.stop()

    def _why_not_ready(self) -> str | None:
        if self._stopping:
            return "the name server is stopping"
        if self._server is None:
            return "the name server is starting"
        if self.config.wait_for_brokers and self._routes.is_new:
            return f"brokers have waitSecondsForService={self.config.wait_for_brokers_s:g} to register first"
        return None

    def _open_persistence(self, port: int) -> None:
        """Restore the route table and open the journal."""
        settings = self.config.persistence
        if settings is not None:
            address = join_address(self.config.bind_address, port)
            self._publisher.persistence = Persistence.open(settings, self.clock, self.table, address, self._disk)
            self._routes.is_warm = self.table.unconfirmed_count > 0
            self._routes.known_before = frozenset(self.table.topics)

    async def _close_persistence(self) -> None:
        """Undo `_open_persistence`: the start failed."""
        persistence, self._publisher.persistence = self._publisher.persistence, None
        if persistence is not None:
            persistence.stop_recording(self.table)
            await persistence.close()

    def _handlers(self) -> dict[int, Handler]:
        """Every supported request code; others get the response "not supported"."""
        routes, publisher = self._routes, self._publisher
        brokers = BrokerHandlers(
            *(self.table, self.kv, self.config, self.clock, publisher.publish, self._step_runner),
            require_cluster=None if self._enforcer is None else self._enforcer.require_cluster,
        )
        kv = KvHandlers(self.kv, publisher.record, self._step_runner)
        admin = AdminHandlers(
            *(self.table, self.config, publisher.publish, publisher.settings_changed, publisher.record),
            step_runner=self._step_runner,
        )
        access = {} if self._enforcer is None else self._enforcer.handlers()
        return (
            self._watch_handlers()
            | access
            | {
                RequestCode.PUT_KV_CONFIG: kv.put,
                RequestCode.GET_KV_CONFIG: kv.get,
                RequestCode.DELETE_KV_CONFIG: kv.delete,
                RequestCode.GET_KVLIST_BY_NAMESPACE: kv.list_namespace,
                RequestCode.REGISTER_BROKER: brokers.register,
                RequestCode.UNREGISTER_BROKER: brokers.unregister,
                RequestCode.BROKER_HEARTBEAT: brokers.heartbeat,
                RequestCode.QUERY_DATA_VERSION: brokers.query_data_version,
                RequestCode.REGISTER_TOPIC_IN_NAMESRV: brokers.register_topic,
                RequestCode.GET_ROUTEINFO_BY_TOPIC: (
                    routes.get_route_of_test_cluster if self.config.cluster_test_mode else routes.get_route
                ),
                RequestCode.GET_BROKER_CLUSTER_INFO: routes.get_cluster_info,
                RequestCode.GET_BROKER_MEMBER_GROUP: routes.get_member_group,
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: routes.get_all_topics,
                RequestCode.GET_TOPICS_BY_CLUSTER: routes.get_topics_of_cluster,
                RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: routes.get_system_topics,
                RequestCode.GET_UNIT_TOPIC_LIST: routes.get_unit_topics,
                RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: routes.get_unit_subscription_topics,
                RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: routes.get_unit_subscription_only_topics,
                RequestCode.WIPE_WRITE_PERM_OF_BROKER: admin.forbid_writes,
                RequestCode.ADD_WRITE_PERM_OF_BROKER: admin.restore_writes,
                RequestCode.DELETE_TOPIC_IN_NAMESRV: admin.delete_topic,
                RequestCode.GET_NAMESRV_CONFIG: admin.get_config,
                RequestCode.UPDATE_NAMESRV_CONFIG: admin.update_config,
            }
        )

    def _watch_handlers(self) -> dict[int, Handler]:
        if self._watches is None:
            return {}
        timeout_ms_max = int(min(TIMEOUT_MS_MAX, self.config.limits().idle_s * 500))
        return {RequestCode.WATCH_ROUTES: WatchHandlers(self._watches, self.clock, timeout_ms_max).watch}

    def _on_disconnect(self, connection: int) -> None:
        self.enforcer.on_disconnect(connection)
        if self._watches is not None:
            self._watches.drop(connection)
        self._publisher.drop_connection(connection)
