import pytest

from skyroute.client.producing.queue_selection import (
    BROKERS_MAX,
    FAILURE_LATENCY_S,
    BrokerHealth,
    Rotation,
    publish_queues,
    subscribe_queues,
)
from skyroute.message.queue_ref import QueueRef
from skyroute.routing.topology import BrokerGroup, BrokerQueues, QueueSettings, TopicRoute

READ, WRITE = 4, 2


def route(
    *brokers: tuple[str, int, int, int], without_master: tuple[str, ...] = (), order: str | None = None
) -> TopicRoute:
    """Brokers by name, read queues, write queues and permission."""
    return TopicRoute(
        tuple(BrokerGroup(name, "C", {1 if name in without_master else 0: f"{name}:1"}) for name, _, _, _ in brokers),
        tuple(BrokerQueues(name, QueueSettings(read, write, permission)) for name, read, write, permission in brokers),
        order_config=order,
    )


def places(queues: list[QueueRef]) -> list[str]:
    return [f"{queue.broker_name}{queue.queue_id}" for queue in queues]


# ---------------------------------------------------------------------------------------------------- queues of a route


def test_queues_to_write_are_sorted_by_broker() -> None:
    assert places(publish_queues("T", route(("b", 1, 2, 6), ("a", 1, 1, 6)))) == ["a0", "b0", "b1"]


def test_only_brokers_that_may_be_written_and_have_a_master_are_written() -> None:
    known = route(("a", 1, 1, 6), ("b", 1, 1, READ), ("c", 1, 1, 6), ("d", 1, 1, WRITE), without_master=("c",))
    assert places(publish_queues("T", known)) == ["a0", "d0"]


def test_a_broker_that_is_in_no_group_is_not_written() -> None:
    known = route(("a", 1, 1, 6))
    assert publish_queues("T", TopicRoute((), known.queues)) == []


def test_unknown_permission_bits_are_ignored() -> None:
    assert places(publish_queues("T", route(("a", 1, 1, 6 | 1 << 9)))) == ["a0"]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("b:2;a:1", ["b0", "b1", "a0"]),
        ("b:1", ["b0"]),
        (" b : 1 ; ;x;:3;a:x;a:-1", []),
        ("b:1;", ["b0"]),
        ("", ["a0", "b0"]),
    ],
)
def test_an_order_config_names_the_queues_in_its_own_order(order: str, expected: list[str]) -> None:
    assert places(publish_queues("T", route(("a", 1, 1, 6), ("b", 1, 1, 6), order=order))) == expected


def test_queues_to_read_need_no_master() -> None:
    known = route(("b", 2, 1, READ), ("a", 1, 9, 6), ("c", 3, 3, WRITE), without_master=("b",))
    assert places(subscribe_queues("T", known)) == ["a0", "b0", "b1"]


# ------------------------------------------------------------------------------------------------------------- rotation


def queues(*brokers: str, each: int = 2) -> list[QueueRef]:
    return [QueueRef("T", broker, number) for broker in brokers for number in range(each)]


def test_every_queue_has_its_turn() -> None:
    rotation = Rotation(queues("a", "b"))
    twice = [rotation.next() for _ in range(8)]
    assert twice[:4] == twice[4:]
    assert sorted(twice[:4]) == queues("a", "b")


def test_brokers_to_avoid_are_avoided() -> None:
    rotation = Rotation(queues("a", "b", "c"))
    assert {rotation.next({"a", "c"}).broker_name for _ in range(20)} == {"b"}


def test_if_all_brokers_are_to_be_avoided_all_are_used() -> None:
    rotation = Rotation(queues("a", "b"))
    assert {rotation.next({"a", "b"}) for _ in range(20)} == set(queues("a", "b"))


def test_producers_do_not_all_begin_with_the_first_queue() -> None:
    assert len({Rotation(queues("a", each=16)).next() for _ in range(100)}) > 1


# --------------------------------------------------------------------------------------------------------------- health


@pytest.mark.parametrize(
    ("latency_s", "avoided_s"),
    [
        (0.0, 0.0),
        (0.05, 0.0),
        (0.1, 0.0),
        (0.549, 0.0),
        (0.55, 2.0),
        (1.799, 2.0),
        (1.8, 5.0),
        (3.0, 6.0),
        (5.0, 10.0),
        (FAILURE_LATENCY_S, 10.0),
        (14.999, 10.0),
        (15.0, 30.0),
        (3600.0, 30.0),
    ],
)
def test_a_slow_broker_is_avoided_for_as_long_as_java_does(latency_s: float, avoided_s: float) -> None:
    health = BrokerHealth()
    health.report("a", latency_s, now=100.0)
    assert health.avoided(now=100.0) == ({"a"} if avoided_s else set())
    assert health.avoided(now=100.0 + avoided_s) == set()
    if avoided_s:
        health.report("a", latency_s, now=200.0)
        assert health.avoided(now=200.0 + avoided_s - 0.001) == {"a"}


def test_a_smaller_penalty_does_not_shorten_a_larger_one() -> None:
    health = BrokerHealth()
    health.report("a", 15.0, now=0.0)
    health.report("a", 0.6, now=1.0)
    assert health.avoided(now=29.9) == {"a"}
    assert health.avoided(now=30.0) == set()


def test_brokers_are_judged_one_by_one() -> None:
    health = BrokerHealth()
    health.report("a", 0.6, now=0.0)
    health.report("b", 3.0, now=0.0)
    health.report("c", 0.1, now=0.0)
    assert health.avoided(now=1.0) == {"a", "b"}
    assert health.avoided(now=3.0) == {"b"}


def test_the_number_of_avoided_brokers_is_bounded() -> None:
    health = BrokerHealth()
    for number in range(BROKERS_MAX + 1):
        health.report(str(number), 15.0, now=0.0)
    assert health.avoided(now=1.0) == {str(BROKERS_MAX)}
