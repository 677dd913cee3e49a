"""Topics and broker groups whose routes a change invalidates."""

from collections.abc import Iterable
from typing import NamedTuple

from skyroute.nameserver.changes import Change, KvChanged
from skyroute.routing.events import (
    BrokerChanged,
    BrokerJoined,
    BrokerLeft,
    FilterServersChanged,
    GroupChanged,
    MappingsChanged,
    TopicsChanged,
    WritesChanged,
)
from skyroute.routing.table import RouteTable
from skyroute.wire.calls.kv import ORDER_TOPICS
from skyroute.wire.fields import is_name


class Touched(NamedTuple):
    """What changes were about."""

    topics: set[str]
    groups: set[str]
    """Names of broker groups: every topic they serve is touched."""


def touched_by(changes: Iterable[Change]) -> Touched:
    """Return what changes touched that is in a route."""
    topics: set[str] = set()
    groups: set[str] = set()
    for change in changes:
        match change:
            case TopicsChanged():
                topics.update(change.added, change.changed, change.removed)
            case WritesChanged():
                topics |= change.forbidden | change.restored
            case MappingsChanged():
                topics.update(change.changed)
            case BrokerChanged() if change.id_before == change.id_after:
                continue  # versions and replication addresses are not in a route
            case BrokerJoined() | BrokerLeft() | BrokerChanged() | GroupChanged() | FilterServersChanged():
                groups.add(change.broker_name)
            case KvChanged() if change.namespace == ORDER_TOPICS and is_name(change.key):
                topics.add(change.key)
            case _:  # whether brokers were heard from, who has the smallest id, and what a server says of itself
                continue
    return Touched(topics, groups)


def touched_topics(table: RouteTable, touched: Touched) -> set[str]:
    """Return every topic whose route was touched. The table is as it is after the changes."""
    return touched.topics.union(*(table.topics_of(name) for name in touched.groups))
