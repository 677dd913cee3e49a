"""Which routes a change may have made another one: what a client would be told of them is not the same any more."""

from collections.abc import Iterable

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


def touched_topics(table: RouteTable, changes: Iterable[Change]) -> set[str]:
    """Return the topics whose routes changes touched. The table is as it is after all of them."""
    topics: set[str] = set()
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
                topics |= table.topics_of(change.broker_name)
            case KvChanged() if change.namespace == ORDER_TOPICS and is_name(change.key):
                topics.add(change.key)
            case _:  # whether brokers were heard from, who has the smallest id, and what a server says of itself
                continue
    return topics
