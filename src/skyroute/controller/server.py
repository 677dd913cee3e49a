"""A controller: its parts, its start and its stop."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from skyroute.clock import Clock, SystemClock
from skyroute.controller.config import ControllerConfig
from skyroute.controller.event_log import log_events
from skyroute.controller.events import Cause, GroupEvent
from skyroute.controller.failover import Failover
from skyroute.controller.file_store import FileStore
from skyroute.controller.groups import Groups
from skyroute.controller.handlers import ControllerHandlers
from skyroute.controller.heartbeats import Heartbeats
from skyroute.controller.leadership import Leadership, SoleController
from skyroute.controller.notify import Notifier
from skyroute.controller.state import GroupState
from skyroute.controller.store import GroupStore
from skyroute.enforcement.enforcer import Enforcer
from skyroute.enforcement.exposure import check_exposure
from skyroute.observing.pages import Pages, require_metrics_extra
from skyroute.observing.requests import RequestTimes, make_dispatcher
from skyroute.remoting.address import join_address
from skyroute.remoting.background import Background
from skyroute.remoting.server import Server
from skyroute.remoting.tls import ServerTls, client_context
from skyroute.settings.config import home_folder
from skyroute.settings.errors import ConfigError

if TYPE_CHECKING:
    from skyroute.controller.etcd_client import EtcdClient
    from skyroute.controller.etcd_store import EtcdStore

log = logging.getLogger(__name__)

REQUEST_BOUNDS_S: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Upper bounds of the latency histogram buckets, in seconds."""

CLUSTER_DEFAULT: Final = "DefaultCluster"
"""Cluster that requests without a cluster name are about, unless the settings name one."""

Record = Callable[[Collection[GroupEvent]], None]
"""Writes the events of a change to a journal; does not wait for the disk."""


class ControllerServer:
    """One controller. `start` and `stop` it in a running loop; it can be embedded in any program."""

    def __init__(
        self,
        config: ControllerConfig,
        *,
        store: GroupStore | None = None,
        clock: Clock | None = None,
        record: Record | None = None,
        find_enforcer: Callable[[], Enforcer] | None = None,
    ) -> None:
        """Take the settings.

        Args:
            config: The settings.
            store: Where the state of groups is kept; None: as the settings say.
            clock: The clock; None: that of the system.
            record: Receives the events of each change, for a journal.
            find_enforcer: Returns the access control of the server that this controller is a part of, so that both
                have the same users; None: the controller has its own.
        """
        self.config = config
        self.clock = clock or SystemClock()
        self._etcd = _etcd(config) if store is None and config.etcd_endpoints else None
        self._store: GroupStore = store or (FileStore(config.state_file) if self._etcd is None else self._etcd[1])
        self.groups = Groups(self._store, self._publish)
        self.heartbeats = Heartbeats(self.clock.monotonic(), config.settle_s)
        self.failover: Failover | None = None
        self._notifier: Notifier | None = None
        self._server: Server | None = None
        self._background = Background()
        self._leadership: Leadership | None = None
        self._record = record
        self._find_enforcer = find_enforcer
        self.enforcer: Enforcer | None = None
        self._pages: Pages | None = None
        self._stopping = False
        self.events: Counter[tuple[type[GroupEvent], Cause]] = Counter()
        """Number of events by type and cause."""
        self._elections: dict[str, asyncio.Task[None]] = {}
        """Elections under way, by broker name."""

    def __repr__(self) -> str:
        return f"<ControllerServer {self.address if self._server else 'not started'} brokers={len(self.heartbeats)}>"

    @property
    def address(self) -> str:
        """Where the controller listens, as `host:port`."""
        assert self._server is not None
        return join_address(self.config.bind_address, self._server.port)

    async def start(self) -> None:
        """Read the state, and serve.

        Raises:
            SkyrouteError: a file, a certificate or the port cannot be used.
        """
        config = self.config
        check_exposure(config, "controller", config.port)
        self.enforcer = enforcer = self._make_enforcer() if self._find_enforcer is None else self._find_enforcer()
        await self._store.open()
        times = RequestTimes(REQUEST_BOUNDS_S, self.clock.monotonic) if config.metrics_address else None
        dispatcher = make_dispatcher({}, times, checker=enforcer.checker)
        tls = ServerTls(config.tls)
        server = Server(
            dispatcher, tls=tls, clock=self.clock, on_disconnect=self._on_disconnect, limits=config.limits()
        )
        try:
            await server.bind(config.bind_address, config.port)
            if not config.listen_port:
                config.listen_port = server.port
            self._leadership = leadership = self._make_leadership()
            outbound = (
                client_context(config.tls.client, test_mode=config.tls.test_mode) if config.tls.client.enabled else None
            )
            self._notifier = Notifier(connect_timeout_s=config.connect_timeout_s, tls=outbound, signer=config.signer())
            self.heartbeats.listen_again(self.clock.monotonic())
            self.failover = Failover(self.groups, self.heartbeats, leadership, config, self.clock, self._elect)
            handlers = ControllerHandlers(self.groups, self.heartbeats, leadership, config, self.clock)
            dispatcher.set_handlers(handlers.by_code() | enforcer.handlers())
            await self._open_pages(server, leadership, times)
            await server.serve()
        except BaseException:
            await server.stop()
            await self._close_pages()
            await self._store.close()
            raise
        self._server = server
        failover = self.failover
        scans = (failover.run_ticks(), failover.run_scans(), failover.run_master_scans(), failover.run_settles())
        for work in (*scans, tls.watch(), leadership.run()):
            self._background.spawn(work)
        if self._find_enforcer is None:
            self._background.spawn(enforcer.run())
        log.info("controller started address=%s advertised=%s", self.address, config.advertised_address)
        if isinstance(self._store, FileStore):
            log.warning("controller is not replicated: brokers keep their roles while it is down, without fail-over")

    def _make_enforcer(self) -> Enforcer:
        config = self.config
        return Enforcer(
            config,
            server="controller",
            cluster=CLUSTER_DEFAULT,
            folder=config.state_file.parent,
            home=Path(config.rocketmq_home or home_folder()),
            clock=self.clock,
        )

    async def stop(self) -> None:
        """Answer open requests, close every connection and finish writing."""
        self._stopping = True
        await self._background.end()
        if self._server is not None:
            await self._server.stop(self.config.shutdown_wait_s if self.config.graceful_shutdown else 0.0)
        elections = list(self._elections.values())
        for election in elections:
            election.cancel()
        await asyncio.gather(*elections, return_exceptions=True)
        if self._notifier is not None:
            await self._notifier.stop()
        if self._leadership is not None:
            await self._leadership.resign()
        await self._store.close()
        await self._close_pages()

    async def _open_pages(self, server: Server, leadership: Leadership, times: RequestTimes | None) -> None:
        address = self.config.metrics_address
        if times is None or address is None:
            return
        require_metrics_extra()
        from skyroute.controller.metrics import ControllerMetrics  # noqa: PLC0415 - needs that extra
        from skyroute.observing.exposition import Exposition  # noqa: PLC0415 - needs it too

        metrics = ControllerMetrics(self.groups, self.heartbeats, leadership, server, self.events, times, self.enforcer)
        self._pages = Pages(Exposition("controller", metrics.collect).render, self._why_not_ready)
        await self._pages.start(*address)

    async def _close_pages(self) -> None:
        if self._pages is not None:
            await self._pages.stop()

    def _why_not_ready(self) -> str | None:
        if self._stopping:
            return "the controller is stopping"
        return "the controller is starting" if self._server is None else None

    def _make_leadership(self) -> Leadership:
        config, address = self.config, self.config.advertised_address
        if self._etcd is None:
            return SoleController(config.group, config.self_id, address)
        from skyroute.controller.etcd_leadership import EtcdLeadership  # noqa: PLC0415 - needs an extra

        client, store = self._etcd
        peers = config.all_peers or {config.self_id: address}
        return EtcdLeadership(
            group=config.group,
            self_id=config.self_id,
            address=address,
            peers=peers,
            store=store,
            client=client,
            clock=self.clock,
            lease_s=config.etcd_lease_s,
            on_gained=self._begin_to_lead,
        )

    def _begin_to_lead(self) -> None:
        self.heartbeats.keep(self.groups.has, self.clock.monotonic())
        if self.failover is not None:
            self.failover.scan_masters()

    def _on_disconnect(self, connection: int) -> None:
        if self.enforcer is not None:
            self.enforcer.on_disconnect(connection)
        if self.failover is not None:
            self.failover.on_disconnect(connection)

    def _elect(self, broker_name: str, cause: Cause, dead_id: int | None) -> None:
        """Start an election, unless one of this group is under way."""
        if broker_name in self._elections or self.failover is None:
            return
        group = self.groups.find(broker_name)
        if group is not None and self.config.notifies_brokers and self._notifier is not None:
            candidates = self.failover.live(group).without(dead_id).among(group.sync_set)
            self._notifier.prepare(filter(None, map(group.address_of, candidates)))
        task = asyncio.get_running_loop().create_task(self.failover.replace_master(broker_name, cause, dead_id))
        self._elections[broker_name] = task
        task.add_done_callback(lambda _: self._elections.pop(broker_name, None))

    def _publish(self, events: Collection[GroupEvent], group: GroupState) -> None:
        log_events(events)
        self.events.update((type(event), event.cause) for event in events)
        if self._record is not None:
            self._record(events)
        if self.config.notifies_brokers and self._notifier is not None:
            living = self.heartbeats.live(group.cluster, group.broker_name, self.clock.monotonic())
            self._notifier.put(events, group, living.progress)


def _etcd(config: ControllerConfig) -> "tuple[EtcdClient, EtcdStore]":
    """Return a client and a store of etcd.

    Raises:
        ConfigError: the extra is not installed.
    """
    if find_spec("aetcd") is None:
        raise ConfigError("etcdEndpoints needs a package that is not installed: pip install 'skyroute[etcd]'")
    from skyroute.controller.etcd_client import EtcdClient  # noqa: PLC0415 - needs that extra
    from skyroute.controller.etcd_store import EtcdStore  # noqa: PLC0415 - as above

    client = EtcdClient(config.etcd_members, user=config.etcd_user, password=config.etcd_password)
    return client, EtcdStore(client, f"{config.etcd_prefix.rstrip('/')}/{config.group}")
