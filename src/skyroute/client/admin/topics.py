"""Administration of topics: which there are, where they are, how full, and making and deleting them."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from skyroute.client.admin.calls import Failures, ask_all, ask_each
from skyroute.client.admin.cluster import ClusterAdmin
from skyroute.client.consuming.strategies import Average
from skyroute.client.errors import ClientError, ServerFailedError
from skyroute.client.producing.queue_selection import subscribe_queues
from skyroute.message.names import check_topic
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import DLQ_PREFIX, RETRY_PREFIX
from skyroute.routing.topology import MASTER_ID, Permission, TopicFlag
from skyroute.wire.calls.groups import decode_consume_stats, encode_consume_stats_query
from skyroute.wire.calls.settings import BrokerStats, decode_broker_stats, encode_broker_stats_query
from skyroute.wire.calls.topics import (
    QueueSpan,
    TopicConfig,
    TopicStats,
    decode_topic_config,
    decode_topic_list,
    decode_topic_page,
    decode_topic_readers,
    decode_topic_stats,
    encode_name_server_topic_deletion,
    encode_topic_config_query,
    encode_topic_deletion,
    encode_topic_list_query,
    encode_topic_page_query,
    encode_topic_readers_query,
    encode_topic_stats_query,
    encode_topic_update,
)
from skyroute.wire.command import Response

QUEUES_OF_NEW_TOPIC: Final = 8
"""On each broker, unless said otherwise: as mqadmin has it."""

RESTARTS_MAX: Final = 10
"""How often a broker's topics may change while they are read, page by page."""

_NO_SUCH_COUNT: Final = "not exist"
"""What brokers remark when they are asked for something that they have not counted yet."""


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """Where the queues of a topic begin and end."""

    topic: str
    queues: Mapping[QueueRef, QueueSpan]
    put_tps: float
    """Messages stored a second, on all brokers that answered."""
    failures: Failures = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicUse:
    """Which clusters have a topic, and which groups consume it, or once have."""

    topic: str
    clusters: tuple[str, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """What comes into a topic, and what one group takes out; or None, if no group does."""

    topic: str
    group: str | None
    lag: int
    in_tps: float
    out_tps: float
    in_day: int
    out_day: int


class TopicAdmin(ClusterAdmin):
    """Calls about topics."""

    async def topics(self) -> list[str]:
        """Return every topic the name servers know, the system's own too, sorted.

        Raises:
            NoNameServerError: none answers.
        """
        return sorted(decode_topic_list((await self.session.ask_name_server(encode_topic_list_query())).body))

    async def clusters_of(self, topic: str) -> list[str]:
        """Return the clusters that have a topic.

        Raises:
            NoRouteError: no broker has it.
        """
        view, route = await asyncio.gather(self.cluster(), self.route(topic))
        names = {group.name for group in route.groups}
        return [cluster for cluster, brokers in view.clusters.items() if names.intersection(brokers)]

    async def topic_status(self, topic: str, cluster: str | None = None) -> TopicStatus:
        """Return where the queues of a topic begin and end. Of a light queue, `cluster` is where to look.

        Raises:
            NoRouteError: no broker has it.
            SomeFailedError, BrokerRefusedError, RemotingError: none of its brokers answers.
        """

        async def ask(address: str) -> TopicStats:
            return decode_topic_stats((await self.session.ask(address, encode_topic_stats_query(topic))).body)

        # With a cluster given, its own topic says where the brokers are, as mqadmin does it.
        answers, failures = await ask_each(await self.serving(cluster or topic), ask)
        queues = {queue: span for stats in answers.values() for queue, span in stats.queues.items()}
        return TopicStatus(topic, dict(sorted(queues.items())), sum(s.put_tps for s in answers.values()), failures)

    async def topic_config(self, topic: str, broker: str) -> TopicConfig:
        """Return the settings of a topic on the broker at an address.

        Raises:
            TopicNotFoundError: it has none.
        """
        return decode_topic_config((await self.session.ask(broker, encode_topic_config_query(topic))).body)

    async def topic_configs(self, broker: str) -> dict[str, TopicConfig]:
        """Return the settings of all topics on the broker at an address.

        Raises:
            BrokerRefusedError, RemotingError: it does not tell.
            ClientError: its topics change all the time.
        """
        page = decode_topic_page(await self.session.ask(broker, encode_topic_page_query()))
        found, version, restarts = dict(page.topics), page.version, 0
        while page.total is not None and len(found) < page.total:
            page = decode_topic_page(await self.session.ask(broker, encode_topic_page_query(len(found), version)))
            if page.version != version:  # it has begun anew, and so do we
                restarts += 1
                if restarts > RESTARTS_MAX:
                    raise ClientError(f"the topics of {broker} change faster than they can be read; try again later")
                found, version = {}, page.version
            if page.topics.keys() <= found.keys():  # it promised more than it has
                break
            found |= page.topics
        return dict(sorted(found.items()))

    async def create_topic(
        self,
        topic: str,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        read_queues: int = QUEUES_OF_NEW_TOPIC,
        write_queues: int = QUEUES_OF_NEW_TOPIC,
        permission: Permission | int = Permission.READ | Permission.WRITE,
        ordered: bool = False,
        unit: bool = False,
        has_unit_subscription: bool = False,
        attributes: Mapping[str, str | None] | None = None,
    ) -> list[str]:
        """Create a topic on one broker (its address) or on all masters of a cluster, or change it; return who did.

        With neither given, the only cluster there is. Of `attributes`, None drops one; `{"message.type": "FIFO"}` is
        what 5.x clients look at. An ordered topic also gets an order config at the name servers, so that its queues
        stay the same while a broker is away.

        Raises:
            InvalidNameError: the topic cannot be called that.
            InvalidParameterError: the broker will not have it so.
            UnknownClusterError: there is no such cluster; or none is given, and there is not exactly one.
            SomeFailedError: some brokers did not.
        """
        check_topic(topic)
        if broker is None and cluster is None:
            cluster = await self.only_cluster()
        flag = (TopicFlag.UNIT if unit else 0) | (TopicFlag.UNIT_SUBSCRIPTION if has_unit_subscription else 0)
        config = TopicConfig(
            topic, read_queues, write_queues, int(permission), sys_flag=int(flag), ordered=ordered
        )  # fmt: skip
        done = await self._update_topic(config, await self.addresses(broker=broker, cluster=cluster), attributes)
        if ordered:
            await self._extend_order_config(topic, write_queues, broker, cluster)
        return done

    async def _update_topic(
        self, config: TopicConfig, addresses: list[str], attributes: Mapping[str, str | None] | None = None
    ) -> list[str]:
        async def ask(address: str) -> Response:
            return await self.session.ask(address, encode_topic_update(config, attributes))

        return list(await ask_all(addresses, ask))

    async def _extend_order_config(self, topic: str, queues: int, broker: str | None, cluster: str | None) -> None:
        if cluster is not None:
            names = [group.name for group in await self.groups_of(cluster)]
            entries = {name: f"{name}:{queues}" for name in names}
        else:
            known = [group for group in (await self.cluster()).groups if broker in group.addresses.values()]
            if not known:
                raise ClientError(f"no name server knows the broker {broker}, so its queues cannot be put in order")
            before = (await self.order_config(topic) or "").split(";")
            entries = {entry.partition(":")[0]: entry for entry in before if entry}
            entries |= {group.name: f"{group.name}:{queues}" for group in known}
        await self.put_order_config(topic, ";".join(entries.values()))

    async def change_permission(
        self, topic: str, permission: Permission | int, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, tuple[int, int]]:
        """Change what clients may do with a topic; return the permission before and after, by broker address.

        Raises:
            NoRouteError: no broker has the topic.
            ClientError: the broker is no master that has it.
            SomeFailedError, BrokerRefusedError, RemotingError: not all brokers did.
        """
        route = await self.route(topic)
        settings = {queues.broker_name: queues.settings for queues in route.queues}
        masters = {g.addresses[MASTER_ID]: g.name for g in route.groups if MASTER_ID in g.addresses}
        addresses = await self.addresses(broker=broker, cluster=cluster)
        if strangers := [address for address in addresses if masters.get(address) not in settings]:
            raise ClientError(f"{', '.join(strangers)}: no master that has the topic {topic}; see topicRoute")

        async def ask(address: str) -> Response:
            now = settings[masters[address]]
            config = TopicConfig(topic, now.read_queues, now.write_queues, int(permission), sys_flag=now.sys_flag)
            return await self.session.ask(address, encode_topic_update(config))

        done = await ask_all(addresses, ask)
        return {address: (settings[masters[address]].permission, int(permission)) for address in done}

    async def delete_topic(self, topic: str, cluster: str) -> list[str]:
        """Delete a topic with all its messages from a cluster, and from all name servers; return which brokers did.

        Raises:
            UnknownClusterError: there is no such cluster.
            SomeFailedError, BrokerRefusedError, RemotingError: not all did; name servers are asked last.
        """

        async def ask(address: str) -> Response:
            return await self.session.ask(address, encode_topic_deletion(topic))

        done = list(await ask_all(await self.addresses(cluster=cluster), ask))
        await self._tell_name_servers(encode_name_server_topic_deletion(topic, cluster))
        return done

    async def readers(self, topic: str) -> list[str]:
        """Return the groups that consume a topic, or once have, as its brokers know them.

        Raises:
            NoRouteError: no broker has it.
            SomeFailedError, BrokerRefusedError, RemotingError: not all its brokers answer.
        """

        async def ask(address: str) -> list[str]:
            return decode_topic_readers((await self.session.ask(address, encode_topic_readers_query(topic))).body)

        answers = await ask_all(await self.serving(topic), ask)
        return sorted({group for groups in answers.values() for group in groups})

    async def topic_uses(self) -> tuple[list[TopicUse], Failures]:
        """Return which clusters have, and which groups consume, each topic but retry and dead letter topics.

        Raises:
            NoNameServerError: none answers.
            SomeFailedError: not one topic could be asked about.
        """
        view, topics = await asyncio.gather(self.cluster(), self._plain_topics())

        async def use(topic: str) -> TopicUse:
            names = {group.name for group in (await self.route(topic)).groups}
            clusters = [cluster for cluster, brokers in view.clusters.items() if names.intersection(brokers)]
            return TopicUse(topic, tuple(clusters), tuple(await self.readers(topic)))

        answers, failures = await ask_each(topics, use)
        return list(answers.values()), failures

    async def allocation(self, topic: str, client_ids: Sequence[str]) -> dict[str, list[QueueRef]]:
        """Return how the queues of a topic would be shared out among consumers with these ids, by the usual rule.

        Raises:
            NoRouteError: no broker has the topic.
        """
        queues = subscribe_queues(topic, await self.route(topic))
        share = Average()
        return {client_id: share(client_id, queues, client_ids) for client_id in client_ids}

    # ------------------------------------------------------------------------------------------------------ traffic

    async def traffic(self) -> tuple[list[TopicTraffic], Failures]:
        """Return what goes in and out of all topics but retry and dead letter topics, and what went wrong, by topic.

        Raises:
            NoNameServerError: none answers.
            SomeFailedError: not one topic could be asked about.
        """
        answers, failures = await ask_each(await self._plain_topics(), self.topic_traffic)
        return [row for rows in answers.values() for row in rows], failures

    async def _plain_topics(self) -> list[str]:
        return [topic for topic in await self.topics() if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]

    async def topic_traffic(self, topic: str) -> list[TopicTraffic]:
        """Return what goes in and out of a topic: one entry for each group, or a single one if there is none.

        Raises:
            NoRouteError: no broker has it.
            SomeFailedError, BrokerRefusedError, RemotingError: not all its brokers answer.
        """
        brokers = await self.serving(topic)
        stored = await self._sum(brokers, "TOPIC_PUT_NUMS", topic)
        rows = []
        for group in await self.readers(topic):
            taken = await self._sum(brokers, "GROUP_GET_NUMS", f"{topic}@{group}")
            lag = await self._lag(brokers, group, topic)
            rows.append(TopicTraffic(topic, group, lag, stored[0], taken[0], stored[1], taken[1]))
        return rows or [TopicTraffic(topic, None, 0, stored[0], 0.0, stored[1], 0)]

    async def _sum(self, addresses: list[str], name: str, key: str) -> tuple[float, int]:
        async def ask(address: str) -> BrokerStats:
            try:
                return decode_broker_stats((await self.session.ask(address, encode_broker_stats_query(name, key))).body)
            except ServerFailedError as error:
                if _NO_SUCH_COUNT not in (error.remark or ""):
                    raise
                return BrokerStats()

        counts = (await ask_all(addresses, ask)).values()
        return sum(count.minute.tps for count in counts), sum(count.sum_of_day for count in counts)

    async def _lag(self, addresses: list[str], group: str, topic: str) -> int:
        async def ask(address: str) -> int:
            stats = decode_consume_stats(
                (await self.session.ask(address, encode_consume_stats_query(group, topic))).body
            )  # fmt: skip
            return sum(progress.lag for progress in stats.queues.values())

        return max(0, sum((await ask_all(addresses, ask)).values()))
