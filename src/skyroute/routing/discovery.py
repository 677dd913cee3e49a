"""Queries of the route table for clients, brokers and tools: functions from the table to immutable values."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Final

from skyroute.routing.table_view import RouteTableView
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
"""Brokers request the route of this prefix and their own name to learn the real members of their group."""

_UNIT: Final = int(TopicFlag.UNIT)
_UNIT_SUBSCRIPTION: Final = int(TopicFlag.UNIT_SUBSCRIPTION)


def find_route(
    table: RouteTableView, topic: str, *, acting_master: bool = False, zone: str | None = None
) -> TopicRoute | None:
    """Return the route of a topic. None: no broker serves it.

    Args:
        table: The route table.
        topic: The topic's name.
        acting_master: Show the slave with the smallest id as master of a group without one, if the group allows an
            acting master. Such a group is read-only until its master returns.
        zone: Leave out groups of other zones, except those without a master. Blank means no zone. The result may be
            empty.
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
        assert group is not None, f"{topic} is listed under the unknown group {name}"
        assert settings is not None, f"{topic} is listed under {name}, which does not serve it"
        if mapping is not None:
            # Static topics span zones: a client needs all mappings to number the queues.
            mappings[mapping.broker_name] = mapping
        if shows_acting:
            group = _with_acting_master(group)
        if _is_in_zone(group, zone):
            groups.append(group)
            queues.append(BrokerQueues(name, settings))
            filter_servers.update(table.filter_servers(name))
    return TopicRoute(tuple(groups), tuple(queues), filter_servers, mappings)


def placement(table: RouteTableView, topic: str) -> Hashable | None:
    """Return a key of the topic's route; None if no broker serves it.

    Topics with the same key have the same route, also after brokers have joined, changed or left their groups.
    """
    names, queues, mappings = table.registered(topic)
    if not names:
        return None
    # A static topic's mappings name it, and a member topic shows no acting master: their routes are not shared.
    if mappings or topic.startswith(MEMBER_TOPIC_PREFIX):
        return names, queues, topic, tuple(map(_mapping_key, mappings))
    return names, queues


def _mapping_key(mapping: StaticMapping) -> Hashable:
    ids = tuple(mapping.current_ids.items())
    return mapping.broker_name, mapping.total_queues, mapping.epoch, mapping.scope, mapping.dirty, ids


def cluster_view(table: RouteTableView) -> ClusterView:
    """Return all groups and clusters, without acting masters."""
    return ClusterView(table.groups, table.clusters)


def member_addresses(table: RouteTableView, broker_name: str) -> Mapping[int, str]:
    """Broker id to address within one group; empty if the name is not known."""
    group = table.group(broker_name)
    return {} if group is None else group.addresses


def served_topics(table: RouteTableView, among: list[str]) -> list[str]:
    """Return those of some topics that at least one group serves."""
    return among if table.is_swept else [topic for topic in among if table.serving(topic)]


def topics_of_cluster(table: RouteTableView, cluster: str, among: Iterable[str] | None = None) -> tuple[str, ...]:
    """Topics that at least one group of the cluster serves. Searches all topics unless `among` is given."""
    names = table.groups_of(cluster)
    is_within = cache(lambda serving: not names.isdisjoint(serving))
    return tuple(topic for topic in (table.topics if among is None else among) if is_within(table.serving(topic)))


def system_topics(table: RouteTableView) -> tuple[tuple[str, ...], str | None]:
    """Return the names of clusters and broker groups, and the address of one broker.

    Each broker has a topic named like its cluster and one named like itself. Tools request the other system topics
    from that address.
    """
    groups = map(table.group, table.group_names)
    addresses = (address for group in groups if group is not None for address in group.addresses.values())
    return tuple(dict.fromkeys((*table.cluster_names, *table.group_names))), next(addresses, None)


def unit_topics(table: RouteTableView, among: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the topics of a unit."""
    return _topics_by_flag(table, among, lambda flags: bool(flags & _UNIT))


def unit_subscription_topics(table: RouteTableView, among: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the topics with a unit subscription."""
    return _topics_by_flag(table, among, lambda flags: bool(flags & _UNIT_SUBSCRIPTION))


def unit_subscription_only_topics(table: RouteTableView, among: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return the topics with a unit subscription that are not unit topics."""
    return _topics_by_flag(table, among, lambda flags: flags & (_UNIT | _UNIT_SUBSCRIPTION) == _UNIT_SUBSCRIPTION)


def _with_acting_master(group: BrokerGroup) -> BrokerGroup:
    # Apache's server also checks that the topic is read-only; without a master it always is.
    if not group.acting_master or MASTER_ID in group.addresses:
        return group
    smallest = min(group.addresses)
    rest = {broker_id: address for broker_id, address in group.addresses.items() if broker_id != smallest}
    return replace(group, addresses={MASTER_ID: group.addresses[smallest], **rest})


def _is_in_zone(group: BrokerGroup, zone: str | None) -> bool:
    if zone is None or not zone.strip() or MASTER_ID not in group.addresses:
        return True
    return group.zone is not None and group.zone.casefold() == zone.casefold()


def _topics_by_flag(
    table: RouteTableView, among: Iterable[str] | None, matches: Callable[[int], bool]
) -> tuple[str, ...]:
    """Return topics by the flags of the group that began to serve them first; all groups should have the same."""

    def is_match(topic: str) -> bool:
        names = table.serving(topic)
        settings = table.settings(names[0], topic) if names else None
        return settings is not None and matches(settings.sys_flag)

    return tuple(filter(is_match, table.topics if among is None else among))
