"""Metrics of a name server; docs/metrics.md lists them. Collected on request. Needs `skyroute[metrics]`."""

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
from skyroute.observing.exposition import add_histogram
from skyroute.observing.requests import RequestTimes
from skyroute.remoting.server import Server
from skyroute.routing.events import Cause, RouteEvent
from skyroute.routing.table_view import RouteTableView
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.fast_path import FastPath

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
    fast_path: FastPath
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
        total = CounterMetricFamily(
            "rocketmq_namesrv_requests", "Requests by request code and response code", labels=labels
        )
        seconds = HistogramMetricFamily(
            "rocketmq_namesrv_request_seconds",
            "Request latency; routes found in the response cache are not included",
            labels=labels,
        )
        counts = Counter({_REPEATED: self.fast_path.found})
        for codes, times in self.times.by(lambda outcome: (outcome.request_name, outcome.response_name)).items():
            counts[codes] += sum(times.counts)
            add_histogram(seconds, codes, self.times.bounds_s, times)
        for codes, count in counts.items():
            total.add_metric(codes, count)
        yield total
        yield seconds

    def _peers(self) -> Iterator[Metric]:
        server = self.server
        yield _gauge("connections", "Open connections", server.connection_count)
        yield _counter("connections_rejected", "Connections rejected", server.turned_away)
        yield _gauge("buffered_bytes", "Bytes of incomplete frames", server.buffered_bytes)
        yield _gauge("unsent_bytes", "Bytes of responses that are not sent yet", server.unsent_bytes)

    def _route_table(self) -> Iterator[Metric]:
        stats = self.table.stats(self.clock.monotonic())
        yield _gauge("clusters", "Clusters", stats.clusters)
        yield _gauge("broker_groups", "Broker groups: a master and its slaves", stats.groups)
        yield _gauge("brokers", "Brokers", stats.brokers)
        yield _gauge("brokers_unconfirmed", "Restored brokers that have not registered since", stats.unconfirmed)
        yield _gauge("brokers_held", "Brokers with an expired lease that the mass expiry guard keeps", stats.held)
        yield _gauge("topics", "Topics", stats.topics)
        yield _gauge("topic_entries", "Pairs of a broker group and a topic", stats.topic_entries)
        yield _gauge("registration_bytes", "Approximate memory of all registrations in bytes", stats.registration_bytes)
        yield _gauge("kv_entries", "Entries of the key-value config", self.kv.entry_count)
        if stats.brokers:
            yield _gauge("lease_age_max_seconds", "Age of the oldest lease", stats.lease_age_max_s)
            yield _gauge(
                "lease_left_min_seconds", "Remaining time of the lease that expires first", stats.lease_left_min_s
            )

    def _changes(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "rocketmq_namesrv_route_events",
            "Changes of the route table; broker_left counts evictions",
            labels=("event", "cause"),
        )
        for (kind, cause), count in self.events.items():
            events.add_metric((_event_name(kind), cause), count)
        yield events
        if (scan := self.scan()) is not None:
            yield _counter("mass_expiry_holds", "Lease scans that the mass expiry guard limited", scan.mass_holds)
            yield _counter("late_scans", "Lease scans that were late and evicted no broker", scan.late_scans)
        yield _counter("unconfirmed_routes", "Routes with an unconfirmed broker", self.routes.unconfirmed_answers)

    def _watching(self) -> Iterator[Metric]:
        if self.watches is not None:
            yield _gauge("watches", "Route watches that wait for a change", len(self.watches))
            yield _counter("watches_woken", "Route watches answered after a change", self.watches.woken)

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
            yield _gauge("snapshot_age_seconds", "Time since the last snapshot", age_s)


def _journal(journal: Journal) -> Iterator[Metric]:
    yield _counter("journal_records", "Records written to the journal", journal.written)
    yield _counter("journal_lost", "Records lost and replaced by gap records", journal.lost)
    yield _gauge("journal_waiting", "Records that wait to be written", journal.waiting)
    yield _gauge("journal_bytes", "Size of the journal in bytes", journal.size_bytes)
    yield _gauge("journal_sequence", "Sequence number of the last record", journal.sequence)
    yield _gauge("journal_failing", "1 while the journal cannot be written, else 0", journal.failing)


def _event_name(kind: type[RouteEvent]) -> str:
    """Return the journal's name of an event: `broker_left` for `BrokerLeft`."""
    return re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
