"""Keeps what pages show of the cluster up to date, with one request per broker and poll.

Brokers and name servers are polled every few seconds, topics and groups less often. Topics whose routes change are read
again at once, if a name server supports watches.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

from skyroute.client.admin import Admin
from skyroute.client.admin.base import Failures
from skyroute.client.admin.broker_load import read_load
from skyroute.client.admin.cluster import BrokerInfo, fetch_broker_states
from skyroute.client.errors import NoNameServerError, TopicNotFoundError
from skyroute.clock import Clock, SystemClock
from skyroute.console.cluster_data.route_changes import NoWatchError, RouteChanges
from skyroute.errors import SkyrouteError
from skyroute.message.reserved_topics import is_retry_topic
from skyroute.routing.topology import ClusterView, TopicRoute
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.route import decode_route, encode_route_query
from skyroute.wire.calls.topics import (
    TopicConfig,
    decode_cluster_view,
    decode_topic_list,
    encode_cluster_query,
    encode_topic_list_query,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

SNAPSHOT_POLL_S: Final = 5.0
INVENTORY_POLL_S: Final = 30.0
"""Topics and groups change less often than rates, and are much more to read."""
CHANGES_APART_S: Final = 1.0
"""Time between two reads of changed topics: open pages reload after each."""
FULL_READS_APART_S: Final = 5.0
"""Time after a change of too many topics before the next change is read."""
CHANGED_TOPICS_MAX: Final = 64
"""Changed topics that are read one by one; if more change at once, the whole inventory is read."""
CONFIG_REQUESTS_MAX: Final = 256
"""Requests to brokers for the settings of changed topics; if more are needed, the whole inventory is read."""
RATES_MAX: Final = 360
"""Half an hour."""


class Rates(NamedTuple):
    """Messages per second at one moment."""

    at_s: float
    into: float
    out: float


@dataclass(frozen=True, slots=True)
class NameServerView:
    """The response of one name server, or its error."""

    address: str
    view: ClusterView | None = None
    topics: frozenset[str] = frozenset()
    failure: SkyrouteError | None = None


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
    """The state of all brokers and name servers at one moment."""

    number: int
    at_s: float
    """Wall-clock time."""
    brokers: tuple[BrokerInfo, ...] = ()
    name_servers: tuple[NameServerView, ...] = ()
    failure: SkyrouteError | None = None
    """Why the last poll failed; the other fields are then those of the poll before."""

    def broker(self, name: str, broker_id: int = 0) -> BrokerInfo | None:
        """Return the broker with a name and id."""
        return next((each for each in self.brokers if each.name == name and each.broker_id == broker_id), None)

    @property
    def masters(self) -> dict[str, str]:
        """The address of each broker group's master, or of its first slave without one, by the group's name."""
        found: dict[str, str] = {}
        for each in self.brokers:
            if each.broker_id == 0 or each.name not in found:
                found[each.name] = each.address
        return found

    @property
    def answering(self) -> list[str]:
        """Addresses of the name servers that respond."""
        return [server.address for server in self.name_servers if server.view is not None]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The settings of all topics and groups, by their name and then by the broker's name."""

    at_s: float = 0.0
    topics: Mapping[str, Mapping[str, TopicConfig]] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, GroupConfig]] = field(default_factory=dict)
    failures: Failures = field(default_factory=dict)
    """Brokers that did not respond, by address."""


def _on_broker(known: Mapping[str, Mapping[str, T]], broker: str) -> dict[str, T]:
    """Return the part of an inventory that one broker has."""
    return {name: configs[broker] for name, configs in known.items() if broker in configs}


def configs_in_route(topic: str, route: TopicRoute) -> dict[str, TopicConfig]:
    """Return a topic's settings by broker as a route has them: without attributes."""
    return {
        queues.broker_name: TopicConfig(topic, *queues.settings[:3], sys_flag=queues.settings.sys_flag)
        for queues in route.queues
    }


class ClusterMonitor:
    """Holds the latest snapshot, the latest inventory, and the rates of the last half hour."""

    def __init__(
        self,
        admin: Admin,
        *,
        clock: Clock | None = None,
        poll_interval_s: float = SNAPSHOT_POLL_S,
        inventory_poll_s: float = INVENTORY_POLL_S,
    ) -> None:
        self._admin = admin
        self._clock = clock or SystemClock()
        self._poll_interval_s = poll_interval_s
        self._inventory_poll_s = inventory_poll_s
        self._changes = RouteChanges(admin.session)
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._snapshot_lock = asyncio.Lock()
        self._inventory_lock = asyncio.Lock()
        self.snapshot = ClusterSnapshot(0, 0.0)
        self.inventory = Inventory()
        self.rates: dict[str, deque[Rates]] = {}
        """By a broker's address."""
        self.stopped = False

    async def start(self) -> None:
        """Take the first snapshot, whatever it finds, and begin to poll."""
        await self.refresh_snapshot()
        with suppress(NoWatchError):  # before the first inventory: no change after it is missed
            await self._changes.wait(self.snapshot.answering)
        self._tasks = [
            asyncio.create_task(
                self._repeat(self.refresh_snapshot, self._poll_interval_s, first_s=self._poll_interval_s)
            ),
            asyncio.create_task(self._repeat(self.refresh_inventory, self._inventory_poll_s)),
            asyncio.create_task(self._repeat(self._read_changes, CHANGES_APART_S)),
        ]

    async def stop(self) -> None:
        """Stop polling, and wake the callers of `changed`."""
        self.stopped = True
        self._announce()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def changed(self) -> None:
        """Wait for the next snapshot or inventory, or for `stop`."""
        if not self.stopped:
            await self._changed.wait()

    # Brokers and name servers

    async def refresh_snapshot(self) -> None:
        """Read the state of every name server and every broker."""
        async with self._snapshot_lock:
            now_s = self._clock.wall()
            brokers, servers, failure = self.snapshot.brokers, self.snapshot.name_servers, None
            try:
                addresses = sorted(await self._admin.session.name_servers.in_turn())
                servers = tuple(await asyncio.gather(*map(self._read_name_server, addresses)))
                views = [server.view for server in servers if server.view is not None]
                if not views:
                    raise servers[0].failure or NoNameServerError("no name server responds")
                # Name servers may differ: a broker that one of them knows is shown.
                groups = (group for view in views for group in view.groups)
                brokers = tuple(await fetch_broker_states(self._admin, groups))
            except SkyrouteError as error:
                failure = error
            self.snapshot = ClusterSnapshot(self.snapshot.number + 1, now_s, brokers, servers, failure)
            if failure is None:
                self._add_rates(now_s)
        self._announce()

    async def _read_name_server(self, address: str) -> NameServerView:
        ask = self._admin.session.ask
        try:
            view, topics = await asyncio.gather(
                ask(address, encode_cluster_query()), ask(address, encode_topic_list_query())
            )
            return NameServerView(address, decode_cluster_view(view.body), frozenset(decode_topic_list(topics.body)))
        except SkyrouteError as error:
            return NameServerView(address, failure=error)

    def _add_rates(self, now_s: float) -> None:
        addresses = {broker.address for broker in self.snapshot.brokers}
        for gone in self.rates.keys() - addresses:
            del self.rates[gone]
        for broker in self.snapshot.brokers:
            if broker.failure is None:
                load = read_load(broker)
                rates = Rates(now_s, load.into or 0.0, load.out or 0.0)
                self.rates.setdefault(broker.address, deque(maxlen=RATES_MAX)).append(rates)

    # Topics and groups

    async def refresh_inventory(self) -> None:
        """Read the topics and groups of every master, one master after the other: a response may have megabytes."""
        async with self._inventory_lock:
            now_s = self._clock.wall()
            topics: dict[str, dict[str, TopicConfig]] = {}
            groups: dict[str, dict[str, GroupConfig]] = {}
            failures: dict[str, SkyrouteError] = {}
            known_failures = {each.address: each.failure for each in self.snapshot.brokers}
            for name, address in self.snapshot.masters.items():
                try:
                    if (failure := known_failures[address]) is not None:
                        raise failure
                    its_topics = await self._admin.topic_configs(address)
                    its_groups = await self._admin.group_configs(address)
                except SkyrouteError as error:
                    failures[address] = error
                    # A broker that does not respond keeps its topics in the lists.
                    its_topics = _on_broker(self.inventory.topics, name)
                    its_groups = _on_broker(self.inventory.groups, name)
                for topic, config in its_topics.items():
                    topics.setdefault(topic, {})[name] = config
                for group, group_config in its_groups.items():
                    groups.setdefault(group, {})[name] = group_config
            self.inventory = Inventory(now_s, dict(sorted(topics.items())), dict(sorted(groups.items())), failures)
        self._announce()

    # Changes that a name server reports

    async def _read_changes(self) -> None:
        """Wait for changed routes, and read their topics again."""
        try:
            topics = await self._changes.wait(self.snapshot.answering)
        except NoWatchError:
            await asyncio.sleep(self._poll_interval_s)
            return
        if topics is None or len(topics) > CHANGED_TOPICS_MAX or not await self.refresh_topics(topics):
            await self.refresh_snapshot()
            await self.refresh_inventory()
            await asyncio.sleep(FULL_READS_APART_S)

    async def refresh_topics(self, topics: Collection[str]) -> bool:
        """Read the routes and settings of some topics again; return False if there is too much to read."""
        async with self._inventory_lock:
            before = self.inventory
            if not topics or before.at_s == 0:  # the first inventory reads them
                return True
            routes = await self._read_routes(topics)
            found: dict[str, dict[str, TopicConfig]] = {}
            for (_, topic), route in routes.items():
                found.setdefault(topic, {}).update(configs_in_route(topic, route) if route is not None else {})
            if sum(map(len, found.values())) > CONFIG_REQUESTS_MAX:
                return False
            if not {name for configs in found.values() for name in configs} <= self.snapshot.masters.keys():
                await self.refresh_snapshot()
            await self._note_topics(routes)
            await asyncio.gather(
                *(self._read_config(topic, name, configs) for topic, configs in found.items() for name in configs)
            )
            # A consumer group is created and deleted together with its retry topic.
            retry_topics = filter(is_retry_topic, found)
            brokers = {name for topic in retry_topics for name in (*found[topic], *before.topics.get(topic, ()))}
            kept = {topic: configs for topic, configs in before.topics.items() if topic not in found}
            kept |= {topic: configs for topic, configs in found.items() if configs}
            groups = await self._read_groups(brokers) if brokers else before.groups
            self.inventory = replace(before, topics=dict(sorted(kept.items())), groups=groups)
        self._announce()
        return True

    async def _read_routes(self, topics: Collection[str]) -> dict[tuple[str, str], TopicRoute | None]:
        """Return the routes by name server and topic; None: that name server has none."""
        routes: dict[tuple[str, str], TopicRoute | None] = {}

        async def read(server: str, topic: str) -> None:
            try:
                response = await self._admin.session.ask(server, encode_route_query(topic))
                routes[server, topic] = decode_route(response.body)
            except TopicNotFoundError:
                routes[server, topic] = None
            except SkyrouteError as error:
                log.info("changed route not read topic=%s address=%s reason=%s", topic, server, error)

        await asyncio.gather(*(read(server, topic) for server in self.snapshot.answering for topic in topics))
        return routes

    async def _note_topics(self, routes: Mapping[tuple[str, str], TopicRoute | None]) -> None:
        """Add and remove topics in the name servers' views of the snapshot."""
        async with self._snapshot_lock:
            servers = []
            for server in self.snapshot.name_servers:
                changed = {topic: route for (address, topic), route in routes.items() if address == server.address}
                known = {topic for topic, route in changed.items() if route is not None}
                servers.append(replace(server, topics=(server.topics - changed.keys()) | known))
            self.snapshot = replace(self.snapshot, number=self.snapshot.number + 1, name_servers=tuple(servers))

    async def _read_config(self, topic: str, broker: str, configs: dict[str, TopicConfig]) -> None:
        """Replace a topic's settings of a route with those of the broker, which have attributes."""
        address = self.snapshot.masters.get(broker)
        with suppress(SkyrouteError):  # the next inventory has them
            if address is not None:
                configs[broker] = await self._admin.topic_config(topic, address)

    async def _read_groups(self, brokers: Collection[str]) -> dict[str, Mapping[str, GroupConfig]]:
        """Return all groups, those of some brokers read again.

        All groups of a broker: an Apache broker creates a single group when it is queried.
        """
        groups = {group: dict(configs) for group, configs in self.inventory.groups.items()}
        masters = self.snapshot.masters
        for broker in sorted(brokers & masters.keys()):
            with suppress(SkyrouteError):
                its_groups = await self._admin.group_configs(masters[broker])
                for configs in groups.values():
                    configs.pop(broker, None)
                for group, config in its_groups.items():
                    groups.setdefault(group, {})[broker] = config
        return {group: configs for group, configs in sorted(groups.items()) if configs}

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _repeat(self, work: Callable[[], Awaitable[None]], period_s: float, *, first_s: float = 0.0) -> None:
        await asyncio.sleep(first_s)
        while True:
            try:
                await work()
            except SkyrouteError as error:
                log.warning("cluster not read reason=%s", error)
            except Exception:  # a bug in one poll must not stop the others
                log.exception("cluster not read")
            await asyncio.sleep(period_s)
