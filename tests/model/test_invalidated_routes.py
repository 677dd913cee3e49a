"""Every change of the bytes of a route invalidates its topic.

The steps are those of the route table's own model test; after each, what every client could be told of every topic is
compared with what it would have been told before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from hypothesis import settings

from skyroute.nameserver.invalidated_routes import COPIED_MAX, ManyTopics, invalidated_by, invalidated_topics
from skyroute.nameserver.server_events import KvChanged
from skyroute.routing import discovery
from skyroute.routing.events import BrokerConfirmed, LeaseHeld, RouteEvent
from skyroute.routing.table import RouteTable
from skyroute.wire.calls.kv import ORDER_TOPICS
from skyroute.wire.calls.route import encode_route
from skyroute.wire.fastjson import Dialect
from tests.model.test_route_table import ZONES, RouteTableMachine
from tests.unit.routing.brokers import registration

Told = tuple[bytes | None, ...]


def told_of(table: RouteTable, topic: str) -> Told:
    """The route as every client would get it, whatever its zone and the server's settings."""
    routes = (
        discovery.find_route(table, topic, acting_master=acting_master, zone=zone)
        for acting_master in (False, True)
        for zone in ZONES
    )
    return tuple(None if route is None else encode_route(route, Dialect.STRICT) for route in routes)


class InvalidatedTopicsMachine(RouteTableMachine):
    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, Told] = {}

    def see(self, events: Iterable[RouteEvent], *args: Any, **kwargs: Any) -> None:
        events = tuple(events)
        super().see(events, *args, **kwargs)
        before, self.told = self.told, {topic: told_of(self.table, topic) for topic in self.table.topics}
        differing = {topic for topic in before | self.told if before.get(topic) != self.told.get(topic)}
        invalidated = set(invalidated_topics(self.table, invalidated_by(events)))
        assert differing <= invalidated
        if all(isinstance(event, BrokerConfirmed | LeaseHeld) for event in events):
            assert invalidated == set()


TestInvalidatedTopics = InvalidatedTopicsMachine.TestCase
TestInvalidatedTopics.settings = settings(max_examples=60, stateful_step_count=30)


def invalidated_by_kv(*keys: tuple[str, str]) -> Collection[str]:
    changes = [KvChanged(namespace, key, None, "broker-a:8", "10.0.0.9:1") for namespace, key in keys]
    return invalidated_topics(RouteTable(), invalidated_by(changes))


def test_the_order_of_a_topic_is_part_of_its_route() -> None:
    assert invalidated_by_kv((ORDER_TOPICS, "Orders"), ("other", "Payments"), (ORDER_TOPICS, "no\nname")) == {"Orders"}


def test_many_invalidated_topics_are_not_copied() -> None:
    table = RouteTable()
    topics = [f"T{at}" for at in range(COPIED_MAX + 1)]
    events = table.register(registration(topics=topics), connection=1, now=0.0).events
    invalidated = invalidated_topics(table, invalidated_by(events))
    assert isinstance(invalidated, ManyTopics)
    assert set(invalidated) == set(topics)
    assert "T7" in invalidated
    assert "other" not in invalidated
