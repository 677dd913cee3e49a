"""What every part of the admin needs: a session, addresses to ask, and an account of who answered and who did not."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Self, TypeVar, Unpack

from skyroute.client.arguments import check_session
from skyroute.client.errors import ClientError, NoBrokerError
from skyroute.client.session.session import ClientArguments, Session
from skyroute.errors import SkyrouteError
from skyroute.message.reserved_topics import LIGHT_QUEUE_PREFIX, TIMER_TOPIC
from skyroute.routing.topology import MASTER_ID, BrokerGroup, ClusterView, TopicRoute
from skyroute.wire.calls.topics import decode_cluster_view, encode_cluster_query

T = TypeVar("T")

CONCURRENT_CALLS_MAX: Final = 16
"""How many servers, or about how many topics, are asked at the same time."""

Failures = Mapping[str, SkyrouteError]
"""Addresses that did not answer, or refused, and why; or topics that could not be asked about."""


class SomeFailedError(ClientError):
    """Of several servers that were asked, or topics, not all went well: `done` did, and `failures` says why not."""

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
    names: Iterable[str], ask: Callable[[str], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, SkyrouteError]]:
    """Ask many addresses, or about many topics, at the same time; return the answers and the failures, both by name.

    Raises:
        SkyrouteError: it was just one, and it failed.
        SomeFailedError: all failed.
    """
    names = list(dict.fromkeys(names))
    turns = asyncio.Semaphore(CONCURRENT_CALLS_MAX)

    async def ask_in_turn(name: str) -> T:
        async with turns:
            return await ask(name)

    outcomes = await asyncio.gather(*map(ask_in_turn, names), return_exceptions=True)
    answers: dict[str, T] = {}
    failures: dict[str, SkyrouteError] = {}
    for name, outcome in zip(names, outcomes, strict=True):
        if isinstance(outcome, SkyrouteError):
            failures[name] = outcome
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            answers[name] = outcome
    if failures and not answers:
        raise next(iter(failures.values())) if len(failures) == 1 else SomeFailedError((), failures)
    return answers, failures


async def call_all(addresses: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> dict[str, T]:
    """Ask all at the same time, and return the answers by address.

    Raises:
        SkyrouteError: it was just one, and it failed.
        SomeFailedError: some failed; what the others did is not undone.
    """
    answers, failures = await call_each(addresses, ask)
    if failures:
        raise SomeFailedError(answers, failures)
    return answers


class AdminBase:
    """The session of an admin, and the ways to find brokers. Each part of `Admin` adds its own calls."""

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        session: Session | None = None,
        **client: Unpack[ClientArguments],
    ) -> None:
        """Take the addresses of name servers, or a session that others use as well. Nothing is connected yet.

        Raises:
            ArgumentError: an argument makes no sense.
            ClientError: there is no usable address of a name server.
            TlsError: the files for TLS cannot be used.
        """
        if session is not None:
            check_session(session, Session, **client)
        self._owns_session = session is None
        self.session = session if session is not None else Session(name_servers, **client)

    def __repr__(self) -> str:
        return f"<Admin {self.session!r}>"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Make ready; connections are opened when first needed."""
        if self._owns_session:
            await self.session.start()

    async def stop(self) -> None:
        """Close the connections, if they are nobody else's."""
        if self._owns_session:
            await self.session.stop()

    async def cluster(self) -> ClusterView:
        """Return every cluster and every broker that the name servers know.

        Raises:
            NoNameServerError: none answers.
        """
        return decode_cluster_view((await self.session.ask_name_server(encode_cluster_query())).body)

    async def route(self, topic: str) -> TopicRoute:
        """Return where a topic is, as the name servers say now.

        Raises:
            NoRouteError: they know of no such topic.
        """
        return await self.session.routes.refresh(topic)

    async def broker_groups(self, cluster: str | None) -> tuple[BrokerGroup, ...]:
        """Return the broker groups of a cluster, or of all.

        Raises:
            UnknownClusterError: there is no such cluster.
        """
        view = await self.cluster()
        if cluster is None:
            return view.groups
        if cluster not in view.clusters:
            known = ", ".join(view.clusters) or "none at all"
            raise UnknownClusterError(f"there is no cluster {cluster}; the name servers know {known}")
        return tuple(group for group in view.groups if group.name in view.clusters[cluster])

    async def only_cluster(self) -> str:
        """Return the cluster that is meant when nobody says which: the only one.

        Raises:
            UnknownClusterError: there is none, or more than one.
        """
        clusters = list((await self.cluster()).clusters)
        if len(clusters) != 1:
            raise UnknownClusterError(
                f"say which cluster; the name servers know {', '.join(clusters) or 'none at all'}"
            )
        return clusters[0]

    async def addresses(
        self, *, broker: str | None = None, cluster: str | None = None, with_slaves: bool = False
    ) -> list[str]:
        """Return one broker's address as it is, or those of a cluster's masters, or of all its brokers.

        Raises:
            ClientError: neither or both are given.
            UnknownClusterError: there is no such cluster.
            NoBrokerError: it has no brokers to ask.
        """
        if (broker is None) == (cluster is None):
            raise ClientError("say which broker (its address), or which cluster: one of the two")
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
        """Return one address of every broker group that has a topic: its master, or else a slave.

        Light queues and the timer have no route of their own: theirs is that of the topic, or cluster, named besides.

        Raises:
            NoRouteError: the name servers know of no such topic.
        """
        if cluster and (topic.startswith(LIGHT_QUEUE_PREFIX) or topic == TIMER_TOPIC):
            topic = cluster
        return [address for group in (await self.route(topic)).groups if (address := preferred_address(group))]


def preferred_address(group: BrokerGroup) -> str | None:
    """Return where a group's master is, or else a slave, or None."""
    return group.addresses.get(MASTER_ID) or next(iter(group.addresses.values()), None)
