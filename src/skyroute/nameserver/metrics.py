"""A name server in numbers, which docs/metrics.md lists. All are read when somebody asks. Needs the extra `metrics`."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from skyroute.clock import Clock
from skyroute.nameserver.handlers.routes import RouteHandlers
from skyroute.nameserver.housekeeping import LeaseScan
from skyroute.nameserver.journal.recorder import Journal
from skyroute.nameserver.kv_config import KvConfig
from skyroute.nameserver.persistence import Persistence
from skyroute.nameserver.watch import Watches
from skyroute.observing.exposition import add_times
from skyroute.observing.requests import RequestTimes
from skyroute.remoting.server import Server
from skyroute.routing.events import Cause, RouteEvent
from skyroute.routing.table import RouteTable
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.repeats import Repeats

_REPEATED: Final = (RequestCode.GET_ROUTEINFO_BY_TOPIC.name, ResponseCode.SUCCESS.name)
"""What was answered because the same was asked before: only routes that are known last."""


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"rocketmq_namesrv_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"rocketmq_namesrv_{name}", text, value=value)


@dataclass(frozen=True, slots=True)
class NameServerMetrics:
    """Reads the parts of a name server."""

    table: RouteTable
    kv: KvConfig
    routes: RouteHandlers
    repeats: Repeats
    watches: Watches | None
    memory: Callable[[], Persistence | None]
    server: Server
    scan: Callable[[], LeaseScan | None]
    events: Counter[tuple[type[RouteEvent], Cause]]
    times: RequestTimes
    clock: Clock

    async def collect(self) -> AsyncIterator[Metric]:
        for part in (self._requests, self._peers, self._route_table, self._changes, self._watchers, self._memory):
            for family in part():
                yield family

    def _requests(self) -> Iterator[Metric]:
        labels = ("request_code", "response_code")
        total = CounterMetricFamily("rocketmq_namesrv_requests", "Requests that were answered", labels=labels)
        seconds = HistogramMetricFamily(
            "rocketmq_namesrv_request_seconds",
            "Time to answer; without routes that were asked for before, which take less",
            labels=labels,
        )
        counts = Counter({_REPEATED: self.repeats.found})
        for codes, times in self.times.by(lambda answered: (answered.request_name, answered.response_name)).items():
            counts[codes] += sum(times.counts)
            add_times(seconds, codes, self.times.bounds_s, times)
        for codes, count in counts.items():
            total.add_metric(codes, count)
        yield total
        yield seconds

    def _peers(self) -> Iterator[Metric]:
        server = self.server
        yield _gauge("connections", "Open connections", server.connection_count)
        yield _counter("connections_turned_away", "Connections beyond serverMaxConnections", server.turned_away)
        yield _gauge("buffered_bytes", "Unfinished frames of all peers", server.buffered_bytes)
        yield _gauge("unsent_bytes", "Answers that peers are slow to take", server.unsent_bytes)

    def _route_table(self) -> Iterator[Metric]:
        stats = self.table.stats(self.clock.monotonic())
        yield _gauge("clusters", "Clusters", stats.clusters)
        yield _gauge("broker_groups", "Names of brokers; a master and its slaves have one", stats.groups)
        yield _gauge("brokers", "Brokers", stats.brokers)
        yield _gauge("brokers_unconfirmed", "Brokers restored after a restart and not heard from", stats.unconfirmed)
        yield _gauge("brokers_held", "Brokers that the mass expiry guard holds now", stats.held)
        yield _gauge("topics", "Topics", stats.topics)
        yield _gauge("topic_entries", "Pairs of a broker group and a topic", stats.topic_entries)
        yield _gauge("registration_bytes", "Approximate memory of registrations in bytes", stats.registration_bytes)
        yield _gauge("kv_entries", "Entries of the key-value table", self.kv.entry_count)
        if stats.brokers:
            yield _gauge("lease_age_max_seconds", "Age of the lease that was renewed first", stats.age_s)
            yield _gauge("lease_left_min_seconds", "Rest of the lease that ends first", stats.left_s)

    def _changes(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "rocketmq_namesrv_route_events",
            "Changes of the route table; broker_left tells of evictions",
            labels=("event", "cause"),
        )
        for (kind, cause), count in self.events.items():
            events.add_metric((_event_name(kind), cause), count)
        yield events
        if (scan := self.scan()) is not None:
            yield _counter("mass_expiry_holds", "Scans in which the mass expiry guard held brokers", scan.mass_holds)
            yield _counter("late_scans", "Scans that came late and evicted nobody", scan.late_scans)
        yield _counter(
            "unconfirmed_answers", "Routes given that name an unconfirmed broker", self.routes.unconfirmed_answers
        )

    def _watchers(self) -> Iterator[Metric]:
        if self.watches is not None:
            yield _gauge("watches", "Watches that wait for a change", len(self.watches))
            yield _counter("watches_woken", "Watches answered because of a change", self.watches.woken)

    def _memory(self) -> Iterator[Metric]:
        memory = self.memory()
        if memory is None:
            return
        if memory.journal is not None:
            yield from _journal(memory.journal)
        yield _counter("snapshots", "Snapshots of the route table that were written", memory.snapshots)
        yield _counter("snapshot_failures", "Snapshots that the disk refused", memory.snapshot_failures)
        if memory.kept_at is not None:
            yield _gauge("snapshot_seconds", "Time that the last snapshot took", memory.snapshot_s)
            age_s = self.clock.monotonic() - memory.kept_at
            yield _gauge("snapshot_age_seconds", "Time since the snapshot was last up to date", age_s)


def _journal(journal: Journal) -> Iterator[Metric]:
    yield _counter("journal_records", "Changes that were written to the journal", journal.written)
    yield _counter("journal_lost", "Changes that were not, and are covered by gaps", journal.lost)
    yield _gauge("journal_waiting", "Changes that wait for the disk", journal.waiting)
    yield _gauge("journal_bytes", "Bytes of the journal on the disk", journal.size_bytes)
    yield _gauge("journal_sequence", "The last number that a change was given", journal.sequence)
    yield _gauge("journal_failing", "1 while the disk refuses, else 0", journal.failing)


def _event_name(kind: type[RouteEvent]) -> str:
    """Return the name that the journal has for an event too: `broker_left` for `BrokerLeft`."""
    return re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
