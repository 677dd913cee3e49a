"""Which brokers are alive, with a time that only the test moves."""

import pytest

from skyroute.controller import heartbeats
from skyroute.controller.heartbeats import Heartbeats, ReplicaKey
from skyroute.controller.state import Progress

ONE, TWO = ReplicaKey("C", "a", 1), ReplicaKey("C", "a", 2)


def test_a_silent_broker_is_dead_after_the_time_it_asked_for() -> None:
    beats = Heartbeats(now=0.0)
    beats.beat(ONE, Progress(1, 5), holder=7, now=0.0, timeout_s=3.0)
    beats.beat(TWO, Progress(1, 6), holder=8, now=0.0)
    assert beats.expire(3.0) == ()
    assert beats.expire(3.1) == (ONE,)
    assert beats.live("C", "a", 3.1).progress == {2: Progress(1, 6)}
    assert beats.expire(10.1) == (TWO,)
    assert len(beats) == 0
    assert not beats._groups
    assert not beats._keys_of


def test_a_closed_connection_kills_its_brokers_at_once() -> None:
    beats = Heartbeats(now=0.0)
    beats.beat(ONE, Progress(), holder=7, now=0.0)
    beats.beat(TWO, Progress(), holder=7, now=0.0)
    beats.beat(TWO, Progress(), holder=8, now=1.0)  # it has reconnected before the old connection closes
    assert beats.drop_holder(7) == (ONE,)
    assert beats.drop_holder(7) == ()
    assert 2 in beats.live("C", "a", 1.0)


def test_a_stranger_with_the_id_of_a_broker_neither_kills_it_nor_keeps_it_alive() -> None:
    beats = Heartbeats(now=0.0)
    for now in (0.0, 1.0, 2.0):
        beats.beat(ONE, Progress(1, 5), holder=7, now=now)
        beats.beat(ONE, Progress(9, 9), holder=66, now=now + 0.5, timeout_s=0.001)
    assert beats.live("C", "a", 2.5).progress == {1: Progress(1, 5)}
    assert beats.expire(2.6) == ()
    assert beats.drop_holder(66) == ()
    beats.beat(ONE, Progress(9, 9), holder=67, now=2.7)
    assert beats.drop_holder(7) == (ONE,)
    assert not beats._groups
    assert not beats._keys_of


def test_a_broker_that_has_reconnected_is_alive_on_its_new_connection() -> None:
    beats = Heartbeats(now=0.0)
    beats.beat(ONE, Progress(1, 5), holder=7, now=0.0)
    beats.beat(ONE, Progress(1, 6), holder=8, now=1.0)
    beats.beat(ONE, Progress(1, 6), holder=9, now=1.1)
    assert beats.drop_holder(8) == ()
    assert beats.drop_holder(7) == ()
    assert beats.live("C", "a", 1.1).progress == {1: Progress(1, 6)}
    assert beats.drop_holder(9) == (ONE,)
    assert not beats._keys_of


def test_a_new_connection_takes_over_from_one_that_is_silent_for_half_its_time() -> None:
    beats = Heartbeats(now=0.0)
    beats.beat(ONE, Progress(1, 5), holder=7, now=0.0)
    beats.beat(ONE, Progress(1, 6), holder=8, now=4.9)
    assert beats.live("C", "a", 4.9).progress == {1: Progress(1, 5)}
    beats.beat(ONE, Progress(1, 7), holder=8, now=5.0)
    assert beats.live("C", "a", 5.0).progress == {1: Progress(1, 7)}
    assert beats.drop_holder(7) == ()
    assert beats.expire(14.9) == ()
    assert beats.drop_holder(8) == (ONE,)


def test_the_last_heartbeat_counts_also_after_a_truncation() -> None:
    beats = Heartbeats(now=0.0)
    beats.beat(ONE, Progress(2, 900), holder=7, now=0.0)
    beats.beat(ONE, Progress(2, 100), holder=7, now=1.0)
    assert beats.live("C", "a", 1.0).progress[1] == Progress(2, 100)


def test_a_controller_listens_before_it_calls_a_broker_dead() -> None:
    beats = Heartbeats(now=100.0, settle_s=10.0)
    assert not beats.live("C", "a", 109.9).is_dead(1)
    assert beats.live("C", "a", 110.0).is_dead(1)
    beats.listen_again(200.0)
    assert not beats.live("C", "a", 209.9).is_dead(1)


def test_an_elected_broker_is_alive_before_its_first_heartbeat() -> None:
    beats = Heartbeats(now=0.0)
    beats.presume(ONE, holder=7, now=20.0)
    assert 1 in beats.live("C", "a", 20.0)
    beats.beat(ONE, Progress(1, 5), holder=7, now=20.1)
    beats.presume(ONE, holder=9, now=21.0)
    assert beats.live("C", "a", 21.0).progress[1] == Progress(1, 5)
    assert beats.drop_holder(7) == (ONE,)


def test_heartbeats_of_too_many_brokers_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "BROKERS_MAX", 1)
    beats = Heartbeats(now=0.0)
    assert beats.beat(ONE, Progress(), holder=7, now=0.0)
    assert not beats.beat(ReplicaKey("C", "b", 1), Progress(), holder=7, now=0.0)
    assert beats.beat(ONE, Progress(), holder=7, now=1.0)
    assert list(beats._groups) == [("C", "a")]


def test_one_connection_cannot_fill_the_table_of_a_controller_that_does_not_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeats, "UNKNOWN_A_CONNECTION", 1)
    beats = Heartbeats(now=0.0)
    for number in range(1, 4):
        beats.beat(ReplicaKey("C", "x", number), Progress(), holder=7, now=0.0, is_registered=False)
    assert len(beats) == 1
    assert beats.beat(ONE, Progress(), holder=7, now=0.0, is_registered=True)


def test_a_new_leader_keeps_registered_brokers_and_listens_again_if_it_had_ignored_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beats = Heartbeats(now=0.0, settle_s=10.0)
    stranger = ReplicaKey("C", "x", 1)
    for key in (ONE, stranger):
        beats.beat(key, Progress(), holder=7, now=0.0, is_registered=False)
    beats.keep(lambda key: key == ONE, now=20.0)
    assert (len(beats), beats.drop_holder(7), beats.is_settled(20.0)) == (1, (ONE,), True)
    monkeypatch.setattr(heartbeats, "BROKERS_MAX", 1)
    for key in (stranger, ONE):
        beats.beat(key, Progress(), holder=7, now=20.0, is_registered=False)
    beats.keep(lambda key: key == ONE, now=20.0)
    assert (len(beats), beats.is_settled(29.0), beats.is_settled(30.0)) == (0, False, True)
    beats.keep(lambda key: True, now=40.0)
    assert beats.is_settled(40.0)


@pytest.mark.parametrize(("asked", "given"), [(-1.0, 10.0), (0.0, 10.0), (1e9, 300.0)])
def test_the_time_a_broker_asks_for_has_bounds(asked: float, given: float) -> None:
    beats = Heartbeats(now=0.0)
    beats.beat(ONE, Progress(), holder=7, now=0.0, timeout_s=asked)
    assert beats.expire(given) == ()
    assert beats.expire(given + 0.1) == (ONE,)
