"""Shares of a topic's queues that the broker assigns."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.broker.handlers.assignment import Share, TopicQueues, assigned_queues
from skyroute.message.queue_ref import QueueRef
from skyroute.message.queue_shares import average_positions, average_share, circle_positions, circle_share, ranked
from skyroute.routing.topology import BrokerGroup, BrokerQueues, QueueSettings, TopicRoute

BROKERS = st.dictionaries(st.sampled_from(["b", "a", "\ufb01", "\U00010000"]), st.integers(0, 5))


def queues_of(brokers: dict[str, int], permission: int = 6) -> TopicQueues:
    groups = tuple(BrokerGroup(name, "c", {0: "127.0.0.1:1"}) for name in brokers)
    queues = tuple(BrokerQueues(name, QueueSettings(count, count, permission)) for name, count in brokers.items())
    return TopicQueues("T", TopicRoute(groups, queues))


def refs(brokers: dict[str, int]) -> list[QueueRef]:
    return [QueueRef("T", name, at) for name, count in brokers.items() for at in range(count)]


@given(BROKERS, st.lists(st.sampled_from("vwxyz"), unique=True))
def test_shares_by_position_are_those_of_apaches_strategies(brokers: dict[str, int], members: list[str]) -> None:
    queues = queues_of(brokers)
    for member in (*members, "stranger"):
        for positions, share in ((average_positions, average_share), (circle_positions, circle_share)):
            found = list(assigned_queues(positions, member, queues, ranked(members), None))
            assert found == share(member, refs(brokers), members)


@given(BROKERS, st.lists(st.sampled_from("vwxyz"), unique=True, min_size=3), st.integers(1, 3))
def test_members_that_share_queues_pop_from_all_together(
    brokers: dict[str, int], members: list[str], shared: int
) -> None:
    queues = queues_of(brokers)
    shares = [list(assigned_queues(average_positions, member, queues, ranked(members), shared)) for member in members]
    found = {queue for share in shares for queue in share}
    if shared >= len(members) - 1:
        assert {queue.queue_id for queue in found} <= {-1}
        assert {queue.broker_name for queue in found} == {name for name, count in brokers.items() if count}
    else:
        assert found == set(refs(brokers))
    assert all(len(set(share)) == len(share) for share in shares)


@pytest.mark.parametrize("share", [average_positions, circle_positions])
def test_a_queue_is_no_object_until_it_is_assigned(share: Share) -> None:
    queues = queues_of({"a": 1 << 30})
    assert len(queues) == 1 << 30
    positions = share(1, len(queues), 2)
    assert len(positions) == 1 << 29
    assert list(queues.at(positions[:1])) == [QueueRef("T", "a", positions[0])]


def test_a_member_that_shares_with_thousands_gets_its_queues_at_once() -> None:
    members = ranked(f"10.0.0.1@{at}" for at in range(4_000))
    started = time.thread_time()
    assert len(list(assigned_queues(average_positions, members[7], queues_of({"a": 4_000}), members, 2_000))) == 2_001
    assert time.thread_time() - started < 0.5  # a sort for each of them would take 10 s


def test_queues_without_read_permission_are_not_assigned() -> None:
    assert len(queues_of({"a": 4}, permission=2)) == 0
