"""Asking every name server for everything, and finding out who is right.

Routes carry no data versions, and the one call that would tell them renews a broker's lease at Apache's name servers:
looking must not change anything. So where name servers differ, the broker itself is asked: who says otherwise is
behind. When a topic last changed, name servers of ours remember for a while.
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

ASKED_AT_ONCE: Final = 64
"""About how many topics every name server is asked at the same time."""
SETTLE_S: Final = 1.0
"""Brokers tell their name servers one after the other: a difference that is gone so much later was none."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What all name servers were found to say."""

    name_servers: tuple[str, ...]
    """Those that answered."""
    topics: int
    differences: tuple[Difference, ...]
    failures: Failures
    """Those that did not, or not to the end."""


async def compare_name_servers(
    admin: TopicAdmin, *, settle_s: float = SETTLE_S, ask_brokers: bool = True
) -> Comparison:
    """Ask every name server for every route, and return all in which they differ.

    Args:
        admin: Whose name servers.
        settle_s: What differs is looked at again so much later; 0 for never.
        ask_brokers: Find out who is behind.

    Raises:
        ClientError: there are not two name servers to compare.
        SomeFailedError: of those that there are, not two answer.
    """
    addresses = sorted(await admin.session.name_servers.in_turn())
    if len(addresses) < 2:
        raise ClientError(f"{addresses[0]} is the only name server given: two or more can be compared")
    look = _Look(admin, addresses)
    findings = await look.take()
    serving = findings.serving
    if findings.differences and settle_s > 0:
        await asyncio.sleep(settle_s)
        before = {difference.key for difference in findings.differences}
        again = await look.take(findings.differing_topics)
        findings.differences = [difference for difference in again.differences if difference.key in before]
    differences = [
        replace(each, topics=serving[each.broker or ""]) if each.what == BROKER else each
        for each in findings.differences
    ]
    if differences and ask_brokers:
        differences = await _Witnesses(admin, look.views).judge(differences)
    if differences:
        differences = await _with_times(admin, look.servers, differences)
    return Comparison(tuple(look.servers), findings.topics, tuple(differences), look.failures)


class _Look:
    """Asks the name servers; one that fails once is asked no more."""

    def __init__(self, admin: TopicAdmin, addresses: Sequence[str]) -> None:
        self._session = admin.session
        self.servers = list(addresses)
        self.failures: dict[str, SkyrouteError] = {}
        self.views: dict[str, ClusterView] = {}

    async def take(self, only: Iterable[str] | None = None) -> Findings:
        """Look at brokers and clusters, and at all topics or only at some.

        Raises:
            SomeFailedError: fewer than two name servers answer.
        """
        answers = await asyncio.gather(*map(self._view, list(self.servers)))
        self.views = {server: answer[0] for server, answer in zip(list(self.servers), answers, strict=True) if answer}
        named = {topic for answer in answers if answer for topic in answer[1]}
        self._drop_failed()
        topics = sorted(named if only is None else only)
        findings = Findings(len(topics), compare_views(self.views))
        queue = iter(topics)
        await asyncio.gather(*(self._work(queue, findings) for _ in range(ASKED_AT_ONCE)))
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

    async def _work(self, topics: Iterable[str], findings: Findings) -> None:
        for topic in topics:
            servers = [server for server in self.servers if server not in self.failures]
            answers = await asyncio.gather(*(self._body(server, topic) for server in servers))
            bodies = dict(zip(servers, answers, strict=True))
            if len(set(answers)) < 2:
                continue  # the same bytes say the same
            try:
                routes = {
                    server: None if body is None else decode_route(body)
                    for server, body in bodies.items()
                    if server not in self.failures
                }
            except SkyrouteError as error:
                unread = Difference(topic, None, f"a route that cannot be read: {error}", dict.fromkeys(bodies))
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


class _Witnesses:
    """Brokers, who know best what they serve, and whether they are there."""

    def __init__(self, admin: TopicAdmin, views: Mapping[str, ClusterView]) -> None:
        self._admin = admin
        self._masters: dict[str, str] = {}
        for view in views.values():
            for group in view.groups:
                if MASTER_ID in group.addresses:
                    self._masters.setdefault(group.name, group.addresses[MASTER_ID])
        self._configs: dict[str, Mapping[str, TopicConfig] | None] = {}
        self._present: dict[str, bool] = {}

    async def judge(self, differences: Iterable[Difference]) -> list[Difference]:
        """Return the differences with who is behind, where that can be found out."""
        return [replace(each, behind=await self._behind(each)) for each in differences]

    async def _behind(self, difference: Difference) -> tuple[str, ...] | None:
        if difference.topic is not None and difference.broker is not None:
            configs = await self._topics_of(difference.broker)
            return None if configs is None else _behind_broker(difference, configs.get(difference.topic))
        if difference.what == BROKER or difference.what.startswith(ADDRESS):
            return await self._behind_presence(difference)
        return None

    async def _behind_presence(self, difference: Difference) -> tuple[str, ...] | None:
        """Whoever names an address at which nobody answers is behind; if somebody does, whoever does not name it."""
        present = {said: await self._is_present(said) for said in set(difference.said.values()) if said is not None}
        if len(set(present.values())) > 1 or len(present) == 1:
            return tuple(
                server
                for server, said in difference.said.items()
                if (said is None and any(present.values())) or (said is not None and not present[said])
            )
        return None

    async def _is_present(self, addresses: str) -> bool:
        """Whether one of the brokers that a name server lists answers; what, does not matter."""
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
    """Return who says otherwise than the broker. An operator's ban on writes is the name servers' own affair."""
    settings = None
    if config is not None:
        settings = QueueSettings(config.read_queues, config.write_queues, config.permission, config.sys_flag)
    if difference.what == QUEUES:
        truths = {queues_text(settings), None if settings is None else queues_text(settings.read_only())}
        if settings is not None:
            return tuple(server for server, said in difference.said.items() if said not in truths)
        return tuple(server for server, said in difference.said.items() if said is not None)
    if settings is None or difference.what not in (READ_QUEUES, WRITE_QUEUES, PERMISSION):
        return None
    if difference.what == PERMISSION:
        allowed = {str(settings.permission), str(settings.read_only().permission)}
        behind = tuple(server for server, said in difference.said.items() if said not in allowed)
        return behind or None
    truth = str(settings.read_queues if difference.what == READ_QUEUES else settings.write_queues)
    return tuple(server for server, said in difference.said.items() if said != truth)


async def _with_times(admin: TopicAdmin, servers: Iterable[str], differences: list[Difference]) -> list[Difference]:
    """Return the differences with the time of their topics' last change, as far as a name server remembers it."""
    topics = sorted({each.topic for each in differences if each.topic is not None})
    times: dict[str, int] = {}
    for remembered in await asyncio.gather(*(_last_changes(admin, server, topics) for server in servers)):
        for topic, wall_ms in remembered.items():
            times[topic] = max(wall_ms, times.get(topic, 0))
    return [replace(each, since_ms=times.get(each.topic or "")) for each in differences]


async def _last_changes(admin: TopicAdmin, server: str, topics: Sequence[str]) -> dict[str, int]:
    """Return when topics last changed at a name server; nothing of those it does not remember."""
    found: dict[str, int] = {}
    try:
        for at in range(0, len(topics), TOPICS_MAX):
            part = tuple(topics[at : at + TOPICS_MAX])
            answer = decode_watch_answer(await admin.session.ask(server, encode_watch(WatchQuery(part, None, 0))))
            after, end = Bookmark(answer.now.life, answer.floor), answer.now.revision
            while after.revision < end:
                query = WatchQuery(part, after, 0)
                answer = decode_watch_answer(await admin.session.ask(server, encode_watch(query)))
                if answer.compacted or answer.now.revision <= after.revision:
                    break
                after = answer.now
                found |= {topic: change.wall_ms for change in answer.changes for topic in change.topics}
    except SkyrouteError:
        return found  # it is not one of ours, or has gone: then nobody knows
    return found
