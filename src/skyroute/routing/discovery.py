"""Every reading of a route: what clients, brokers and tools are told.

Functions from the table to values that do not change with it. They only ask; the answers of one call hold together,
because nothing else runs in between.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from skyroute.routing.table import RouteTable
from skyroute.routing.topology import (
    MASTER_ID,
    BrokerGroup,
    BrokerQueues,
    ClusterView,
    StaticMapping,
    TopicFlag,
    TopicRoute,
)

MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Brokers ask for the route of this prefix and their own name to learn who really is in their group."""

_UNIT: Final = int(TopicFlag.UNIT)
_UNIT_SUBSCRIPTION: Final = int(TopicFlag.UNIT_SUBSCRIPTION)


def find_route(
    table: RouteTable, topic: str, *, acting_master: bool = False, zone: str | None = None
) -> TopicRoute | None:
    """Where a topic's queues are. None: nobody serves it.

    Args:
        table: What is known.
        topic: The topic's name.
        acting_master: Show the smallest slave of a group that lost its master in the master's place, if the group
            allows that. Such a group is read-only as long as it lasts.
        zone: Leave out groups of other zones, except those without a master: their slaves may serve anyone. Blank
            asks for no zone. What is left may be empty.
    """
    names = table.serving(topic)
    if not names:
        return None
    shows_acting = acting_master and not topic.startswith(MEMBER_TOPIC_PREFIX)
    groups: list[BrokerGroup] = []
    queues: list[BrokerQueues] = []
    filter_servers: dict[str, tuple[str, ...]] = {}
    mappings: dict[str, StaticMapping] = {}
    for name in names:
        group, settings, mapping = table.group(name), table.settings(name, topic), table.mapping(name, topic)
        assert group is not None, f"{topic} is listed under {name}, which is not there"
        assert settings is not None, f"{topic} is listed under {name}, which does not serve it"
        if mapping is not None:
            # Static topics span zones: a client needs the whole mapping to number the queues.
            mappings[mapping.broker_name] = mapping
        if shows_acting:
            group = _with_acting_master(group)
        if _is_in_zone(group, zone):
            groups.append(group)
            queues.append(BrokerQueues(name, settings))
            filter_servers.update(table.filter_servers(name))
    return TopicRoute(tuple(groups), tuple(queues), filter_servers, mappings)


def placement(table: RouteTable, topic: str) -> Hashable | None:
    """Everything that distinguishes the route of a topic from that of another; None if no broker serves it.

    Topics of the same placement have the same route, also after brokers have joined, changed or left their groups.
    """
    names = table.serving(topic)
    if not names:
        return None
    mappings = tuple(_mapping_key(mapping) for name in names if (mapping := table.mapping(name, topic)) is not None)
    # A static topic's mappings name it, and brokers ask for a topic of their own to see who really is in their group.
    is_special = bool(mappings) or topic.startswith(MEMBER_TOPIC_PREFIX)
    return names, table.registered(names, topic), mappings, topic if is_special else None


def _mapping_key(mapping: StaticMapping) -> Hashable:
    ids = tuple(mapping.current_ids.items())
    return mapping.broker_name, mapping.total_queues, mapping.epoch, mapping.scope, mapping.dirty, ids


def cluster_view(table: RouteTable) -> ClusterView:
    """Every group and every cluster, as they are: no slave is shown as a master."""
    return ClusterView(table.groups, table.clusters)


def member_addresses(table: RouteTable, broker_name: str) -> Mapping[int, str]:
    """Broker id to address within one group; empty if the name is not known."""
    group = table.group(broker_name)
    return {} if group is None else group.addresses


def served_topics(table: RouteTable, among: list[str]) -> list[str]:
    """Those of some topics that at least one group serves."""
    return among if table.is_swept else [topic for topic in among if table.serving(topic)]


def topics_of_cluster(table: RouteTable, cluster: str, among: Iterable[str] | None = None) -> tuple[str, ...]:
    """Topics that at least one group of the cluster serves. Searches all topics unless `among` is given."""
    names = table.groups_of(cluster)
    serves: dict[tuple[str, ...], bool] = {}

    def is_served(topic: str) -> bool:
        serving = table.serving(topic)
        known = serves.get(serving)
        if known is None:
            known = serves[serving] = not names.isdisjoint(serving)
        return known

    return tuple(filter(is_served, table.topics if among is None else among))


def system_topics(table: RouteTable) -> tuple[tuple[str, ...], str | None]:
    """Names of clusters and broker groups, and the address of some broker.

    Each broker has a topic named like its cluster and one named like itself; the rest of its system topics a tool
    asks from that address.
    """
    groups = map(table.group, table.group_names)
    addresses = (address for group in groups if group is not None for address in group.addresses.values())
    return tuple(dict.fromkeys((*table.cluster_names, *table.group_names))), next(addresses, None)


def unit_topics(table: RouteTable, among: Iterable[str] | None = None) -> tuple[str, ...]:
    """Topics of a unit."""
    return _topics_by_flag(table, among, lambda flags: bool(flags & _UNIT))


def unit_subscription_topics(table: RouteTable, among: Iterable[str] | None = None) -> tuple[str, ...]:
    """Topics with a unit subscription."""
    return _topics_by_flag(table, among, lambda flags: bool(flags & _UNIT_SUBSCRIPTION))


def unit_subscription_only_topics(table: RouteTable, among: Iterable[str] | None = None) -> tuple[str, ...]:
    """Topics with a unit subscription that are no unit topics themselves."""
    return _topics_by_flag(table, among, lambda flags: flags & (_UNIT | _UNIT_SUBSCRIPTION) == _UNIT_SUBSCRIPTION)


def _with_acting_master(group: BrokerGroup) -> BrokerGroup:
    # The Java server also asks whether the topic is read-only; with an acting master and no master it always is.
    if not group.acting_master or MASTER_ID in group.addresses:
        return group
    smallest = min(group.addresses)
    rest = {broker_id: address for broker_id, address in group.addresses.items() if broker_id != smallest}
    return replace(group, addresses={MASTER_ID: group.addresses[smallest], **rest})


def _is_in_zone(group: BrokerGroup, zone: str | None) -> bool:
    if zone is None or not zone.strip() or MASTER_ID not in group.addresses:
        return True
    return group.zone is not None and group.zone.casefold() == zone.casefold()


def _topics_by_flag(table: RouteTable, among: Iterable[str] | None, matches: Callable[[int], bool]) -> tuple[str, ...]:
    """Topics judged by the group that began to serve them first, as groups should agree."""

    def is_match(topic: str) -> bool:
        names = table.serving(topic)
        settings = table.settings(names[0], topic) if names else None
        return settings is not None and matches(settings.sys_flag)

    return tuple(filter(is_match, table.topics if among is None else among))
