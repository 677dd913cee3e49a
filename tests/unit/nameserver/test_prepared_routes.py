"""Topics with the same route share one answer, and no longer than they have the same route."""

from __future__ import annotations

import pytest

from skyroute.nameserver import prepared_routes
from skyroute.nameserver.invalidated_routes import invalidated_by
from skyroute.nameserver.prepared_routes import ANSWER_BYTES, ROUTE_BYTES, PreparedRoutes
from skyroute.routing.discovery import MEMBER_TOPIC_PREFIX, find_route
from skyroute.routing.events import RouteEvent
from skyroute.routing.table import RouteTable
from skyroute.routing.topology import QueueSettings, StaticMapping
from skyroute.wire.calls.route import encode_route
from skyroute.wire.fast_path import PreparedResponse
from skyroute.wire.fastjson import Dialect
from tests.unit.routing.brokers import SLAVE, WRITABLE, mapping, registration

STRICT, LEGACY = Dialect.STRICT, Dialect.LEGACY


class Routes:
    """Prepared routes of one table; every encoding is counted."""

    def __init__(self) -> None:
        self.table = RouteTable()
        self.encoded = 0
        self.traits: dict[str, str] = {}
        self.prepared = PreparedRoutes(self.table, self.encode, self.traits.get)

    def encode(self, topic: str, dialect: Dialect) -> PreparedResponse | None:
        self.encoded += 1
        route = find_route(self.table, topic, acting_master=True)
        return None if route is None else PreparedResponse(body=encode_route(route, dialect), is_cacheable=True)

    def register(self, **said: object) -> None:
        outcome = self.table.register(registration(**said), connection=1, now=0.0)  # type: ignore[arg-type]
        self.take(outcome.events)

    def take(self, events: tuple[RouteEvent, ...]) -> bool:
        return self.prepared.forget(*invalidated_by(events))

    def body(self, topic: str, dialect: Dialect = STRICT) -> bytes | None:
        answer = self.prepared.find(topic, dialect)
        return None if answer is None else answer.body


@pytest.fixture
def routes() -> Routes:
    return Routes()


def test_a_thousand_topics_with_the_same_queues_are_encoded_once(routes: Routes) -> None:
    topics = [f"T{at}" for at in range(1000)]
    routes.register(topics=topics)
    assert len({routes.body(topic) for topic in topics}) == 1
    assert routes.encoded == 1
    assert len({routes.body(topic, LEGACY) for topic in topics}) == 1
    assert routes.encoded == 2


def test_a_broker_that_joins_has_a_route_encoded_once_for_all_its_topics(routes: Routes) -> None:
    topics = [f"T{at}" for at in range(1000)]
    routes.register(topics=topics)
    before = {routes.body(topic) for topic in topics}
    routes.register(broker_id=1, address=SLAVE, topics=topics)
    after = {routes.body(topic) for topic in topics}
    assert len(after) == 1
    assert after != before
    assert routes.encoded == 2


def test_a_topic_that_changes_leaves_the_others_as_they_are(routes: Routes) -> None:
    routes.register(topics=("T1", "T2"))
    before = routes.body("T1")
    assert routes.body("T2") == before
    routes.register(topics={"T1": QueueSettings(1, 1, 6), "T2": WRITABLE}, version=2)
    assert routes.body("T1") != before
    assert routes.body("T2") == before
    assert routes.encoded == 2


@pytest.mark.parametrize("topic", [f"{MEMBER_TOPIC_PREFIX}broker-a", "Static"])
def test_a_topic_with_its_own_route_does_not_share_it(routes: Routes, topic: str) -> None:
    routes.register(
        broker_id=1,
        address=SLAVE,
        topics=("T1", topic),
        acting_master=True,
        mappings={"Static": mapping("Static")} if topic == "Static" else {},
    )
    for name in ("T1", topic):
        route = find_route(routes.table, name, acting_master=True)
        assert route is not None
        assert routes.body(name) == encode_route(route, STRICT)
    assert routes.body("T1") != routes.body(topic)


def test_what_else_a_route_depends_on_keeps_topics_apart(routes: Routes) -> None:
    routes.register(topics=("T1", "T2"))
    routes.traits["T2"] = "broker-a:8"
    routes.body("T1"), routes.body("T2")
    assert routes.encoded == 2


def test_a_topic_with_a_backslash_is_served_and_not_cached_by_bytes(routes: Routes) -> None:
    routes.register(topics=("a\\nb", "T1"))
    assert routes.body("a\\nb") == routes.body("T1")
    assert list(routes.prepared.by_topic) == ["T1"]


def test_a_change_of_topics_that_were_not_requested_drops_nothing(routes: Routes) -> None:
    routes.register(topics=("T1", "T2"))
    routes.body("T1")
    assert not routes.take(routes.table.delete_topic("T2"))
    assert routes.take(routes.table.delete_topic("T1"))
    assert routes.body("T1") is None


def test_a_change_of_many_topics_drops_all_routes(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_routes, "TOPICS_MAX", 2)
    routes.register(topics=("T1", "T2", "T3", "T4"))
    routes.body("T4")
    routes.register(topics={name: QueueSettings(1, 1, 6) for name in ("T1", "T2", "T3")}, version=2)
    assert routes.prepared.by_topic == {}


def test_the_cache_is_bounded(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_routes, "PREPARED_BYTES_MAX", 50_000)
    routes.register(topics={f"T{at}": QueueSettings(at, at, 6) for at in range(100)})
    for at in range(100):
        body = routes.body(f"T{at}")
        assert body is not None
        assert f'"readQueueNums":{at},'.encode() in body
        assert routes.prepared._bytes <= 50_000
    routes.prepared.forget((), ("broker-a",))
    assert 0 <= routes.prepared._bytes <= 50_000


@pytest.mark.parametrize("invalidated", [(("T0",), ()), ((), ("broker-a",))])
def test_a_change_after_routes_were_dropped_for_lack_of_room_counts_as_one_of_theirs(
    routes: Routes, monkeypatch: pytest.MonkeyPatch, invalidated: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    # Answers may be kept by their questions' bytes, too, and those must go when a route changes.
    monkeypatch.setattr(prepared_routes, "PREPARED_BYTES_MAX", ROUTE_BYTES + ANSWER_BYTES + 1000)
    routes.register(topics={"T0": QueueSettings(1, 1, 6), "T1": QueueSettings(2, 2, 6)})
    routes.body("T0")
    routes.prepared._place("T1")
    assert routes.prepared.forget(*invalidated)
    assert not routes.prepared.forget(("T0",), ())


def test_a_static_topic_whose_mapping_changes_is_encoded_again(routes: Routes) -> None:
    for counter, total in ((1, 3), (2, 2)):
        mapped = StaticMapping("T1", "broker-a", total, counter, current_ids={at: at for at in range(total)})
        routes.register(topics=["T1", "T2"], mappings={"T1": mapped}, version=counter)
        expected = routes.encode("T1", STRICT)
        assert expected is not None
        assert routes.body("T1") == expected.body
        assert f'"totalQueues":{total}'.encode() in expected.body
