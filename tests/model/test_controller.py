"""The controller's rules under random requests, heartbeats and deaths, against the whole history.

- An epoch is given once: every change of the master has a larger epoch than all before, also after a removal.
- There are no two masters in one epoch.
- A master comes from the sync state set as it was before the election, unless the election is the first of the group or
  an unclean one, which is said and happens only when allowed. Every master is in the set.
- An id never belongs to two check codes.
- A refused request changes nothing, and a request that changes nothing reports no event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skyroute.controller.errors import Refusal, RequestRefusedError
from skyroute.controller.events import Cause, MasterElected, MasterLost, SyncSetChanged
from skyroute.controller.rules import (
    Outcome,
    SyncState,
    change_sync_set,
    elect,
    grant_id,
    needs_election,
    next_broker_id,
    register,
    remove_replicas,
    view,
)
from skyroute.controller.state import GroupState, LiveReplicas, Progress

CLUSTER, NAME = "C", "broker-a"
ids = st.integers(0, 5)
progress = st.builds(Progress, st.integers(0, 3), st.integers(0, 1 << 40), st.integers(0, 2))
codes = st.sampled_from(["10.0.0.1:10911;1", "10.0.0.2:10911;2", "10.0.0.3:10911;3"])


class ControllerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.group: GroupState | None = None
        self.heard: dict[int, Progress] = {}
        self.is_settled = True
        self.allow_unclean = False
        self.masters: list[tuple[int, int | None]] = []
        """Every change of the master: epoch and id."""
        self.codes: dict[int, str] = {}
        self.had_master = False
        """Whether messages may exist, so that the next master must have them."""

    @initialize(in_sync=st.sets(st.sampled_from([1, 2, 3]), max_size=3))
    def begin(self, in_sync: set[int]) -> None:
        """Start with three replicas and a sync state set, or with nothing."""
        if in_sync:
            self.group = three_replicas(in_sync | {1})
            self.masters.append((1, 1))
            self.had_master = True

    @property
    def alive(self) -> LiveReplicas:
        return LiveReplicas(dict(self.heard), self.is_settled)

    def ask(self, rule_of_group: Callable[[], Outcome[Any]]) -> None:
        before = self.group
        try:
            outcome = rule_of_group()
        except RequestRefusedError:
            return
        after = outcome.group
        assert (after == before or bool(outcome.events)) if before is not None else after is not None
        for event in outcome.events:
            if isinstance(event, MasterElected):
                self.check_election(before, event)
                self.masters.append((event.master_epoch, event.master))
            elif isinstance(event, MasterLost):
                self.masters.append((event.master_epoch, None))
            elif isinstance(event, SyncSetChanged):
                assert event.after <= self.heard.keys() | {before.master if before else None}
        assert after is not None
        self.had_master = (self.had_master or after.master is not None) and not after.is_empty
        if before is not None:
            assert after.master_epoch - before.master_epoch in (0, 1)
            assert (after.master, after.master_epoch) == (before.master, before.master_epoch) or (
                after.master_epoch > before.master_epoch
            )
            if after.sync_set != before.sync_set:
                assert after.sync_set_epoch == before.sync_set_epoch + 1
        self.group = after

    def check_election(self, before: GroupState | None, event: MasterElected) -> None:
        assert before is not None
        if event.is_unclean:
            assert self.allow_unclean
            assert event.master not in before.sync_set or event.master not in self.heard
        elif self.had_master:
            assert event.master in before.sync_set
            assert event.master in self.heard
        if self.had_master and not self.is_settled:
            assert before.sync_set <= self.heard.keys()

    def draw_id(self, data: st.DataObject) -> int:
        """Draw a replica of the group, mostly."""
        members = sorted(self.group.replicas) if self.group else []
        return data.draw(st.sampled_from([*members, *members, *members, 0, 9]))

    # Brokers

    @rule(code=codes, wanted=st.one_of(st.none(), ids))
    def apply(self, code: str, wanted: int | None) -> None:
        broker_id = next_broker_id(self.group) if wanted is None else wanted
        self.ask(lambda: grant_id(self.group, CLUSTER, NAME, broker_id, code))

    @rule(data=st.data(), address=st.sampled_from(["10.0.0.1:10911", "10.0.0.9:10911"]))
    def register(self, data: st.DataObject, address: str) -> None:
        broker_id = self.draw_id(data)
        self.ask(lambda: register(self.group, CLUSTER, NAME, broker_id, address, self.alive))

    @rule(data=st.data(), designate=st.booleans())
    def elect(self, data: st.DataObject, designate: bool) -> None:
        broker_id = self.draw_id(data)
        self.ask(
            lambda: elect(
                *(self.group, NAME, broker_id, self.alive), designate=designate, allow_unclean=self.allow_unclean
            )
        )

    @rule(data=st.data())
    def change_set(self, data: st.DataObject) -> None:
        group = self.group
        members = frozenset(self.draw_id(data) for _ in range(3))
        asker = data.draw(st.one_of(ids, st.just((group and group.master) or 0)))
        epoch = data.draw(st.one_of(st.integers(0, 9), st.just(group.master_epoch if group else 0)))
        set_epoch = data.draw(st.one_of(st.integers(0, 9), st.just(group.sync_set_epoch if group else 0)))
        self.ask(lambda: change_sync_set(self.group, NAME, asker, epoch, SyncState(members, set_epoch), self.alive))

    @rule()
    def let_all_join(self) -> None:
        """Let every replica send a heartbeat, and the master take all into the set."""
        group = self.group
        if group is not None and group.master is not None:
            self.heard = {broker_id: Progress(1, broker_id) for broker_id in group.replicas}
            wanted = SyncState(frozenset(group.replicas), group.sync_set_epoch)
            self.ask(lambda: change_sync_set(group, NAME, group.master or 0, group.master_epoch, wanted, self.alive))

    @rule(data=st.data(), said=progress)
    def heartbeat(self, data: st.DataObject, said: Progress) -> None:
        self.heard[self.draw_id(data)] = said

    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.heard.pop(self.draw_id(data), None)

    # The controller and its operator

    @rule()
    def scan(self) -> None:
        if self.group is not None and needs_election(self.group, self.alive):
            self.ask(
                lambda: elect(
                    *(self.group, NAME, None, self.alive), allow_unclean=self.allow_unclean, cause=Cause.MASTER_DEAD
                )
            )

    @rule(data=st.data(), is_whole=st.sampled_from([False, False, False, True]), allow_living=st.booleans())
    def remove(self, data: st.DataObject, is_whole: bool, allow_living: bool) -> None:
        broker_ids = None if is_whole else frozenset({self.draw_id(data)})
        self.ask(lambda: remove_replicas(self.group, NAME, broker_ids, self.alive, allow_living=allow_living))

    @rule(is_settled=st.booleans())
    def restart(self, is_settled: bool) -> None:
        self.is_settled = is_settled
        self.heard.clear()

    @rule(allowed=st.booleans())
    def allow(self, allowed: bool) -> None:
        self.allow_unclean = allowed

    # What always holds

    @invariant()
    def epochs_are_given_once(self) -> None:
        epochs = [epoch for epoch, _ in self.masters]
        assert epochs == sorted(set(epochs))
        if self.group is not None and self.masters:
            assert (self.group.master_epoch, self.group.master) == self.masters[-1]

    @invariant()
    def ids_belong_to_one_check_code(self) -> None:
        for broker_id, replica in (self.group.replicas if self.group else {}).items():
            assert self.codes.setdefault(broker_id, replica.check_code) == replica.check_code
            assert self.group is not None
            assert broker_id < self.group.next_id

    @invariant()
    def the_master_is_a_replica_in_the_set(self) -> None:
        if self.group is not None and self.group.master is not None:
            assert self.group.master in self.group.sync_set
            assert self.group.sync_set <= self.group.replicas.keys()
            assert view(self.group, NAME).master is not None


ControllerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestController = ControllerMachine.TestCase


def test_a_lost_master_is_replaced_by_the_longest_log_of_the_set() -> None:
    group = three_replicas()
    alive = LiveReplicas({2: Progress(1, 5 << 30), 3: Progress(1, 10 << 30)})
    outcome = elect(group, NAME, None, alive, cause=Cause.MASTER_DEAD)
    assert outcome.group is not None
    assert (outcome.group.master, outcome.group.master_epoch, outcome.group.sync_set) == (3, 2, frozenset({3}))


def test_a_replica_outside_the_set_is_elected_only_when_allowed() -> None:
    group = three_replicas(sync_set={1})
    alive = LiveReplicas({2: Progress(1, 7)})
    lost = elect(group, NAME, None, alive, cause=Cause.MASTER_DEAD).group
    assert lost is not None
    assert (lost.master, lost.master_epoch, lost.sync_set) == (None, 2, frozenset({1}))
    (event,) = elect(group, NAME, None, alive, allow_unclean=True).events
    assert isinstance(event, MasterElected)
    assert (event.master, event.is_unclean) == (2, True)


def test_no_election_before_the_controller_has_listened() -> None:
    group = three_replicas()
    early = LiveReplicas({2: Progress(1, 7)}, is_settled=False)
    assert not needs_election(group, early)
    assert not elect(group, NAME, 2, early).answer.is_new
    with pytest.raises(RequestRefusedError) as refused:
        elect(group, NAME, 2, early, designate=True)
    assert refused.value.refusal is Refusal.ELECTION_FAILED


def three_replicas(sync_set: set[int] | None = None) -> GroupState:
    group: GroupState | None = None
    for broker_id in (1, 2, 3):
        group = grant_id(group, CLUSTER, NAME, broker_id, f"10.0.0.{broker_id}:10911;{broker_id}").group
    group = elect(group, NAME, 1, LiveReplicas({})).group
    wanted = SyncState(frozenset(sync_set or {1, 2, 3}), 1)
    everyone = LiveReplicas(dict.fromkeys((1, 2, 3), Progress()))
    if wanted.members != {1}:
        group = change_sync_set(group, NAME, 1, 1, wanted, everyone).group
    assert group is not None
    return group
