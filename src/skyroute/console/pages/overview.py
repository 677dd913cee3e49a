"""The first page: clusters, brokers with their rates, and name servers with their differences."""

from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.client.admin.broker_load import BrokerLoad, read_load
from skyroute.console.cluster_data.monitor import Rates
from skyroute.console.cluster_data.name_server_differences import find_differences
from skyroute.console.web.page_context import context_of

BROKERS_SHOWN: Final = 8
"""The busiest brokers of each cluster."""
CLUSTERS_SHOWN: Final = 12
NAMES_SHOWN: Final = 5
"""Brokers named in each warning; the others are counted."""


class ClusterSummary(NamedTuple):
    """A cluster, its busiest brokers, and sums over all its brokers."""

    name: str
    brokers: list[BrokerLoad]
    busiest: list[BrokerLoad]
    rates: list[Rates]

    def total(self, what: str) -> float:
        return sum(getattr(load, what) or 0 for load in self.brokers)

    @property
    def fullest(self) -> float | None:
        return max((load.disk for load in self.brokers if load.disk is not None), default=None)


async def overview(request: Request) -> Response:
    """Show the first page."""
    context = context_of(request)
    monitor = context.monitor
    loads = [read_load(broker) for broker in monitor.snapshot.brokers]
    clusters = _clusters(loads, monitor.rates)
    return context.render(
        request,
        "overview.html",
        inventory=monitor.inventory,
        clusters=clusters[:CLUSTERS_SHOWN],
        clusters_left=max(0, len(clusters) - CLUSTERS_SHOWN),
        rates=_sums(cluster.rates for cluster in clusters),
        whole=ClusterSummary("", loads, [], []),
        unreachable=[load.broker for load in loads if load.broker.failure],
        full=[load.broker for load in loads if load.disk_nearly_full],
        damaged=[load.broker for load in loads if load.damaged_ranges],
        names_shown=NAMES_SHOWN,
        server_differences=find_differences(monitor.snapshot.name_servers),
    )


def _clusters(loads: Iterable[BrokerLoad], rates: Mapping[str, Iterable[Rates]]) -> list[ClusterSummary]:
    found: dict[str, list[BrokerLoad]] = {}
    for load in loads:
        found.setdefault(load.broker.cluster, []).append(load)
    return [
        ClusterSummary(
            name,
            its_loads,
            nlargest(BROKERS_SHOWN, its_loads, key=lambda load: (load.into or 0) + (load.out or 0)),
            _sums(rates.get(load.broker.address, ()) for load in its_loads),
        )
        for name, its_loads in sorted(found.items())
    ]


def _sums(rows: Iterable[Iterable[Rates]]) -> list[Rates]:
    """Return the sum of several series of rates: all brokers are polled at the same times."""
    into: dict[float, float] = {}
    out: dict[float, float] = {}
    for row in rows:
        for at_s, more_into, more_out in row:
            into[at_s] = into.get(at_s, 0.0) + more_into
            out[at_s] = out.get(at_s, 0.0) + more_out
    return [Rates(at_s, into[at_s], out[at_s]) for at_s in sorted(into)]


ROUTES = [Route("/", overview)]
