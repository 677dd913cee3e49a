"""Differences between the clusters and routes of several name servers.

Pure functions; `name_server_comparison` sends the requests.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from skyroute.routing.topology import BrokerGroup, ClusterView, QueueSettings, StaticMapping, TopicRoute

BROKER: Final = "broker"
ADDRESS: Final = "address of "
QUEUES: Final = "queues"
READ_QUEUES: Final = "read queues"
WRITE_QUEUES: Final = "write queues"
PERMISSION: Final = "permission"

Values = Mapping[str, str | None]
"""Value by name server; None: the name server does not have it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that differs between name servers."""

    topic: str | None
    """None: the difference is not about a topic."""
    broker: str | None
    what: str
    values: Values
    topics: int | None = None
    """Number of topics of a broker that some name servers do not have; they are not listed one by one."""
    behind: tuple[str, ...] | None = None
    """Name servers that contradict the broker itself; None: unknown."""
    since_ms: int | None = None
    """When the topic last changed, if a name server still knows."""

    @property
    def key(self) -> tuple[str | None, str | None, str]:
        return self.topic, self.broker, self.what


Views = Mapping[str, ClusterView]
"""By name server."""


def compare_views(views: Views) -> list[Difference]:
    """Return the differences in brokers and clusters."""
    known = {server: {group.name: group for group in view.groups} for server, view in views.items()}
    listed = {server: _clusters_of_groups(view) for server, view in views.items()}
    found: list[Difference] = []
    for name in sorted({name for groups in known.values() for name in groups}):
        groups = {server: known[server].get(name) for server in views}
        facts = {server: None if group is None else _address_text(group) for server, group in groups.items()}
        if None in facts.values():
            found.append(Difference(None, name, BROKER, facts))
            continue
        complete = {server: group for server, group in groups.items() if group is not None}
        for broker_id in sorted({each for group in complete.values() for each in group.addresses}):
            addresses = {server: group.addresses.get(broker_id) for server, group in complete.items()}
            found += _differ(None, name, f"{ADDRESS}{broker_id}", addresses)
        found += _differ(None, name, "cluster", {server: group.cluster for server, group in complete.items()})
        found += _differ(None, name, "zone", {server: group.zone for server, group in complete.items()})
        acting = {server: "allowed" if group.acting_master else "no" for server, group in complete.items()}
        found += _differ(None, name, "acting master", acting)
        found += _differ(None, name, "listed under", {server: listed[server].get(name) for server in views})
    return found


def compare_routes(topic: str, routes: Mapping[str, TopicRoute | None], views: Views) -> list[Difference]:
    """Return the differences in the route of one topic.

    A name server that does not have a broker at all is left out of the comparison of its topics.
    """
    known = {server: {group.name for group in view.groups} for server, view in views.items()}
    queues = {server: _queues_by_broker(route) for server, route in routes.items()}
    found: list[Difference] = []
    for name in sorted({name for by_broker in queues.values() for name in by_broker}):
        settings = {
            server: queues[server].get(name) for server in routes if name in known[server] | queues[server].keys()
        }
        found += _compare_queues(topic, name, settings)
        shown = {server: _shown_addresses(name, routes[server], views[server]) for server in settings}
        found += _differ(topic, name, "addresses", shown)
        mappings = {server: _mapping_text(name, routes[server]) for server in settings}
        found += _differ(topic, name, "static mapping", mappings)
    having = {server: route for server, route in routes.items() if route is not None}
    found += _differ(topic, None, "order config", {server: route.order_config for server, route in having.items()})
    found += _differ(topic, None, "filter servers", {server: _filters_text(route) for server, route in having.items()})
    return found


def queues_text(settings: QueueSettings | None) -> str | None:
    """Return a topic's queues on one broker as text."""
    if settings is None:
        return None
    return f"{settings.read_queues} read, {settings.write_queues} write, perm {settings.permission}"


def _compare_queues(topic: str, name: str, settings: Mapping[str, QueueSettings | None]) -> Iterator[Difference]:
    if None in settings.values():
        yield from _differ(topic, name, QUEUES, {server: queues_text(each) for server, each in settings.items()})
        return
    complete = {server: each for server, each in settings.items() if each is not None}
    yield from _differ(topic, name, READ_QUEUES, {server: str(each.read_queues) for server, each in complete.items()})
    yield from _differ(topic, name, WRITE_QUEUES, {server: str(each.write_queues) for server, each in complete.items()})
    yield from _differ(topic, name, PERMISSION, {server: str(each.permission) for server, each in complete.items()})
    yield from _differ(topic, name, "flags", {server: str(each.sys_flag) for server, each in complete.items()})


def _differ(topic: str | None, broker: str | None, what: str, values: Values) -> Iterator[Difference]:
    if len(set(values.values())) > 1:
        yield Difference(topic, broker, what, values)


def _address_text(group: BrokerGroup) -> str:
    return ", ".join(f"{broker_id}={address}" for broker_id, address in sorted(group.addresses.items()))


def _clusters_of_groups(view: ClusterView) -> dict[str, str]:
    listed: dict[str, list[str]] = {}
    for cluster, names in view.clusters.items():
        for name in names:
            listed.setdefault(name, []).append(cluster)
    return {name: ", ".join(sorted(clusters)) for name, clusters in listed.items()}


def _queues_by_broker(route: TopicRoute | None) -> dict[str, QueueSettings]:
    return {} if route is None else {queues.broker_name: queues.settings for queues in route.queues}


def _shown_addresses(name: str, route: TopicRoute | None, view: ClusterView) -> str | None:
    """Return a broker's addresses in a route if they differ from the cluster view: an acting master."""
    shown = next((group for group in route.groups if group.name == name), None) if route is not None else None
    listed = next((group for group in view.groups if group.name == name), None)
    if shown is None or (listed is not None and shown.addresses == listed.addresses):
        return None
    return _address_text(shown)


def _mapping_text(name: str, route: TopicRoute | None) -> str | None:
    mapping: StaticMapping | None = None if route is None else route.mappings.get(name)
    return None if mapping is None else f"epoch {mapping.epoch}, {dict(sorted(mapping.current_ids.items()))}"


def _filters_text(route: TopicRoute) -> str | None:
    named = {address: sorted(servers) for address, servers in sorted(route.filter_servers.items()) if servers}
    return ", ".join(f"{address}: {' '.join(servers)}" for address, servers in named.items()) or None


@dataclass(slots=True)
class Findings:
    """The result of one comparison."""

    topics: int = 0
    differences: list[Difference] = field(default_factory=list)
    serving: Counter[str] = field(default_factory=Counter)
    """Number of differing topics by broker."""

    @property
    def differing_topics(self) -> list[str]:
        return sorted({each.topic for each in self.differences if each.topic is not None})
