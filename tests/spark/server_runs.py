"""Random runs of name servers, with real route tables and journals, and the route table after every record.

A Spark job has a high fixed cost, so tests simulate many runs first and then run one job over all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from skyroute.nameserver.journal.reader import read_records
from skyroute.nameserver.journal.recorder import Journal, JournalLimits
from skyroute.nameserver.journal.schema import Record
from skyroute.nameserver.server_events import Change, KvChanged, ServerStarted, ServerStopped
from skyroute.routing.errors import RegistrationRefusedError
from skyroute.routing.registration import Registration
from skyroute.routing.table import RouteTable
from skyroute.routing.topology import MASTER_ID, QueueSettings
from tests.model.test_route_table import (
    addresses,
    clusters,
    connections,
    ids,
    names,
    queue_settings,
    registrations,
    topics,
)
from tests.support.clock import ManualClock

BEGIN_S = 1_758_275_140.0
RESTORED_LEASE_S = 45.0

_pauses = st.sampled_from((0.0, 0.001, 0.5, 1.0, 7.25, 60.0, 3_600.0))
_acts = st.one_of(
    st.tuples(st.just("register"), registrations, connections),
    st.tuples(st.just("register"), registrations, connections),
    st.tuples(st.just("renew"), addresses, connections),
    st.tuples(st.just("drop"), connections),
    st.tuples(st.just("evict")),
    st.tuples(st.just("unregister"), clusters, addresses, names, ids),
    st.tuples(st.just("delete_topic"), topics),
    st.tuples(st.just("register_topic"), topics, st.dictionaries(names, queue_settings, max_size=2)),
    st.tuples(st.just("forbid"), names),
    st.tuples(st.just("permit"), names),
    st.tuples(st.just("set_entry"), topics),
    st.tuples(st.just("set_clock_back"), st.sampled_from((0.5, 30.0))),
    st.tuples(st.just("restart"), st.booleans(), st.booleans()),
)
steps = st.lists(st.tuples(_pauses, _acts), min_size=8, max_size=30)
Steps = Sequence[tuple[float, tuple[Any, ...]]]


@dataclass
class ServerRun:
    """One name server, its journal, and its route table after each sequence number."""

    folder: Path
    server: str
    clock: ManualClock
    prefix: str = ""
    """Prefix of broker group names, to keep runs apart."""
    tables: dict[int, set[tuple[Any, ...]]] = field(default_factory=dict)
    _table: RouteTable = field(default_factory=RouteTable)
    _registrations: dict[str, Registration] = field(default_factory=dict)
    _journal: Journal | None = None
    _first_after: int = 0
    """The last sequence number of an earlier run with the same journal."""

    def start(self, *, warm: bool = False) -> None:
        limits = JournalLimits(segment_bytes=2_000, age_s=1e9)
        self._journal = Journal.open(self.folder / "journal", server_id=self.server, limits=limits, clock=self.clock)
        if not self.tables:
            self._first_after = self._journal.sequence
        image = self._table.snapshot(self.clock.monotonic())
        self._table = RouteTable()
        restored = self._table.restore(image, lease_s=RESTORED_LEASE_S, now=self.clock.monotonic()) if warm else ()
        self._record(ServerStarted("127.0.0.1:9876", len(restored), 0), *restored)

    def stop(self, *, cleanly: bool = True) -> None:
        assert self._journal is not None
        if cleanly:
            self._record(ServerStopped())
        self._journal.close()

    def step(self, pause_s: float, act: tuple[Any, ...]) -> None:
        self.clock.advance(pause_s)
        name, *arguments = act
        getattr(self, f"_{name}")(*arguments)

    @cached_property
    def records(self) -> list[Record]:
        """All records of the journal; read it when the run is over."""
        return list(read_records(self.folder / "journal", after=self._first_after))

    def _record(self, *changes: Change) -> None:
        assert self._journal is not None
        self._journal.append(changes)
        self.tables[self._journal.sequence] = rows_of(self._table, self.clock.monotonic())

    def _register(self, registration: Registration, connection: int) -> None:
        assert registration.table is not None
        table = replace(
            registration.table,
            topics={topic: _small(given) for topic, given in registration.table.topics.items()},
        )
        registration = replace(registration, broker_name=self.prefix + registration.broker_name, table=table)
        self._registrations[registration.address] = registration
        try:
            outcome = self._table.register(registration, connection=connection, now=self.clock.monotonic())
        except RegistrationRefusedError:
            return
        self._record(*outcome.events)

    def _renew(self, address: str, connection: int) -> None:
        known = self._registrations.get(address)
        if known is not None:
            self._record(*(self._table.renew(known.key, connection=connection, now=self.clock.monotonic()) or ()))

    def _drop(self, connection: int) -> None:
        self._record(*self._table.drop_connection(connection))

    def _evict(self) -> None:
        self._record(*self._table.evict_expired(self.clock.monotonic()))

    def _unregister(self, cluster: str, address: str, name: str, broker_id: int) -> None:
        self._record(*self._table.unregister(cluster, address, self.prefix + name, broker_id))

    def _delete_topic(self, topic: str) -> None:
        self._record(*self._table.delete_topic(topic))

    def _register_topic(self, topic: str, given: dict[str, Any]) -> None:
        self._record(
            *self._table.register_topic(topic, {self.prefix + name: _small(one) for name, one in given.items()})
        )

    def _forbid(self, name: str) -> None:
        self._record(*self._table.forbid_writes(self.prefix + name)[1])

    def _permit(self, name: str) -> None:
        self._record(*self._table.restore_writes(self.prefix + name)[1])

    def _set_entry(self, key: str) -> None:
        self._record(KvChanged("n", key, None, '}{"v', "127.0.0.1:1"))

    def _set_clock_back(self, seconds: float) -> None:
        self.clock.set_back(seconds)

    def _restart(self, cleanly: bool, warm: bool) -> None:
        self.stop(cleanly=cleanly)
        self.clock.advance(2.0)
        self.start(warm=warm)


def _small(given: QueueSettings) -> QueueSettings:
    """Limit flags to the values that brokers use: larger numbers do not fit Spark's types."""
    return given._replace(sys_flag=given.sys_flag % 4)


def rows_of(table: RouteTable, now: float) -> set[tuple[Any, ...]]:
    """Return a route table as rows, including the permissions that clients get."""
    rows: set[tuple[Any, ...]] = set()
    for group in table.snapshot(now).groups:
        by_id = {member.broker_id: member for member in group.members}
        acting = min(by_id) if group.acting_master and MASTER_ID not in by_id else None
        rows.add(("group", group.cluster, group.name, group.zone, group.acting_master))
        for broker_id, member in by_id.items():
            about = (broker_id, member.address, member.ha_address, tuple(member.version))
            heard = member.left_s is None
            rows.add(("broker", group.cluster, group.name, *about, broker_id == acting, heard, member.filter_servers))
        for topic, own in group.queues.items():
            client_settings = table.settings(group.name, topic)
            assert client_settings is not None
            mapping = group.mappings.get(topic)
            rows.add(
                (
                    *("topic", group.cluster, group.name, topic, own.read_queues, own.write_queues),
                    *(client_settings.permission, own.permission, own.sys_flag, topic in group.forbidden),
                    None if mapping is None else (mapping.topic, mapping.broker_name, mapping.epoch),
                )
            )
    return rows


def simulate_many(count: int, strategy: st.SearchStrategy[Any], simulate: Callable[[int, Any], None]) -> None:
    """Have hypothesis draw `count` examples, and simulate each."""
    number = 0

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def each(drawn: Any) -> None:
        nonlocal number
        number += 1
        simulate(number, drawn)

    each()
