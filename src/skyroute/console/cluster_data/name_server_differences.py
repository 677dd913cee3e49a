"""Compares name servers by their responses to the last poll: cheap enough for every page."""

from collections.abc import Iterable
from heapq import nsmallest
from typing import Final, NamedTuple

from skyroute.client.admin.route_comparison import BROKER, Difference, compare_views
from skyroute.console.cluster_data.monitor import NameServerView

NAMES_SHOWN: Final = 5
"""Names listed of what a name server lacks."""


class Names(NamedTuple):
    """The number of names, and the first few of them."""

    total: int
    shown: list[str]


class NameServerRow(NamedTuple):
    """A name server, and the brokers and topics that only others know."""

    server: NameServerView
    missing_brokers: Names
    missing_topics: Names

    @property
    def brokers(self) -> int:
        """Number of brokers it knows, masters and slaves."""
        return sum(len(group.addresses) for group in self.server.view.groups) if self.server.view else 0


class NameServerDifferences(NamedTuple):
    """Differences that show without reading every topic's route."""

    servers: list[NameServerRow]
    others: list[Difference]
    """Differing values for brokers that all of them know."""

    @property
    def found(self) -> bool:
        """Whether there are any."""
        return bool(self.others) or any(
            each.missing_brokers.total or each.missing_topics.total for each in self.servers
        )


def find_differences(servers: Iterable[NameServerView]) -> NameServerDifferences:
    """Compare the responses of name servers to the last poll."""
    servers = tuple(servers)
    views = {server.address: server.view for server in servers if server.view is not None}
    names = {address: {group.name for group in view.groups} for address, view in views.items()}
    brokers: set[str] = set().union(*names.values())
    topics: set[str] = set().union(*(server.topics for server in servers))
    nothing: set[str] = set()
    return NameServerDifferences(
        [
            NameServerRow(
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
