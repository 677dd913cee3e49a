"""The logical queues in the route of a static topic, and the broker group that leads each."""

from collections.abc import Mapping

from skyroute.message.reserved_topics import LOGICAL_BROKER_PREFIX
from skyroute.routing.topology import ROUTE_QUEUES_MAX, TopicRoute


def logical_broker_name(scope: str) -> str:
    """Return the broker name of all logical queues of a scope. It stays the same while queues move."""
    return LOGICAL_BROKER_PREFIX + (scope[2:] if scope == "__global__" else scope)


def logical_leaders(route: TopicRoute) -> Mapping[tuple[str, int], str | None]:
    """Return the leader of each logical queue, by broker name and id of the queue; None if the route has none.

    While a queue moves, two brokers may claim it: the one with the newer mapping leads it. Queues beyond
    `ROUTE_QUEUES_MAX` are left out.
    """
    totals: dict[str, int] = {}
    for mapping in route.mappings.values():
        name = logical_broker_name(mapping.scope)
        totals[name] = max(totals.get(name, 0), mapping.total_queues)
    leaders: dict[tuple[str, int], str | None] = {}
    for name, total in totals.items():
        room = ROUTE_QUEUES_MAX - len(leaders)  # a few mappings could claim billions of queues
        leaders.update(((name, queue_id), None) for queue_id in range(min(total, room)))
    for mapping in sorted(route.mappings.values(), key=lambda mapping: mapping.epoch):
        name = logical_broker_name(mapping.scope)
        leaders.update({(name, queue_id): mapping.broker_name for queue_id in mapping.current_ids if queue_id >= 0})
    return dict(sorted(leaders.items()))
