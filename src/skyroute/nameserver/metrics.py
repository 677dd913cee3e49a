"""Metrics of the name server, listed in docs/metrics.md; read on request. Needs the extra `metrics`."""

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
from skyroute.routing.table_view import RouteTableView
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.repeats import Repeats

_REPEATED: Final = (RequestCode.GET_ROUTEINFO_BY_TOPIC.name, ResponseCode.SUCCESS.name)
"""Labels of responses from the cache by request bytes: only routes are cached."""


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"rocketmq_namesrv_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"rocketmq_namesrv_{name}", text, value=value)


@dataclass(frozen=True, slots=True)
class NameServerMetrics:
    """Collects the metrics from the parts of a name server."""

    table: RouteTableView
    kv: KvConfig
    routes: RouteHandlers
    repeats: Repeats
    watches: Watches | None
    persistence: Callable[[], Persistence | None]
    server: Server
    scan: Callable[[], LeaseScan | None]
    events: Counter[tuple[type[RouteEvent], Cause]]
    times: RequestTimes
    clock: Clock

    async def collect(self) -> AsyncIterator[Metric]:
        parts = (self._requests, self._peers, self._route_table, self._changes, self._watching, self._persistence)
        for part in parts:
            for family in part():
                yield family

    def _requests(self) -> Iterator[Metric]:
        labels = ("request_code", "response_code")
        total = CounterMetricFamily("rocketmq_namesrv_requests", "Requests with a response", labels=labels)
        seconds = HistogramMetricFamily(
            "rocketmq_namesrv_request_seconds",
            "Time to respond; without cached routes, which take less",
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
        yield _gauge("buffered_bytes", "Bytes of incomplete frames of all connections", server.buffered_bytes)
        yield _gauge("unsent_bytes", "Bytes of responses not yet read by clients", server.unsent_bytes)

    def _route_table(self) -> Iterator[Metric]:
        stats = self.table.stats(self.clock.monotonic())
        yield _gauge("clusters", "Clusters", stats.clusters)
        yield _gauge("broker_groups", "Broker groups: a master and its slaves share one name", stats.groups)
        yield _gauge("brokers", "Brokers", stats.brokers)
        yield _gauge("brokers_unconfirmed", "Restored brokers that have sent nothing since", stats.unconfirmed)
        yield _gauge("brokers_held", "Brokers with a lease extended by the mass expiry guard", stats.held)
        yield _gauge("topics", "Topics", stats.topics)
        yield _gauge("topic_entries", "Pairs of a broker group and a topic", stats.topic_entries)
        yield _gauge("registration_bytes", "Approximate memory of registrations in bytes", stats.registration_bytes)
        yield _gauge("kv_entries", "Entries of the key-value table", self.kv.entry_count)
        if stats.brokers:
            yield _gauge("lease_age_max_seconds", "Time since the least recent lease renewal", stats.lease_age_max_s)
            yield _gauge("lease_left_min_seconds", "Time until the first lease expires", stats.lease_left_min_s)

    def _changes(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "rocketmq_namesrv_route_events",
            "Events of the route table; broker_left includes evictions",
            labels=("event", "cause"),
        )
        for (kind, cause), count in self.events.items():
            events.add_metric((_event_name(kind), cause), count)
        yield events
        if (scan := self.scan()) is not None:
            yield _counter("mass_expiry_holds", "Scans in which the mass expiry guard extended leases", scan.mass_holds)
            yield _counter("late_scans", "Scans that were late and evicted no broker", scan.late_scans)
        yield _counter(
            "unconfirmed_answers", "Route responses that name an unconfirmed broker", self.routes.unconfirmed_answers
        )

    def _watching(self) -> Iterator[Metric]:
        if self.watches is not None:
            yield _gauge("watches", "Waiting watches", len(self.watches))
            yield _counter("watches_woken", "Watches completed by a change", self.watches.woken)

    def _persistence(self) -> Iterator[Metric]:
        persistence = self.persistence()
        if persistence is None:
            return
        if persistence.journal is not None:
            yield from _journal(persistence.journal)
        yield _counter("snapshots", "Snapshots of the route table written", persistence.snapshots)
        yield _counter("snapshot_failures", "Snapshots that could not be written", persistence.snapshot_failures)
        if persistence.saved_at is not None:
            yield _gauge("snapshot_seconds", "Duration of the last snapshot", persistence.snapshot_s)
            age_s = self.clock.monotonic() - persistence.saved_at
            yield _gauge("snapshot_age_seconds", "Time since the snapshot was up to date", age_s)


def _journal(journal: Journal) -> Iterator[Metric]:
    yield _counter("journal_records", "Changes written to the journal", journal.written)
    yield _counter("journal_lost", "Changes not written to the journal; gap records cover them", journal.lost)
    yield _gauge("journal_waiting", "Changes in the write queue of the journal", journal.waiting)
    yield _gauge("journal_bytes", "Size of the journal on disk", journal.size_bytes)
    yield _gauge("journal_sequence", "Sequence number of the last change", journal.sequence)
    yield _gauge("journal_failing", "1 while the journal cannot be written, else 0", journal.failing)


def _event_name(kind: type[RouteEvent]) -> str:
    """Return the journal's name of an event: `broker_left` for `BrokerLeft`."""
    return re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
