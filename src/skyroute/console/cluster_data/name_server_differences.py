"""Where name servers differ, from what each said when the cluster was last looked at: cheap enough for every page."""

from collections.abc import Iterable
from heapq import nsmallest
from typing import Final, NamedTuple

from skyroute.client.admin.route_comparison import BROKER, Difference, compare_views
from skyroute.console.cluster_data.watcher import NameServerView

NAMES_SHOWN: Final = 5
"""Of what a name server lacks; of the others their number is told."""


class Names(NamedTuple):
    """Some names out of many."""

    total: int
    shown: list[str]


class NameServerGlance(NamedTuple):
    """A name server, and what others have that it lacks."""

    seen: NameServerView
    lacks_brokers: Names
    lacks_topics: Names

    @property
    def brokers(self) -> int:
        """How many brokers it knows, masters and slaves."""
        return sum(len(group.addresses) for group in self.seen.view.groups) if self.seen.view else 0


class Drift(NamedTuple):
    """Where name servers differ, as far as can be told without asking for every topic's route."""

    servers: list[NameServerGlance]
    others: list[Difference]
    """About brokers that all of them know."""

    @property
    def is_there(self) -> bool:
        return bool(self.others) or any(each.lacks_brokers.total or each.lacks_topics.total for each in self.servers)


def find_drift(servers: Iterable[NameServerView]) -> Drift:
    """Compare what name servers said when they were last looked at."""
    servers = tuple(servers)
    views = {server.address: server.view for server in servers if server.view is not None}
    names = {address: {group.name for group in view.groups} for address, view in views.items()}
    brokers: set[str] = set().union(*names.values())
    topics: set[str] = set().union(*(server.topics for server in servers))
    nothing: set[str] = set()
    return Drift(
        [
            NameServerGlance(
                server,
                _names(brokers - names.get(server.address, brokers)),
                _names(nothing if server.view is None else topics - server.topics),
            )
            for server in servers
        ],
        [each for each in compare_views(views) if each.what != BROKER],
    )


def _names(names: Iterable[str]) -> Names:
    every = list(names)
    return Names(len(every), nsmallest(NAMES_SHOWN, every))
