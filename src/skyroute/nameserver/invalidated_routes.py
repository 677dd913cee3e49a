"""Topics and broker groups whose routes a change invalidates."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

from skyroute.nameserver.server_events import Change, KvChanged
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
from skyroute.routing.table_view import RouteTableView
from skyroute.wire.calls.kv import ORDER_TOPICS
from skyroute.wire.fields import is_name

COPIED_MAX: Final = 10_000
"""Maximum number of invalidated topics that are copied into one set, without duplicates."""


class Invalidated(NamedTuple):
    """Topics and broker groups that changes invalidated."""

    topics: Collection[str]
    groups: Collection[str]
    """Names of broker groups: every topic they serve is invalidated."""


class ManyTopics(Collection[str]):
    """A view of the topics of several collections, without a copy: they may have millions.

    A topic in several collections is counted, and yielded, once for each.
    """

    def __init__(self, parts: Sequence[Collection[str]]) -> None:
        self._parts = parts

    def __contains__(self, topic: object) -> bool:
        return any(topic in part for part in self._parts)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))


def invalidated_by(changes: Iterable[Change]) -> Invalidated:
    """Return the topics and broker groups whose routes the changes invalidated."""
    topics: list[Collection[str]] = []
    groups: set[str] = set()
    for change in changes:
        match change:
            case TopicsChanged():
                topics += (change.added.keys(), change.changed.keys(), change.removed.keys())
            case WritesChanged():
                topics += (change.forbidden, change.restored)
            case MappingsChanged():
                topics.append(change.changed.keys())
            case BrokerChanged() if change.id_before == change.id_after:
                continue  # versions and replication addresses are not in a route
            case BrokerJoined() | BrokerLeft() | BrokerChanged() | GroupChanged() | FilterServersChanged():
                groups.add(change.broker_name)
            case KvChanged() if change.namespace == ORDER_TOPICS and is_name(change.key):
                topics.append((change.key,))
            case _:  # confirmations, leases, smallest ids, settings and server starts change no route
                continue
    return Invalidated(_joined(topics), groups)


def invalidated_topics(table: RouteTableView, invalidated: Invalidated) -> Collection[str]:
    """Return every topic whose route was invalidated. The table is as it is after the changes."""
    return _joined([invalidated.topics, *map(table.topics_of, invalidated.groups)])


def _joined(parts: Sequence[Collection[str]]) -> Collection[str]:
    many = ManyTopics([part for part in parts if part])
    return set(many) if len(many) <= COPIED_MAX else many
