"""The first page: clusters, brokers and their rates, name servers and where they disagree."""

from collections.abc import Iterable, Mapping
from heapq import nlargest
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.client.admin.broker_load import BrokerLoad, read_load
from skyroute.console.cluster_data.name_server_differences import find_drift
from skyroute.console.cluster_data.watcher import Rates
from skyroute.console.pages.page_context import desk_of

BROKERS_SHOWN: Final = 8
"""Of each cluster, the busiest."""
CLUSTERS_SHOWN: Final = 12
NAMES_SHOWN: Final = 5
"""Of brokers and topics that need a look; of the others their number is told."""


class ClusterGlance(NamedTuple):
    """A cluster, its busiest brokers, and the sums over all of them."""

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
    """Show the whole at a glance."""
    desk = desk_of(request)
    watcher = desk.watcher
    loads = [read_load(broker) for broker in watcher.look.brokers]
    clusters = _clusters(loads, watcher.rates)
    return desk.show(
        request,
        "overview.html",
        inventory=watcher.inventory,
        clusters=clusters[:CLUSTERS_SHOWN],
        clusters_left=max(0, len(clusters) - CLUSTERS_SHOWN),
        rates=_sums(cluster.rates for cluster in clusters),
        whole=ClusterGlance("", loads, [], []),
        silent=[load.broker for load in loads if load.broker.failure],
        full=[load.broker for load in loads if load.disk_nearly_full],
        damaged=[load.broker for load in loads if load.damaged_ranges],
        names_shown=NAMES_SHOWN,
        drift=find_drift(watcher.look.name_servers),
    )


def _clusters(loads: Iterable[BrokerLoad], rates: Mapping[str, Iterable[Rates]]) -> list[ClusterGlance]:
    found: dict[str, list[BrokerLoad]] = {}
    for load in loads:
        found.setdefault(load.broker.cluster, []).append(load)
    return [
        ClusterGlance(
            name,
            members,
            nlargest(BROKERS_SHOWN, members, key=lambda load: (load.into or 0) + (load.out or 0)),
            _sums(rates.get(load.broker.address, ()) for load in members),
        )
        for name, members in sorted(found.items())
    ]


def _sums(rows: Iterable[Iterable[Rates]]) -> list[Rates]:
    """Return several rows of rates as one: all brokers are looked at in the same moments."""
    into: dict[float, float] = {}
    out: dict[float, float] = {}
    for row in rows:
        for at_s, more_into, more_out in row:
            into[at_s] = into.get(at_s, 0.0) + more_into
            out[at_s] = out.get(at_s, 0.0) + more_out
    return [Rates(at_s, into[at_s], out[at_s]) for at_s in sorted(into)]


ROUTES = [Route("/", overview)]
