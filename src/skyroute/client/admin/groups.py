"""Admin calls about groups: settings, connected clients, consume progress, and offset resets."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import msgspec

from skyroute.client.admin.arguments import check_attributes, check_group_config
from skyroute.client.admin.base import Page, call_all, call_each, read_pages
from skyroute.client.admin.topics import TopicAdmin
from skyroute.client.arguments import (
    OFFSET_MAX,
    check_counts,
    check_flags,
    check_queue,
    check_texts,
    check_texts_or_none,
)
from skyroute.client.consuming import queue_calls as queues
from skyroute.client.errors import ClientError, ConsumerOfflineError, NoBrokerError, NoRouteError
from skyroute.client.producing.queue_selection import subscribe_queues
from skyroute.errors import SkyrouteError
from skyroute.message.names import check_group
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import dead_letter_topic, group_of, is_retry_topic, pop_retry_topic, retry_topic
from skyroute.routing.topology import MASTER_ID
from skyroute.wire.calls.consumers import (
    RunningConsumer,
    RunningQuery,
    decode_running_consumer,
    encode_running_query,
)
from skyroute.wire.calls.groups import (
    Connection,
    ConsumerConnections,
    ConsumeStats,
    GroupConfig,
    PopProgress,
    QueueProgress,
    decode_consume_stats,
    decode_consumer_connections,
    decode_group_config,
    decode_group_page,
    decode_producer_connections,
    decode_reset_offsets,
    encode_consume_stats_query,
    encode_consumer_connections_query,
    encode_group_config_query,
    encode_group_deletion,
    encode_group_page_query,
    encode_group_update,
    encode_producer_connections_query,
    encode_reset_order,
)
from skyroute.wire.calls.offsets import encode_offset_update
from skyroute.wire.codes import V5_0_0
from skyroute.wire.command import Response
from skyroute.wire.data_version import Version

STATS_TIMEOUT_S: Final = 15.0
"""Timeout of a consume-stats request: the broker reads every queue of the group."""

RUNNING_TIMEOUT_S: Final = 12.0
"""Timeout of a running-info request: the broker forwards it to the consumer and waits up to 10 s."""

END: Final = -1
"""In place of a time: after the last message."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """A group's offsets and lag in each queue."""

    group: str
    queues: Mapping[QueueRef, QueueProgress]
    tps: float
    """Messages consumed per second, on all brokers."""
    pops: Mapping[str, PopProgress] = field(default_factory=dict)
    """Popped messages by topic, on our brokers."""

    @property
    def popped(self) -> PopProgress:
        """Popped messages of all topics."""
        return sum_pops(self.pops.values())

    @property
    def lag(self) -> int:
        """Messages that are stored and not yet consumed."""
        return sum(progress.lag for progress in self.queues.values())

    @property
    def inflight(self) -> int:
        """Messages that members have pulled and not yet consumed."""
        return sum(progress.inflight for progress in self.queues.values())


def sum_pops(pops: Iterable[PopProgress]) -> PopProgress:
    """Return the sum of popped messages."""
    listed = list(pops)
    return PopProgress(sum(each.in_flight for each in listed), sum(each.waiting for each in listed))


def group_progress(group: str, results: Collection[ConsumeStats]) -> GroupProgress:
    """Return the progress of a group on all brokers that have it."""
    queues = {queue: progress for stats in results for queue, progress in stats.queues.items()}
    topics = sorted({topic for stats in results for topic in stats.pops})
    pops = {topic: sum_pops(stats.pops[topic] for stats in results if topic in stats.pops) for topic in topics}
    return GroupProgress(group, dict(sorted(queues.items())), sum(stats.tps for stats in results), pops)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """Progress and members of a consumer group. A value that could not be read is None; `failure` says why."""

    group: str
    progress: GroupProgress | None
    consumers: ConsumerConnections | None
    """None also when no member is connected."""
    failure: SkyrouteError | None = None


class GroupAdmin(TopicAdmin):
    """Calls about consumer groups and producer groups."""

    # ----------------------------------------------------------------------------------------------------- settings

    async def group_config(self, group: str, broker: str) -> GroupConfig:
        """Return the settings of a consumer group on the broker at an address.

        Raises:
            GroupNotFoundError: the broker does not have it.
        """
        check_texts(group=group, broker=broker)
        request = encode_group_config_query(self._names.full(group))
        return self._names.short_config(decode_group_config((await self.session.ask(broker, request)).body))

    async def group_configs(self, broker: str) -> dict[str, GroupConfig]:
        """Return the settings of all consumer groups on the broker at an address.

        Raises:
            BrokerRefusedError, RemotingError: a request failed.
            ClientError: the groups change too often to be read.
        """
        check_texts(broker=broker)

        async def read(start: int, version: Version | None) -> Page[GroupConfig]:
            page = decode_group_page(await self.session.ask(broker, encode_group_page_query(start, version)))
            return page.groups, page.version, page.total

        return self._names.short_configs(await read_pages(broker, read))

    async def create_group(
        self,
        config: GroupConfig,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        attributes: Mapping[str, str | None] | None = None,
    ) -> list[str]:
        """Create a consumer group on one broker (its address) or on all masters of a cluster, or replace its settings.

        In `attributes`, None deletes one. Returns the broker addresses.

        Raises:
            InvalidNameError: the group's name is invalid.
            InvalidParameterError: the broker refuses the settings.
            SomeFailedError: some brokers failed.
        """
        check_group_config(config)
        check_attributes(attributes)
        config = msgspec.structs.replace(config, name=self._names.full(config.name))
        check_group(config.name)

        async def call(address: str) -> Response:
            return await self.session.ask(address, encode_group_update(config, attributes))

        return list(await call_all(await self.addresses(broker=broker, cluster=cluster), call))

    async def delete_group(
        self, group: str, *, broker: str | None = None, cluster: str | None = None, with_offsets: bool = False
    ) -> list[str]:
        """Delete a consumer group from one broker, or from all masters of a cluster; return the broker addresses.

        From a cluster, its retry and dead-letter topics are deleted too.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(group=group)
        check_flags(with_offsets=with_offsets)
        full = self._names.full(group)

        async def call(address: str) -> Response:
            return await self.session.ask(address, encode_group_deletion(full, with_offsets=with_offsets))

        done = list(await call_all(await self.addresses(broker=broker, cluster=cluster), call))
        if cluster is not None:
            await self.delete_topic(retry_topic(group), cluster)
            await self.delete_topic(dead_letter_topic(group), cluster)
        return done

    # -------------------------------------------------------------------------------------------------- connections

    async def consumers(self, group: str, *, broker: str | None = None) -> ConsumerConnections:
        """Return the connected members of a consumer group and their subscriptions, from one of its brokers.

        Raises:
            NoRouteError: no broker knows the group.
            ConsumerOfflineError: no member is connected.
        """
        check_texts(group=group)
        check_texts_or_none(broker=broker)
        return self._names.short_connections(await self._consumers(self._names.full(group), broker))

    async def _consumers(self, group: str, broker: str | None = None) -> ConsumerConnections:
        async def call(address: str) -> ConsumerConnections:
            response = await self.session.ask(address, encode_consumer_connections_query(group))
            return decode_consumer_connections(response.body)

        return await first_success([broker] if broker is not None else await self._group_addresses(group), call)

    async def producers(self, group: str, topic: str) -> list[Connection]:
        """Return the connected members of a producer group, from one broker of a topic that it sends to.

        Raises:
            NoRouteError: no broker has the topic.
            ServerFailedError: no member is connected.
        """
        check_texts(group=group, topic=topic)
        full = self._names.full(group)

        async def call(address: str) -> list[Connection]:
            response = await self.session.ask(address, encode_producer_connections_query(full))
            return sorted(decode_producer_connections(response.body))

        return await first_success(await self.serving(topic), call)

    async def running_consumer(self, group: str, client_id: str, *, with_stacks: bool = False) -> RunningConsumer:
        """Return the state of one member of a group: its queues, its rates and, `with_stacks`, its thread stacks.

        Raises:
            NoRouteError: no broker knows the group.
            BrokerRefusedError: the member is not connected, or does not respond.
        """
        check_texts(group=group, client_id=client_id)
        check_flags(with_stacks=with_stacks)
        full = self._names.full(group)

        async def call(address: str) -> RunningConsumer:
            request = encode_running_query(RunningQuery(full, client_id, with_stacks))
            return decode_running_consumer((await self.session.ask(address, request, RUNNING_TIMEOUT_S)).body)

        return self._names.short_consumer(await first_success(await self._group_addresses(full), call))

    async def owners(self, group: str) -> dict[QueueRef, str]:
        """Return the client id of the member that owns each queue.

        Raises:
            ConsumerOfflineError: no member is connected.
            SomeFailedError: some members do not respond.
        """
        members = [connection.client_id for connection in (await self.consumers(group)).connections]
        results = await call_all(members, partial(self.running_consumer, group))
        return {queue: client_id for client_id, consumer in results.items() for queue in consumer.queues}

    # ----------------------------------------------------------------------------------------------------- progress

    async def groups(self) -> list[str]:
        """Return the consumer groups that have a retry topic: all that ever consumed in clustering mode.

        Raises:
            NoNameServerError: no name server responds.
        """
        return sorted({group_of(topic) or "" for topic in await self.topics() if is_retry_topic(topic)})

    async def progress(self, group: str, topic: str | None = None, cluster: str | None = None) -> GroupProgress:
        """Return a group's offsets and lag, in all topics or in one. For a light queue, give its cluster.

        Raises:
            NoRouteError: no broker knows the group.
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(group=group)
        check_texts_or_none(topic=topic, cluster=cluster)
        found = await self._progress(self._names.full(group), topic and self._names.full(topic), cluster)
        pops = {self._names.short(name): pops for name, pops in found.pops.items()}
        return GroupProgress(self._names.short(group), self._names.short_queues(found.queues), found.tps, pops)

    async def _progress(self, group: str, topic: str | None, cluster: str | None = None) -> GroupProgress:
        async def call(address: str) -> ConsumeStats:
            response = await self.session.ask(address, encode_consume_stats_query(group, topic), STATS_TIMEOUT_S)
            return decode_consume_stats(response.body)

        results = (await call_all(await self._group_addresses(group, topic, cluster), call)).values()
        return group_progress(group, results)

    async def summaries(self) -> list[GroupSummary]:
        """Return progress and members of every consumer group.

        Raises:
            NoNameServerError: no name server responds.
        """
        results, _ = await call_each(await self.groups(), self._summary)
        return list(results.values())

    async def _summary(self, group: str) -> GroupSummary:
        progress, consumers, failure = None, None, None
        try:
            progress = await self.progress(group)
            consumers = await self.consumers(group)
        except ConsumerOfflineError:
            pass
        except SkyrouteError as error:
            failure = error
        return GroupSummary(group, progress, consumers, failure)

    async def _group_addresses(self, group: str, topic: str | None = None, cluster: str | None = None) -> list[str]:
        """Return the brokers of a group's retry topic, else of the topic it consumes.

        Raises:
            NoRouteError: none of these topics exists.
        """
        candidates = [retry_topic(group)]
        if topic is not None:
            candidates += [topic, pop_retry_topic(group, topic)]
        for candidate in candidates:
            try:
                return await self._serving(candidate, cluster)
            except NoRouteError:
                continue
        raise NoRouteError(f"no broker knows the consumer group {group}; consumerProgress lists the groups")

    # --------------------------------------------------------------------------------------------------- offset resets

    async def reset_to_time(
        self, group: str, topic: str, when_ms: int, *, force: bool = True, cluster: str | None = None
    ) -> dict[QueueRef, int]:
        """Reset a group's offsets in all queues of a topic to the first message at or after a time, or to END.

        Connected members take the new offsets over within seconds. Without `force`, no offset moves forward.
        Returns the new offsets.

        Raises:
            NoRouteError: no broker has the topic.
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(group=group, topic=topic)
        check_counts(END, OFFSET_MAX, when_ms=when_ms)
        check_flags(force=force)
        check_texts_or_none(cluster=cluster)
        group, topic = self._names.full(group), self._names.full(topic)

        async def call(address: str) -> dict[QueueRef, int]:
            try:
                response = await self.session.ask(address, encode_reset_order(topic, group, when_ms, force=force))
            except ConsumerOfflineError:
                # Older brokers only notify connected members: the tool writes the offsets itself.
                return await self._reset_offline(group, topic, address, when_ms, force=force)
            return decode_reset_offsets(response.body)

        results = (await call_all(await self._serving(topic, cluster), call)).values()
        moved = sorted((queue, offset) for offsets in results for queue, offset in offsets.items())
        return self._names.short_queues(dict(moved))

    async def _reset_offline(
        self, group: str, topic: str, address: str, when_ms: int, *, force: bool
    ) -> dict[QueueRef, int]:
        name = await self.broker_name_at(address)
        moved = {}
        for queue in subscribe_queues(topic, await self._route(topic)):
            if queue.broker_name != name:
                continue
            if when_ms == END:
                offset = await queues.max_offset(self.session, queue)
            else:
                offset = await queues.offset_at(self.session, queue, when_ms)
            now = await queues.committed_offset(self.session, group, queue)
            if force or now is None or offset <= now:
                await queues.commit_offset(self.session, group, queue, offset, wait=True)
                moved[queue] = offset
        return moved

    async def reset_queue(self, group: str, queue: QueueRef, offset: int) -> None:
        """Reset a group's offset in one queue.

        Raises:
            NoBrokerError: no name server knows the broker.
            GroupNotFoundError, TopicNotFoundError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(group=group)
        check_queue("queue", queue)
        check_counts(0, OFFSET_MAX, offset=offset)
        group, queue = self._names.full(group), self._names.full_queue(queue)
        address = await self.address_of(queue.broker_name)
        response = await self.session.ask(address, encode_offset_update(group, queue, offset))
        # Connected members would soon overwrite the offset unless the broker resets them too. A broker before 5.0
        # ignores the queue of this request and would reset all queues.
        if response.version >= V5_0_0:
            order = encode_reset_order(queue.topic, group, 0, queue_id=queue.queue_id, offset=offset)
            await self.session.ask(address, order)

    async def clone_offsets(self, source: str, destination: str, topic: str) -> dict[QueueRef, int]:
        """Copy the offsets of one group in a topic to another group; return them by queue.

        Raises:
            ClientError: the source group has no offsets in the topic.
            NoRouteError: no broker has the topic.
            BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(source=source, destination=destination, topic=topic)
        offsets: dict[QueueRef, int] = {}
        for queue in subscribe_queues(self._names.full(topic), await self.route(topic)):
            # `progress` reports 0 for a group that does not exist; this request does not.
            offset = await queues.committed_offset(
                self.session, self._names.full(source), queue, zero_if_not_found=False
            )
            if offset is not None:
                offsets[queue] = offset
        if not offsets:
            raise ClientError(f"the group {source} has no offsets in {topic}: there is nothing to clone")
        for queue, offset in offsets.items():
            await queues.commit_offset(self.session, self._names.full(destination), queue, offset, wait=True)
        return self._names.short_queues(offsets)

    async def broker_name_at(self, address: str) -> str:
        """Return the name of the broker at an address.

        Raises:
            NoBrokerError: no name server knows it.
        """
        check_texts(address=address)
        for group in await self.broker_groups(None):
            if address in group.addresses.values():
                return group.name
        raise NoBrokerError(f"no name server knows a broker at {address}; clusterList lists the brokers")

    async def address_of(self, broker_name: str) -> str:
        """Return the address of a broker group's master.

        Raises:
            NoBrokerError: no name server knows it.
        """
        check_texts(broker_name=broker_name)
        for group in await self.broker_groups(None):
            if group.name == broker_name and (master := group.addresses.get(MASTER_ID)):
                return master
        raise NoBrokerError(f"no name server knows a master of {broker_name}; clusterList lists the brokers")


async def first_success(addresses: Iterable[str], call: Callable[[str], Awaitable[T]]) -> T:
    """Call a function for one address after the other until one call succeeds.

    Raises:
        SkyrouteError: the error of the last call, if all failed.
    """
    failure: SkyrouteError = NoBrokerError("no broker has an address to call")
    for address in addresses:
        try:
            return await call(address)
        except SkyrouteError as error:
            failure = error
    raise failure
