"""Admin calls about topics: list, create, change and delete them; their queues, readers and traffic."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from skyroute.client.admin.arguments import check_attributes, check_client_ids, check_permission
from skyroute.client.admin.base import Failures, Page, call_all, call_each, read_pages
from skyroute.client.admin.controllers import ControllerAdmin
from skyroute.client.arguments import check_counts, check_flags, check_texts, check_texts_or_none
from skyroute.client.consuming.strategies import Average
from skyroute.client.errors import ClientError, ServerFailedError
from skyroute.client.producing.queue_selection import subscribe_queues
from skyroute.message.names import check_topic
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import DLQ_PREFIX, RETRY_PREFIX
from skyroute.routing.topology import MASTER_ID, QUEUES_MAX, Permission, TopicFlag
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
from skyroute.wire.data_version import Version

QUEUES_OF_NEW_TOPIC: Final = 8
"""Default number of queues per broker, as in mqadmin."""

_NO_SUCH_COUNTER: Final = "not exist"
"""Part of a broker's remark when it has no counter of this name yet."""


@dataclass(frozen=True, slots=True)
class TopicStatus:
    """Minimum and maximum offsets of a topic's queues."""

    topic: str
    queues: Mapping[QueueRef, QueueSpan]
    put_tps: float
    """Messages stored per second, summed over the brokers that responded."""
    failures: Failures = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicUse:
    """The clusters that have a topic, and the consumer groups with offsets or members for it."""

    topic: str
    clusters: tuple[str, ...]
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """Rates and daily counts of messages stored in a topic and read by one group; `group` None: no group reads it."""

    topic: str
    group: str | None
    lag: int
    in_tps: float
    out_tps: float
    in_day: int
    out_day: int


class TopicAdmin(ControllerAdmin):
    """Calls about topics."""

    async def topics(self) -> list[str]:
        """Return all topics that the name servers know, sorted, system topics included.

        Raises:
            NoNameServerError: no name server responds.
        """
        found = decode_topic_list((await self.session.ask_name_server(encode_topic_list_query())).body)
        return sorted(self._names.short(topic) for topic in found if self._names.owns(topic))

    async def clusters_of(self, topic: str) -> list[str]:
        """Return the clusters that have a topic.

        Raises:
            NoRouteError: no broker has it.
        """
        check_texts(topic=topic)
        view, route = await asyncio.gather(self.cluster(), self.route(topic))
        names = {group.name for group in route.groups}
        return [cluster for cluster, brokers in view.clusters.items() if names.intersection(brokers)]

    async def topic_status(self, topic: str, cluster: str | None = None) -> TopicStatus:
        """Return the minimum and maximum offsets of a topic's queues. For a light queue, give its cluster.

        Raises:
            NoRouteError: no broker has it.
            SomeFailedError, BrokerRefusedError, RemotingError: all requests failed.
        """
        check_texts(topic=topic)
        check_texts_or_none(cluster=cluster)
        full = self._names.full(topic)

        async def call(address: str) -> TopicStats:
            return decode_topic_stats((await self.session.ask(address, encode_topic_stats_query(full))).body)

        # Like mqadmin: every cluster has a topic of its name, whose route lists its brokers.
        results, failures = await call_each(await self._serving(cluster or full), call)
        queues = {queue: span for stats in results.values() for queue, span in stats.queues.items()}
        queues = self._names.short_queues(dict(sorted(queues.items())))
        return TopicStatus(self._names.short(topic), queues, sum(s.put_tps for s in results.values()), failures)

    async def topic_config(self, topic: str, broker: str) -> TopicConfig:
        """Return the settings of a topic on the broker at an address.

        Raises:
            TopicNotFoundError: the broker does not have it.
        """
        check_texts(topic=topic, broker=broker)
        request = encode_topic_config_query(self._names.full(topic))
        return self._names.short_config(decode_topic_config((await self.session.ask(broker, request)).body))

    async def topic_configs(self, broker: str) -> dict[str, TopicConfig]:
        """Return the settings of all topics on the broker at an address.

        Raises:
            BrokerRefusedError, RemotingError: a request failed.
            ClientError: the topics change too often to be read.
        """
        check_texts(broker=broker)

        async def read(start: int, version: Version | None) -> Page[TopicConfig]:
            page = decode_topic_page(await self.session.ask(broker, encode_topic_page_query(start, version)))
            return page.topics, page.version, page.total

        return self._names.short_configs(await read_pages(broker, read))

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
        """Create or change a topic on one broker (its address) or on all masters of a cluster.

        Without `broker` and `cluster`, the only cluster is used. In `attributes`, None deletes one; 5.x clients read
        `{"message.type": "FIFO"}`. An ordered topic also gets an order config on the name servers: its queues then
        stay the same while a broker is down. Returns the broker addresses.

        Raises:
            InvalidNameError: the topic's name is invalid.
            InvalidParameterError: the broker refuses the settings.
            UnknownClusterError: there is no such cluster; or none is given, and there is not exactly one.
            SomeFailedError: some brokers failed.
        """
        check_texts(topic=topic)
        check_texts_or_none(broker=broker, cluster=cluster)
        check_counts(0, QUEUES_MAX, read_queues=read_queues, write_queues=write_queues)
        check_permission(permission)
        check_flags(ordered=ordered, unit=unit, has_unit_subscription=has_unit_subscription)
        check_attributes(attributes)
        full = self._names.full(topic)
        check_topic(full)
        if broker is None and cluster is None:
            cluster = await self.only_cluster()
        flag = (TopicFlag.UNIT if unit else 0) | (TopicFlag.UNIT_SUBSCRIPTION if has_unit_subscription else 0)
        config = TopicConfig(full, read_queues, write_queues, int(permission), sys_flag=int(flag), ordered=ordered)

        async def call(address: str) -> Response:
            return await self.session.ask(address, encode_topic_update(config, attributes))

        done = list(await call_all(await self.addresses(broker=broker, cluster=cluster), call))
        if ordered:
            await self._extend_order_config(topic, write_queues, broker, cluster)
        return done

    async def _extend_order_config(self, topic: str, queues: int, broker: str | None, cluster: str | None) -> None:
        if cluster is not None:
            names = [group.name for group in await self.broker_groups(cluster)]
            entries = {name: f"{name}:{queues}" for name in names}
        else:
            known = [group for group in (await self.cluster()).groups if broker in group.addresses.values()]
            if not known:
                raise ClientError(f"no name server knows the broker {broker}: the order config cannot name its queues")
            before = (await self.order_config(topic) or "").split(";")
            entries = {entry.partition(":")[0]: entry for entry in before if entry}
            entries |= {group.name: f"{group.name}:{queues}" for group in known}
        await self.put_order_config(topic, ";".join(entries.values()))

    async def change_permission(
        self, topic: str, permission: Permission | int, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, tuple[int, int]]:
        """Change the permission of a topic; return the permission before and after by broker address.

        Raises:
            NoRouteError: no broker has the topic.
            ClientError: the broker is not a master that has the topic.
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(topic=topic)
        check_permission(permission)
        check_texts_or_none(broker=broker, cluster=cluster)
        full = self._names.full(topic)
        route = await self._route(full)
        settings = {queues.broker_name: queues.settings for queues in route.queues}
        masters = {g.addresses[MASTER_ID]: g.name for g in route.groups if MASTER_ID in g.addresses}
        addresses = await self.addresses(broker=broker, cluster=cluster)
        if strangers := [address for address in addresses if masters.get(address) not in settings]:
            raise ClientError(
                f"{', '.join(strangers)}: not a master with the topic {topic}; topicRoute lists its masters"
            )

        async def call(address: str) -> Response:
            now = settings[masters[address]]
            config = TopicConfig(full, now.read_queues, now.write_queues, int(permission), sys_flag=now.sys_flag)
            return await self.session.ask(address, encode_topic_update(config))

        done = await call_all(addresses, call)
        return {address: (settings[masters[address]].permission, int(permission)) for address in done}

    async def delete_topic(self, topic: str, cluster: str) -> list[str]:
        """Delete a topic and its messages from a cluster and from all name servers; return the broker addresses.

        Raises:
            UnknownClusterError: there is no such cluster.
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed; name servers come last.
        """
        check_texts(topic=topic, cluster=cluster)
        full = self._names.full(topic)

        async def call(address: str) -> Response:
            return await self.session.ask(address, encode_topic_deletion(full))

        done = list(await call_all(await self.addresses(cluster=cluster), call))
        await self._call_all_name_servers(encode_name_server_topic_deletion(full, cluster))
        return done

    async def readers(self, topic: str) -> list[str]:
        """Return the consumer groups that have members or offsets for a topic.

        Raises:
            NoRouteError: no broker has it.
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(topic=topic)
        return [self._names.short(group) for group in await self._readers(self._names.full(topic))]

    async def _readers(self, topic: str) -> list[str]:
        async def call(address: str) -> list[str]:
            return decode_topic_readers((await self.session.ask(address, encode_topic_readers_query(topic))).body)

        results = await call_all(await self._serving(topic), call)
        return sorted({group for groups in results.values() for group in groups})

    async def topic_uses(self) -> tuple[list[TopicUse], Failures]:
        """Return clusters and consumer groups of each topic, except retry and dead-letter topics; and errors by topic.

        Raises:
            NoNameServerError: no name server responds.
            SomeFailedError: the requests of all topics failed.
        """
        view, topics = await asyncio.gather(self.cluster(), self._plain_topics())

        async def use(topic: str) -> TopicUse:
            names = {group.name for group in (await self.route(topic)).groups}
            clusters = [cluster for cluster, brokers in view.clusters.items() if names.intersection(brokers)]
            return TopicUse(topic, tuple(clusters), tuple(await self.readers(topic)))

        results, failures = await call_each(topics, use)
        return list(results.values()), failures

    async def allocation(self, topic: str, client_ids: Sequence[str]) -> dict[str, list[QueueRef]]:
        """Return which queues of a topic consumers with these ids would own, by the default rebalance strategy.

        Raises:
            NoRouteError: no broker has the topic.
        """
        check_texts(topic=topic)
        check_client_ids(client_ids)
        queues = subscribe_queues(self._names.short(topic), await self.route(topic))
        share = Average()
        return {client_id: share(client_id, queues, client_ids) for client_id in client_ids}

    # ------------------------------------------------------------------------------------------------------ traffic

    async def traffic(self) -> tuple[list[TopicTraffic], Failures]:
        """Return the traffic of all topics except retry and dead-letter topics, and the errors by topic.

        Raises:
            NoNameServerError: no name server responds.
            SomeFailedError: the requests of all topics failed.
        """
        results, failures = await call_each(await self._plain_topics(), self.topic_traffic)
        return [row for rows in results.values() for row in rows], failures

    async def _plain_topics(self) -> list[str]:
        return [topic for topic in await self.topics() if not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]

    async def topic_traffic(self, topic: str) -> list[TopicTraffic]:
        """Return the traffic of a topic: one entry per consumer group, or one entry without a group.

        Raises:
            NoRouteError: no broker has it.
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(topic=topic)
        full, short = self._names.full(topic), self._names.short(topic)
        brokers = await self._serving(full)
        stored = await self._sum(brokers, "TOPIC_PUT_NUMS", full)
        rows = []
        for group in await self._readers(full):
            taken = await self._sum(brokers, "GROUP_GET_NUMS", f"{full}@{group}")
            lag = await self._lag(brokers, group, full)
            row = TopicTraffic(short, self._names.short(group), lag, stored[0], taken[0], stored[1], taken[1])
            rows.append(row)
        return rows or [TopicTraffic(short, None, 0, stored[0], 0.0, stored[1], 0)]

    async def _sum(self, addresses: list[str], name: str, key: str) -> tuple[float, int]:
        async def call(address: str) -> BrokerStats:
            try:
                return decode_broker_stats((await self.session.ask(address, encode_broker_stats_query(name, key))).body)
            except ServerFailedError as error:
                if _NO_SUCH_COUNTER not in (error.remark or ""):
                    raise
                return BrokerStats()

        counts = (await call_all(addresses, call)).values()
        return sum(count.minute.tps for count in counts), sum(count.sum_of_day for count in counts)

    async def _lag(self, addresses: list[str], group: str, topic: str) -> int:
        async def call(address: str) -> int:
            response = await self.session.ask(address, encode_consume_stats_query(group, topic))
            return sum(progress.lag for progress in decode_consume_stats(response.body).queues.values())

        return max(0, sum((await call_all(addresses, call)).values()))
