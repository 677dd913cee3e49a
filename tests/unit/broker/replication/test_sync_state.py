"""The sync state set on its master."""

from skyroute.broker.replication.epochs import Epochs
from skyroute.broker.replication.sync_state import BARRED_S, JOIN_GAP_BYTES, JOIN_S, Follower, SyncState
from skyroute.wire.auto_switch import Epoch

EPOCHS = Epochs((Epoch(1, 0), Epoch(2, 500)))
PATIENCE_S = 15.0


def master(*members: int, **acked: int) -> SyncState:
    """Broker 1 as master; `b2=700` is broker 2, which is connected and has the log up to 700."""
    followers = {
        int(name[1:]): Follower(int(name[1:]), acked=end, acked_at=100.0, caught_up_at=100.0)
        for name, end in acked.items()
    }
    return SyncState(1, frozenset({1, *members}), 5, confirmed=600, followers=followers)


def test_all_members_must_have_the_log_before_it_is_confirmed() -> None:
    assert master().confirm(1000) == 1000
    assert master(2, 3, b2=900, b3=800).confirm(1000) == 800
    assert master(2, b2=900, b3=0).confirm(1000) == 900


def test_nothing_is_confirmed_while_a_member_is_not_connected() -> None:
    assert master(2, 3, b2=900).confirm(1000) == 600


def test_the_confirmed_position_never_goes_back() -> None:
    assert master(2, b2=100).confirm(1000) == 600


def test_a_send_may_need_a_number_of_slaves() -> None:
    state = master(2, 3, b2=900, b3=800)
    assert [state.reached(slaves, 1000) for slaves in (1, 2, 3)] == [900, 800, 0]


def test_a_send_that_needs_no_slave_does_not_wait() -> None:
    assert master(2, b2=900).reached(0, 1000) == 1000


def test_a_member_that_is_silent_or_not_connected_is_not_in_sync() -> None:
    state = master(2, 3, 4, b2=900, b3=900)
    assert state.in_sync_count(heard_after=90.0) == 3
    state.note_ack(state.followers[3], 900, 900, 110.0)
    assert state.in_sync_count(heard_after=105.0) == 2
    state.followers.clear()
    assert state.in_sync_count(heard_after=105.0) == 1


def test_until_the_controller_has_answered_both_sets_must_acknowledge() -> None:
    state = master(2, b2=900, b3=700)
    state.asked = frozenset({1, 3})
    assert state.confirm(1000) == 700
    assert state.take(frozenset({1, 3}), 6)
    assert state.confirm(1000) == 700
    assert not state.take(frozenset({1, 2, 3}), 5)
    assert state.members == frozenset({1, 3})


def test_a_slave_joins_once_it_has_what_was_confirmed_without_it() -> None:
    state = master(b2=599)
    assert state.wanted(EPOCHS, 1000, 100.0, PATIENCE_S) is None
    assert state.confirm(1200) == 1000, "from now on it must acknowledge"
    state.note_ack(state.followers[2], 999, 1200, 100.1)
    assert state.wanted(EPOCHS, 1200, 100.1, PATIENCE_S) is None
    state.note_ack(state.followers[2], 1000, 1200, 100.1)
    assert state.wanted(EPOCHS, 1200, 100.1, PATIENCE_S) == frozenset({1, 2})


def test_a_slave_that_does_not_catch_up_holds_up_sends_for_a_moment_only() -> None:
    state = master(b2=599)
    assert state.wanted(EPOCHS, 1000, 100.0, PATIENCE_S) is None
    assert state.to_acknowledge == {2}
    assert state.wanted(EPOCHS, 1000, 100.1 + JOIN_S, PATIENCE_S) is None
    assert state.to_acknowledge == frozenset()
    assert state.confirm(1200) == 1200
    state.wanted(EPOCHS, 1200, 100.2 + JOIN_S, PATIENCE_S)
    assert state.to_acknowledge == frozenset(), "not at once again"
    state.wanted(EPOCHS, 1200, 100.2 + JOIN_S + BARRED_S, PATIENCE_S)
    assert state.to_acknowledge == {2}


def test_a_slave_that_the_controller_refuses_keeps_no_other_one_out() -> None:
    state = master(b2=1000, b3=1000)
    assert state.wanted(EPOCHS, 1000, 100.0, PATIENCE_S) == frozenset({1, 2})
    state.note_refusal(frozenset({1, 2}), 100.0)
    assert state.wanted(EPOCHS, 1000, 101.0, PATIENCE_S) == frozenset({1, 3})
    assert state.take(frozenset({1, 3}), 6)
    assert state.wanted(EPOCHS, 1000, 101.0, PATIENCE_S) is None
    assert state.wanted(EPOCHS, 1000, 100.0 + BARRED_S, PATIENCE_S) == frozenset({1, 2, 3})


def test_a_slave_that_is_far_behind_or_in_an_older_epoch_does_not_begin_to_join() -> None:
    state = master(b2=499, b3=700)
    state.wanted(EPOCHS, 701 + JOIN_GAP_BYTES, 100.0, PATIENCE_S)
    assert state.to_acknowledge == frozenset()
    state = master(b2=499)
    state.wanted(EPOCHS, 1000, 100.0, PATIENCE_S)
    assert state.to_acknowledge == frozenset()


def test_a_slave_that_has_reported_nothing_does_not_join() -> None:
    state = SyncState(1, frozenset({1}), 5, followers={2: Follower(2)})
    assert state.wanted(Epochs((Epoch(1, 0),)), 0, 100.0, PATIENCE_S) is None


def test_a_learner_never_joins() -> None:
    state = master(b2=1000)
    state.followers[2].is_learner = True
    assert state.wanted(EPOCHS, 1000, 100.0, PATIENCE_S) is None


def test_a_member_leaves_with_its_connection_or_when_it_lags_too_long() -> None:
    state = master(2, 3, b2=1000)
    assert state.wanted(EPOCHS, 1000, 1_000.0, PATIENCE_S) == frozenset({1, 2})
    state = master(2, b2=900)
    assert state.wanted(EPOCHS, 1000, 115.0, PATIENCE_S) is None
    assert state.wanted(EPOCHS, 1000, 115.1, PATIENCE_S) == frozenset({1})


def test_a_member_that_always_has_what_was_sent_does_not_lag() -> None:
    """Under load a slave never has the very end; it has caught up with the last part that was sent."""
    state = master(2, b2=900)
    follower = state.followers[2]
    follower.sent_at, follower.sent_end = 200.0, 950
    state.note_ack(follower, 949, 1000, 210.0)
    assert follower.caught_up_at == 100.0
    state.note_ack(follower, 950, 1000, 210.0)
    assert follower.caught_up_at == 200.0
    state.note_ack(follower, 1000, 1000, 210.0)
    assert follower.caught_up_at == 210.0
