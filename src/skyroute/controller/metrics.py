"""Metrics of a controller; docs/metrics.md lists them. Collected on request. Needs `skyroute[metrics]`."""

import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from skyroute.controller.events import Cause, GroupEvent
from skyroute.controller.groups import Groups
from skyroute.controller.heartbeats import Heartbeats
from skyroute.controller.leadership import Leadership
from skyroute.enforcement.enforcer import Enforcer
from skyroute.observing.exposition import add_histogram
from skyroute.observing.requests import RequestTimes
from skyroute.remoting.server import Server


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"rocketmq_controller_{name}", text, value=value)


@dataclass(frozen=True, slots=True)
class ControllerMetrics:
    """Collects the metrics from the parts of a controller."""

    groups: Groups
    heartbeats: Heartbeats
    leadership: Leadership
    server: Server
    events: Counter[tuple[type[GroupEvent], Cause]]
    times: RequestTimes
    enforcer: Enforcer | None = None

    async def collect(self) -> AsyncIterator[Metric]:
        for part in (self._requests, self._brokers, self._changes, self._decisions):
            for family in part():
                yield family

    def _requests(self) -> Iterator[Metric]:
        labels = ("request_code", "response_code")
        total = CounterMetricFamily(
            "rocketmq_controller_requests", "Requests by request code and response code", labels=labels
        )
        seconds = HistogramMetricFamily("rocketmq_controller_request_seconds", "Request latency", labels=labels)
        for codes, times in self.times.by(lambda outcome: (outcome.request_name, outcome.response_name)).items():
            total.add_metric(codes, sum(times.counts))
            add_histogram(seconds, codes, self.times.bounds_s, times)
        yield total
        yield seconds
        yield _gauge("connections", "Open connections", self.server.connection_count)

    def _brokers(self) -> Iterator[Metric]:
        yield _gauge("leader", "1 if this controller leads, else 0", self.leadership.is_leader)
        yield _gauge("active_brokers", "Brokers with a heartbeat in time", len(self.heartbeats))
        groups = [stored.state for stored in self.groups.all().values() if not stored.state.is_empty]
        yield _gauge("broker_groups", "Broker groups", len(groups))
        without = sum(group.master is None for group in groups)
        yield _gauge("broker_groups_without_master", "Broker groups without a master", without)
        alone = sum(len(group.sync_set) < min(2, len(group.replicas)) for group in groups)
        yield _gauge("broker_groups_with_one_in_sync", "Groups of several replicas with one in sync or none", alone)

    def _changes(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "rocketmq_controller_group_events",
            "Changes of broker groups; master_elected counts elections",
            labels=("event", "cause"),
        )
        for (kind, cause), count in self.events.items():
            events.add_metric((re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(), cause.value), count)
        yield events

    def _decisions(self) -> Iterator[Metric]:
        if self.enforcer is None or self.enforcer.gate is None:
            return
        decisions = CounterMetricFamily(
            "rocketmq_controller_access_decisions", "Decisions of access control by reason", labels=("reason",)
        )
        for reason, count in self.enforcer.counts.items():
            decisions.add_metric((reason.value,), count)
        yield decisions
        yield CounterMetricFamily(
            "rocketmq_controller_audit_records_dropped",
            "Audit records not written",
            value=self.enforcer.audit_records_dropped,
        )
