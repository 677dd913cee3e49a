"""What every group of admin calls needs: a session, broker addresses, and calls to many servers at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Self, TypeVar, Unpack

from skyroute.client.admin.names import Names
from skyroute.client.arguments import check_flags, check_session, check_texts, check_texts_or_none
from skyroute.client.errors import ClientError, NoBrokerError
from skyroute.client.session.session import ClientArguments, Session
from skyroute.errors import SkyrouteError
from skyroute.message.reserved_topics import LIGHT_QUEUE_PREFIX, TIMER_TOPIC
from skyroute.routing.topology import MASTER_ID, BrokerGroup, ClusterView, TopicRoute
from skyroute.wire.calls.topics import decode_cluster_view, encode_cluster_query
from skyroute.wire.data_version import Version

T = TypeVar("T")

CONCURRENT_CALLS_MAX: Final = 16
"""Calls that `call_each` has in flight at a time."""

PAGING_RESTARTS_MAX: Final = 10
"""How often a broker's table may change while its pages are read."""

Failures = Mapping[str, SkyrouteError]
"""Errors by server address, or by topic."""

Page = tuple[dict[str, T], Version, int | None]
"""Entries of a broker's table, its version, and how many entries it has; None: the broker sent all of them."""


class SomeFailedError(ClientError):
    """Some of several calls failed: `done` names those that succeeded, `failures` has the other errors."""

    def __init__(self, done: Iterable[str], failures: Failures) -> None:
        self.done = tuple(done)
        self.failures = failures
        reasons = "; ".join(f"{address}: {error}" for address, error in failures.items())
        super().__init__(f"{len(failures)} of {len(failures) + len(self.done)} failed: {reasons}")

    def __reduce__(self) -> tuple[type["SomeFailedError"], tuple[tuple[str, ...], Failures]]:
        return type(self), (self.done, self.failures)


class UnknownClusterError(ClientError):
    """The name servers know no cluster of this name."""


async def call_each(
    names: Iterable[str], call: Callable[[str], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, SkyrouteError]]:
    """Call a function for each address or topic concurrently; return results and errors by name.

    Raises:
        SkyrouteError: there was one name, and its call failed.
        SomeFailedError: all calls failed.
    """
    names = list(dict.fromkeys(names))
    slots = asyncio.Semaphore(CONCURRENT_CALLS_MAX)

    async def call_in_slot(name: str) -> T:
        async with slots:
            return await call(name)

    outcomes = await asyncio.gather(*map(call_in_slot, names), return_exceptions=True)
    results: dict[str, T] = {}
    failures: dict[str, SkyrouteError] = {}
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, SkyrouteError):
            failures[name] = outcome
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            results[name] = outcome
    if failures and not results:
        raise next(iter(failures.values())) if len(failures) == 1 else SomeFailedError((), failures)
    return results, failures


async def call_all(names: Iterable[str], call: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Call a function for each address or topic concurrently, and return the results by name.

    Raises:
        SkyrouteError: there was one name, and its call failed.
        SomeFailedError: some calls failed; the effects of the others remain.
    """
    results, failures = await call_each(names, call)
    if failures:
        raise SomeFailedError(results, failures)
    return results


async def read_pages(broker: str, read: Callable[[int, Version | None], Awaitable[Page[T]]]) -> dict[str, T]:
    """Read a broker's table of topics or groups page by page, from the start again when its version changes.

    Args:
        broker: Address, for the error.
        read: Reads the page that starts at an index of a version; a broker starts at 0 if its version differs.

    Raises:
        ClientError: the table changed more than `PAGING_RESTARTS_MAX` times.
    """
    entries, version, total = await read(0, None)
    found, restarts = dict(entries), 0
    while total is not None and len(found) < total:
        entries, current, total = await read(len(found), version)
        if current != version:
            restarts += 1
            if restarts > PAGING_RESTARTS_MAX:
                raise ClientError(f"the table of {broker} changed {restarts} times while it was read; try again later")
            found, version = {}, current
        if entries.keys() <= found.keys():  # the broker has fewer entries than its total says
            break
        found |= entries
    return found


class AdminBase:
    """The session of an admin, and how to find brokers. Subclasses add calls by area.

    Public methods take and return short names (see `names`); private ones take and return full names.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        session: Session | None = None,
        **client: Unpack[ClientArguments],
    ) -> None:
        """Take name server addresses, or a session to share. Connections open with the first call.

        Raises:
            ArgumentError: an argument is invalid.
            ClientError: no usable name server address.
            TlsError: the TLS files cannot be used.
        """
        if session is not None:
            check_session(session, Session, **client)
        self._owns_session = session is None
        self.session = session if session is not None else Session(name_servers, **client)
        self._names = Names(self.session.namespace)

    def __repr__(self) -> str:
        return f"<Admin {self.session!r}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the session, unless it is shared."""
        if self._owns_session:
            await self.session.start()

    async def stop(self) -> None:
        """Close the connections, unless the session is shared."""
        if self._owns_session:
            await self.session.stop()

    async def cluster(self) -> ClusterView:
        """Return all clusters and brokers that the name servers know.

        Raises:
            NoNameServerError: no name server responds.
        """
        return decode_cluster_view((await self.session.ask_name_server(encode_cluster_query())).body)

    async def route(self, topic: str) -> TopicRoute:
        """Return the current route of a topic: its brokers and queues.

        Raises:
            NoRouteError: the name servers do not know the topic.
        """
        check_texts(topic=topic)
        return await self._route(self._names.full(topic))

    async def _route(self, topic: str) -> TopicRoute:
        return await self.session.routes.refresh(topic)

    async def broker_groups(self, cluster: str | None) -> tuple[BrokerGroup, ...]:
        """Return the broker groups of a cluster, or of all clusters for None.

        Raises:
            UnknownClusterError: there is no such cluster.
        """
        check_texts_or_none(cluster=cluster)
        view = await self.cluster()
        if cluster is None:
            return view.groups
        if cluster not in view.clusters:
            known = ", ".join(view.clusters) or "no cluster"
            raise UnknownClusterError(f"there is no cluster {cluster}; the name servers know {known}")
        return tuple(group for group in view.groups if group.name in view.clusters[cluster])

    async def only_cluster(self) -> str:
        """Return the name of the only cluster.

        Raises:
            UnknownClusterError: there is no cluster, or more than one.
        """
        clusters = list((await self.cluster()).clusters)
        if len(clusters) != 1:
            raise UnknownClusterError(f"say which cluster; the name servers know {', '.join(clusters) or 'no cluster'}")
        return clusters[0]

    async def addresses(
        self, *, broker: str | None = None, cluster: str | None = None, with_slaves: bool = False
    ) -> list[str]:
        """Return the given broker address, or the addresses of a cluster's masters, or of all its brokers.

        Raises:
            ClientError: neither or both of `broker` and `cluster` are given.
            UnknownClusterError: there is no such cluster.
            NoBrokerError: the cluster has no such broker now.
        """
        check_texts_or_none(broker=broker, cluster=cluster)
        check_flags(with_slaves=with_slaves)
        if (broker is None) == (cluster is None):
            raise ClientError("give either a broker (its address) or a cluster")
        if broker is not None:
            return [broker]
        found = [
            address
            for group in await self.broker_groups(cluster)
            for broker_id, address in group.addresses.items()
            if with_slaves or broker_id == MASTER_ID
        ]
        if not found:
            raise NoBrokerError(f"the cluster {cluster} has no {'broker' if with_slaves else 'master'} now")
        return found

    async def serving(self, topic: str, cluster: str | None = None) -> list[str]:
        """Return one address per broker group that has the topic: its master, else a slave.

        Light queues (`%LMQ%`) and the timer topic have no route: give their parent topic, or the cluster, as `cluster`.

        Raises:
            NoRouteError: the name servers do not know the topic.
        """
        check_texts(topic=topic)
        check_texts_or_none(cluster=cluster)
        return await self._serving(self._names.full(topic), cluster)

    async def _serving(self, topic: str, cluster: str | None = None) -> list[str]:
        if cluster and (topic.startswith(LIGHT_QUEUE_PREFIX) or topic == TIMER_TOPIC):
            topic = cluster
        return [address for group in (await self._route(topic)).groups if (address := preferred_address(group))]


def preferred_address(group: BrokerGroup) -> str | None:
    """Return the address of a group's master, else of a slave, else None."""
    return group.addresses.get(MASTER_ID) or next(iter(group.addresses.values()), None)
