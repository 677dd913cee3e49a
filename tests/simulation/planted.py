"""Planted bugs: one for each invariant. A checker that finds none of them checks nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final
from unittest import mock

import msgspec

from skyroute.broker.clients.client_expiry import ClientExpiryScan
from skyroute.broker.scheduling.delay_levels import DelayLevels
from skyroute.broker.store.flush import Flush
from skyroute.broker.transactions.transactions import Transactions
from skyroute.client.consuming.membership import GroupMembership
from skyroute.client.consuming.push.message_buffer import MessageBuffer
from skyroute.client.producing.producer import Producer
from skyroute.client.producing.queue_selection import subscribe_queues
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.nameserver.persistence import Persistence
from skyroute.nameserver.route_history import RouteHistory
from skyroute.nameserver.server_events import Change
from skyroute.routing.events import TopicsChanged
from skyroute.routing.group_state import GroupMember
from skyroute.routing.leases import Leases
from skyroute.routing.table import RouteTable
from skyroute.wire.calls.transaction import TransactionEnd, TransactionOutcome
from skyroute.wire.calls.watch import RouteChange
from tests.simulation.scenario import Plan, Report, Scenario, run

Patch = AbstractContextManager[Any]

SEEDS: Final = range(1, 6)
"""Seeds of which one must show a planted bug."""

_CALM: Final = Plan(load_s=120.0, gap_s=4.0, fault_gap_s=0.0, handler_failures=0.0, settle_s=60.0)
"""No fault: nothing excuses a redelivery."""


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug, the checker that must find it, and a run in which it shows."""

    name: str
    invariant: str
    plan: Plan
    plant: Callable[[], Patch]
    scenario: type[Scenario] = Scenario


def _forget_to_sync() -> Patch:
    return mock.patch.object(Flush, "run", Flush.cancel)


def _forget_to_sync_names() -> Patch:
    return mock.patch.object(Flush, "add_folder", return_value=None)


def _send_again_after_success() -> Patch:
    send, calls = Producer._send, count(1)

    async def send_twice(self: Producer, *arguments: Any) -> Any:
        if next(calls) % 10 == 0:
            await send(self, *arguments)
        return await send(self, *arguments)

    return mock.patch.object(Producer, "_send", send_twice)


def _take_the_newest_first() -> Patch:
    def take(self: MessageBuffer, count_max: int) -> list[StoredMessage]:
        return [self._waiting.pop()] if self._waiting else []

    return mock.patch.object(MessageBuffer, "take", take)


def _take_all_queues() -> Patch:
    async def share_of(self: GroupMembership, topic: str) -> frozenset[QueueRef]:
        return frozenset(subscribe_queues(topic, await self._session.routes.find(topic)))

    return mock.patch.object(GroupMembership, "share_of", share_of)


def _keep_dead_brokers() -> Patch:
    nothing: Callable[[RouteTable, float], tuple[()]] = lambda *_: ()  # noqa: E731 - a value for the patch
    return mock.patch.multiple(RouteTable, evict_expired=nothing, drop_connection=nothing)


def _let_old_connections_end_brokers() -> Patch:
    """A connection that closes removes every broker that ever registered on it."""
    change_connection, close_connection = Leases.change_connection, Leases.close_connection
    former: dict[int, list[GroupMember]] = {}

    def note_and_change(self: Leases, member: GroupMember, connection: int) -> None:
        former.setdefault(member.connection, []).append(member)
        change_connection(self, member, connection)

    def ever_on(self: Leases, connection: int) -> list[GroupMember]:
        older = [member for member in former.get(connection, ()) if self.find(member.key) is member]
        return list(dict.fromkeys([*close_connection(self, connection), *older]))

    return mock.patch.multiple(Leases, change_connection=note_and_change, close_connection=ever_on)


def _let_delayed_registrations_take_brokers_back() -> Patch:
    """The last connection on which a registration arrives owns the broker, however old it is."""

    def take_over(self: Leases, member: GroupMember, connection: int) -> None:
        if member.connection != connection:
            self.remove(member)
            member.connection = connection
            self.add(member)

    return mock.patch.object(Leases, "change_connection", take_over)


def _report_changes_again() -> Patch:
    since, calls = RouteHistory.since, count(1)

    def since_one_before(
        self: RouteHistory, revision: int, topics: Collection[str] | None
    ) -> tuple[tuple[RouteChange, ...], int]:
        is_wrong = next(calls) in range(50, 70)  # not for ever: a watch that is answered at once is repeated at once
        return since(self, max(self.floor, revision - 1) if is_wrong else revision, topics)

    return mock.patch.object(RouteHistory, "since", since_one_before)


def _do_not_record_topics() -> Patch:
    record = Persistence.record

    def record_others(self: Persistence, changes: Collection[Change]) -> None:
        record(self, [change for change in changes if not isinstance(change, TopicsChanged)])

    return mock.patch.object(Persistence, "record", record_others)


def _deliver_early() -> Patch:
    deliver_due = DelayLevels.deliver_due
    return mock.patch.object(DelayLevels, "deliver_due", lambda self, now_ms: deliver_due(self, now_ms + 900))


def _commit_what_is_rolled_back() -> Patch:
    end = Transactions.end

    def commit(self: Transactions, word: TransactionEnd, *arguments: Any) -> None:
        if word.outcome is TransactionOutcome.ROLLBACK:
            word = msgspec.structs.replace(word, outcome=TransactionOutcome.COMMIT)
        end(self, word, *arguments)

    return mock.patch.object(Transactions, "end", commit)


def _fail_in_the_background() -> Patch:
    return mock.patch.object(ClientExpiryScan, "scan", side_effect=RuntimeError("planted"))


def _faulty(*faults: str, load_s: float = 600.0, settle_s: float = 120.0, fault_gap_s: float = 60.0) -> Plan:
    return Plan(load_s=load_s, gap_s=4.0, fault_gap_s=fault_gap_s, faults=faults, sync_flush=True, settle_s=settle_s)


PLANTED: Final = (
    PlantedBug(
        "acknowledge before the disk has it",
        "no acknowledged message lost",
        _faulty("lose_power", fault_gap_s=20.0),
        _forget_to_sync,
    ),
    PlantedBug(
        "acknowledge before the disk has the name of the file",
        "no acknowledged message lost",
        replace(_faulty("lose_power", fault_gap_s=20.0), gap_s=1.0, loses_names=True),
        _forget_to_sync_names,
    ),
    PlantedBug("send again after success", "delivered at least once only", _CALM, _send_again_after_success),
    PlantedBug("take the newest first", "ordered consumption ordered", _CALM, _take_the_newest_first),
    PlantedBug("take all queues", "no queue with two owners", _CALM, _take_all_queues),
    PlantedBug(
        "keep dead brokers",
        "routes converge within a lease",
        _faulty("kill_broker", "partition", load_s=1200.0),
        _keep_dead_brokers,
    ),
    PlantedBug(
        "let old connections end brokers",
        "fresh registration stays",
        _faulty("half_open", load_s=400.0, fault_gap_s=100.0),
        _let_old_connections_end_brokers,
    ),
    PlantedBug(
        "let delayed registrations take brokers back",
        "fresh registration stays",
        _faulty("partition", load_s=900.0, fault_gap_s=60.0),
        _let_delayed_registrations_take_brokers_back,
    ),
    PlantedBug("report changes again", "watch revisions ordered", _faulty("kill_broker"), _report_changes_again),
    PlantedBug("do not record topics", "journal replay equals the table", _CALM, _do_not_record_topics),
    PlantedBug("deliver early", "delayed never early", _CALM, _deliver_early),
    PlantedBug("fail in the background", "nothing fails unhandled", _CALM, _fail_in_the_background),
    PlantedBug("commit what is rolled back", "half messages end once", _CALM, _commit_what_is_rolled_back),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether the checker of a planted bug has found it."""

    seed: int | None
    """The first seed that shows it; None if none of `SEEDS` does."""
    unplanted: dict[str, list[str]]
    """Violations of the same run without the bug; there must be none."""
    took_s: float


_unplanted: Final[dict[tuple[Plan, str], Report]] = {}
"""Runs without a bug, by plan and scenario: many bugs share one."""


def find_planted(bug: PlantedBug) -> Finding:
    """Run one seed without a bug, and then seeds with it until its checker finds it."""
    before = time.process_time()
    key = bug.plan, bug.scenario.__name__
    if key not in _unplanted:
        _unplanted[key] = run(SEEDS[0], bug.plan, scenario_of=bug.scenario)
    for seed in SEEDS:
        with bug.plant():
            report = run(seed, bug.plan, scenario_of=bug.scenario)
        if bug.invariant in report.violations:
            return Finding(seed, _unplanted[key].violations, time.process_time() - before)
    return Finding(None, _unplanted[key].violations, time.process_time() - before)
