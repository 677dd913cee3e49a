"""Looks at the whole cluster every few seconds, with one call for each broker, so that no page has to.

Pages show the latest `Look` and `Inventory`. What has changed since then they are told by `changed`, and ask again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from skyroute.client.admin import Admin
from skyroute.client.admin.base import Failures
from skyroute.client.admin.broker_load import read_load
from skyroute.client.admin.cluster import BrokerInfo, fetch_broker_states
from skyroute.client.errors import NoNameServerError
from skyroute.clock import Clock, SystemClock
from skyroute.errors import SkyrouteError
from skyroute.routing.topology import ClusterView
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.topics import (
    TopicConfig,
    decode_cluster_view,
    decode_topic_list,
    encode_cluster_query,
    encode_topic_list_query,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S: Final = 5.0
INVENTORY_S: Final = 30.0
"""Topics and groups change less often than rates, and are much more to read."""
RATES_MAX: Final = 360
"""Half an hour."""


class Rates(NamedTuple):
    """Messages a second at one moment."""

    at_s: float
    into: float
    out: float


@dataclass(frozen=True, slots=True)
class NameServerView:
    """What one name server says, or why it says nothing."""

    address: str
    view: ClusterView | None = None
    topics: frozenset[str] = frozenset()
    failure: SkyrouteError | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """The cluster as it was found at one moment."""

    number: int
    at_s: float
    """When, by the wall clock."""
    brokers: tuple[BrokerInfo, ...] = ()
    name_servers: tuple[NameServerView, ...] = ()
    failure: SkyrouteError | None = None
    """Why nothing could be found; what is here then is what was found before."""

    def broker(self, name: str, broker_id: int = 0) -> BrokerInfo | None:
        """Return the broker of a name and number."""
        return next((each for each in self.brokers if each.name == name and each.broker_id == broker_id), None)

    @property
    def masters(self) -> dict[str, str]:
        """Where each group's first broker is, by the group's name."""
        found: dict[str, str] = {}
        for each in self.brokers:
            if each.broker_id == 0 or each.name not in found:
                found[each.name] = each.address
        return found


@dataclass(frozen=True, slots=True)
class Inventory:
    """What topics and groups there are, by their name and then by that of the broker which has them."""

    at_s: float = 0.0
    topics: Mapping[str, Mapping[str, TopicConfig]] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, GroupConfig]] = field(default_factory=dict)
    failures: Failures = field(default_factory=dict)


def _of(known: Mapping[str, Mapping[str, T]], broker: str) -> dict[str, T]:
    """Return the part of an inventory that one broker has."""
    return {name: configs[broker] for name, configs in known.items() if broker in configs}


class Watcher:
    """Keeps the latest look, the latest inventory, and the rates of the last half hour."""

    def __init__(
        self,
        admin: Admin,
        *,
        clock: Clock | None = None,
        look_s: float = LOOK_S,
        inventory_s: float = INVENTORY_S,
    ) -> None:
        self._admin = admin
        self._clock = clock or SystemClock()
        self._periods_s = look_s, inventory_s
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._looking = asyncio.Lock()
        self._counting = asyncio.Lock()
        self.look = Look(0, 0.0)
        self.inventory = Inventory()
        self.rates: dict[str, deque[Rates]] = {}
        """By a broker's address."""
        self.stopped = False

    async def start(self) -> None:
        """Begin to look; the first look has been taken when this returns, whatever it found."""
        await self.take_look()
        look_s, inventory_s = self._periods_s
        self._tasks = [
            asyncio.create_task(self._for_ever(self.take_look, look_s, first_s=look_s)),
            asyncio.create_task(self._for_ever(self.take_inventory, inventory_s, first_s=0.0)),
        ]

    async def stop(self) -> None:
        """End, and wake whoever waits for a change."""
        self.stopped = True
        self._announce()
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def changed(self) -> None:
        """Wait for the next look or inventory, or the end."""
        if not self.stopped:
            await self._changed.wait()

    async def take_look(self) -> None:
        """Ask every name server and every broker how it is."""
        async with self._looking:
            now_s = self._clock.wall()
            brokers, servers, failure = self.look.brokers, self.look.name_servers, None
            try:
                addresses = sorted(await self._admin.session.name_servers.in_turn())
                servers = tuple(await asyncio.gather(*map(self._see, addresses)))
                views = [server.view for server in servers if server.view is not None]
                if not views:
                    raise servers[0].failure or NoNameServerError("no name server answers")
                # Name servers may have drifted apart: what any of them knows is there.
                groups = (group for view in views for group in view.groups)
                brokers = tuple(await fetch_broker_states(self._admin, groups))
            except SkyrouteError as error:
                failure = error
            self.look = Look(self.look.number + 1, now_s, brokers, servers, failure)
            if failure is None:
                self._note_rates(now_s)
        self._announce()

    async def _see(self, address: str) -> NameServerView:
        ask = self._admin.session.ask
        try:
            view, topics = await asyncio.gather(
                ask(address, encode_cluster_query()), ask(address, encode_topic_list_query())
            )
            return NameServerView(address, decode_cluster_view(view.body), frozenset(decode_topic_list(topics.body)))
        except SkyrouteError as error:
            return NameServerView(address, failure=error)

    def _note_rates(self, now_s: float) -> None:
        addresses = {broker.address for broker in self.look.brokers}
        for gone in self.rates.keys() - addresses:
            del self.rates[gone]
        for broker in self.look.brokers:
            if broker.failure is None:
                load = read_load(broker)
                rates = Rates(now_s, load.into or 0.0, load.out or 0.0)
                self.rates.setdefault(broker.address, deque(maxlen=RATES_MAX)).append(rates)

    async def take_inventory(self) -> None:
        """Ask every master for its topics and groups, one after the other: each answer may be megabytes."""
        async with self._counting:
            now_s = self._clock.wall()
            topics: dict[str, dict[str, TopicConfig]] = {}
            groups: dict[str, dict[str, GroupConfig]] = {}
            failures: dict[str, SkyrouteError] = {}
            silent = {each.address: each.failure for each in self.look.brokers}
            for name, address in self.look.masters.items():
                try:
                    if (failure := silent[address]) is not None:
                        raise failure
                    its_topics = await self._admin.topic_configs(address)
                    its_groups = await self._admin.group_configs(address)
                except SkyrouteError as error:
                    failures[address] = error
                    # What a broker had is not gone because it does not answer.
                    its_topics, its_groups = _of(self.inventory.topics, name), _of(self.inventory.groups, name)
                for topic, config in its_topics.items():
                    topics.setdefault(topic, {})[name] = config
                for group, group_config in its_groups.items():
                    groups.setdefault(group, {})[name] = group_config
            self.inventory = Inventory(now_s, dict(sorted(topics.items())), dict(sorted(groups.items())), failures)
        self._announce()

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _for_ever(self, work: Callable[[], Awaitable[None]], period_s: float, *, first_s: float) -> None:
        await asyncio.sleep(first_s)
        while True:
            try:
                await work()
            except SkyrouteError as error:
                log.warning("the cluster could not be looked at reason=%s", error)
            except Exception:  # a bug in one look must not end all others
                log.exception("the cluster could not be looked at")
            await asyncio.sleep(period_s)
