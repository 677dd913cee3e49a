"""Compares all routes of all name servers, and finds out which name servers are behind.

Routes carry no data version, and the request that returns it renews a broker's lease on Apache's name servers: a
comparison must not change anything. So the broker itself is asked: name servers that contradict it are behind.
Skyroute's name servers also know for some time when a topic last changed.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from skyroute.client.admin.base import Failures, SomeFailedError
from skyroute.client.admin.route_comparison import (
    ADDRESS,
    BROKER,
    PERMISSION,
    QUEUES,
    READ_QUEUES,
    WRITE_QUEUES,
    Difference,
    Findings,
    compare_routes,
    compare_views,
    queues_text,
)
from skyroute.client.admin.topics import TopicAdmin
from skyroute.client.errors import ClientError, refusal
from skyroute.errors import SkyrouteError
from skyroute.remoting.errors import RemotingError
from skyroute.routing.topology import MASTER_ID, ClusterView, QueueSettings
from skyroute.wire.calls.route import decode_route, encode_route_query
from skyroute.wire.calls.settings import encode_broker_state_query
from skyroute.wire.calls.topics import (
    TopicConfig,
    decode_cluster_view,
    decode_topic_list,
    encode_cluster_query,
    encode_topic_list_query,
)
from skyroute.wire.calls.watch import TOPICS_MAX, Bookmark, WatchQuery, decode_watch_answer, encode_watch
from skyroute.wire.codes import ResponseCode

CONCURRENT_TOPICS: Final = 64
"""Topics that are compared at a time."""
RECHECK_S: Final = 1.0
"""Brokers register with one name server after the other: a difference that is gone after this time is ignored."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between name servers."""

    name_servers: tuple[str, ...]
    """Those that were compared."""
    topics: int
    differences: tuple[Difference, ...]
    failures: Failures
    """Errors by name server; these were left out."""


async def compare_name_servers(
    admin: TopicAdmin, *, recheck_s: float = RECHECK_S, ask_brokers: bool = True
) -> Comparison:
    """Read every route of every name server, and return the differences.

    Args:
        admin: Has the name servers.
        recheck_s: Compare what differs again after this time; 0: compare once.
        ask_brokers: Find out which name servers are behind.

    Raises:
        ClientError: there are fewer than two name servers.
        SomeFailedError: fewer than two name servers respond.
    """
    addresses = sorted(await admin.session.name_servers.in_turn())
    if len(addresses) < 2:
        raise ClientError(f"cannot compare one name server ({addresses[0]}): give two or more")
    reader = _RouteReader(admin, addresses)
    findings = await reader.read()
    serving = findings.serving
    if findings.differences and recheck_s > 0:
        await asyncio.sleep(recheck_s)
        before = {difference.key for difference in findings.differences}
        again = await reader.read(findings.differing_topics)
        findings.differences = [difference for difference in again.differences if difference.key in before]
    differences = [
        replace(each, topics=serving[each.broker or ""]) if each.what == BROKER else each
        for each in findings.differences
    ]
    if differences and ask_brokers:
        differences = await _BrokerCheck(admin, reader.views).add_behind(differences)
    if differences:
        differences = await _with_times(admin, reader.servers, differences)
    return Comparison(tuple(reader.servers), findings.topics, tuple(differences), reader.failures)


class _RouteReader:
    """Reads from the name servers; one that fails is left out from then on."""

    def __init__(self, admin: TopicAdmin, addresses: Sequence[str]) -> None:
        self._session = admin.session
        self.servers = list(addresses)
        self.failures: dict[str, SkyrouteError] = {}
        self.views: dict[str, ClusterView] = {}

    async def read(self, only: Iterable[str] | None = None) -> Findings:
        """Compare brokers and clusters, and all topics or only some.

        Raises:
            SomeFailedError: fewer than two name servers respond.
        """
        results = await asyncio.gather(*map(self._view, list(self.servers)))
        self.views = {server: result[0] for server, result in zip(list(self.servers), results, strict=True) if result}
        named = {topic for result in results if result for topic in result[1]}
        self._drop_failed()
        topics = sorted(named if only is None else only)
        findings = Findings(len(topics), compare_views(self.views))
        queue = iter(topics)
        await asyncio.gather(*(self._compare_topics(queue, findings) for _ in range(CONCURRENT_TOPICS)))
        self._drop_failed()
        findings.differences.sort(key=lambda each: (each.topic or "", each.broker or "", each.what))
        return findings

    def _drop_failed(self) -> None:
        self.servers = [server for server in self.servers if server not in self.failures]
        if len(self.servers) < 2:
            raise SomeFailedError(self.servers, self.failures)

    async def _view(self, server: str) -> tuple[ClusterView, list[str]] | None:
        try:
            view, topics = await asyncio.gather(
                self._session.ask(server, encode_cluster_query()),
                self._session.ask(server, encode_topic_list_query()),
            )
            return decode_cluster_view(view.body), decode_topic_list(topics.body)
        except SkyrouteError as error:
            self.failures[server] = error
            return None

    async def _compare_topics(self, topics: Iterable[str], findings: Findings) -> None:
        for topic in topics:
            servers = [server for server in self.servers if server not in self.failures]
            results = await asyncio.gather(*(self._body(server, topic) for server in servers))
            bodies = dict(zip(servers, results, strict=True))
            if len(set(results)) < 2:
                continue  # the same bytes: the same route
            try:
                routes = {
                    server: None if body is None else decode_route(body)
                    for server, body in bodies.items()
                    if server not in self.failures
                }
            except SkyrouteError as error:
                unread = Difference(topic, None, f"invalid route: {error}", dict.fromkeys(bodies))
                findings.differences.append(unread)
                continue
            findings.differences += compare_routes(topic, routes, self.views)
            findings.serving.update(
                {queues.broker_name for route in routes.values() if route for queues in route.queues}
            )

    async def _body(self, server: str, topic: str) -> bytes | None:
        try:
            response = await self._session.call(server, encode_route_query(topic))
        except SkyrouteError as error:
            self.failures[server] = error
            return None
        if response.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
            self.failures[server] = refusal(response, server)
        return response.body if response.code == ResponseCode.SUCCESS else None


class _BrokerCheck:
    """Asks brokers which name servers are behind."""

    def __init__(self, admin: TopicAdmin, views: Mapping[str, ClusterView]) -> None:
        self._admin = admin
        self._masters: dict[str, str] = {}
        for view in views.values():
            for group in view.groups:
                if MASTER_ID in group.addresses:
                    self._masters.setdefault(group.name, group.addresses[MASTER_ID])
        self._configs: dict[str, Mapping[str, TopicConfig] | None] = {}
        self._present: dict[str, bool] = {}

    async def add_behind(self, differences: Iterable[Difference]) -> list[Difference]:
        """Return the differences with `behind` set where it can be found out."""
        return [replace(each, behind=await self._behind(each)) for each in differences]

    async def _behind(self, difference: Difference) -> tuple[str, ...] | None:
        if difference.topic is not None and difference.broker is not None:
            configs = await self._topics_of(difference.broker)
            return None if configs is None else _behind_broker(difference, configs.get(difference.topic))
        if difference.what == BROKER or difference.what.startswith(ADDRESS):
            return await self._behind_presence(difference)
        return None

    async def _behind_presence(self, difference: Difference) -> tuple[str, ...] | None:
        """Return the servers that have an address without a broker, or lack one with a broker."""
        present = {
            value: await self._is_present(value) for value in set(difference.values.values()) if value is not None
        }
        if len(set(present.values())) > 1 or len(present) == 1:
            return tuple(
                server
                for server, value in difference.values.items()
                if (value is None and any(present.values())) or (value is not None and not present[value])
            )
        return None

    async def _is_present(self, addresses: str) -> bool:
        """Return whether one of the listed brokers responds, even with an error."""
        for address in (each.rpartition("=")[2] for each in addresses.split(", ")):
            if address not in self._present:
                try:
                    await self._admin.session.call(address, encode_broker_state_query())
                    self._present[address] = True
                except RemotingError:
                    self._present[address] = False
            if self._present[address]:
                return True
        return False

    async def _topics_of(self, broker: str) -> Mapping[str, TopicConfig] | None:
        if broker not in self._configs:
            try:
                address = self._masters.get(broker)
                self._configs[broker] = None if address is None else await self._admin.topic_configs(address)
            except SkyrouteError:
                self._configs[broker] = None
        return self._configs[broker]


def _behind_broker(difference: Difference, config: TopicConfig | None) -> tuple[str, ...] | None:
    """Return the servers that contradict the broker. A removed write permission is no contradiction."""
    settings = None
    if config is not None:
        settings = QueueSettings(config.read_queues, config.write_queues, config.permission, config.sys_flag)
    if difference.what == QUEUES:
        truths = {queues_text(settings), None if settings is None else queues_text(settings.read_only())}
        if settings is not None:
            return tuple(server for server, value in difference.values.items() if value not in truths)
        return tuple(server for server, value in difference.values.items() if value is not None)
    if settings is None or difference.what not in (READ_QUEUES, WRITE_QUEUES, PERMISSION):
        return None
    if difference.what == PERMISSION:
        allowed = {str(settings.permission), str(settings.read_only().permission)}
        behind = tuple(server for server, value in difference.values.items() if value not in allowed)
        return behind or None
    truth = str(settings.read_queues if difference.what == READ_QUEUES else settings.write_queues)
    return tuple(server for server, value in difference.values.items() if value != truth)


async def _with_times(admin: TopicAdmin, servers: Iterable[str], differences: list[Difference]) -> list[Difference]:
    """Return the differences with the time of their topics' last change, where a name server still knows it."""
    topics = sorted({each.topic for each in differences if each.topic is not None})
    times: dict[str, int] = {}
    for changed in await asyncio.gather(*(_last_changes(admin, server, topics) for server in servers)):
        for topic, wall_ms in changed.items():
            times[topic] = max(wall_ms, times.get(topic, 0))
    return [replace(each, since_ms=times.get(each.topic or "")) for each in differences]


async def _last_changes(admin: TopicAdmin, server: str, topics: Sequence[str]) -> dict[str, int]:
    """Return when topics last changed on a name server, for those it still knows."""
    found: dict[str, int] = {}
    try:
        for at in range(0, len(topics), TOPICS_MAX):
            part = tuple(topics[at : at + TOPICS_MAX])
            result = decode_watch_answer(await admin.session.ask(server, encode_watch(WatchQuery(part, None, 0))))
            after, end = Bookmark(result.now.life, result.floor), result.now.revision
            while after.revision < end:
                query = WatchQuery(part, after, 0)
                result = decode_watch_answer(await admin.session.ask(server, encode_watch(query)))
                if result.compacted or result.now.revision <= after.revision:
                    break
                after = result.now
                found |= {topic: change.wall_ms for change in result.changes for topic in change.topics}
    except SkyrouteError:
        return found  # not a Skyroute name server, or it failed
    return found
