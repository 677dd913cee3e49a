"""Administration of groups: their settings, who is connected, how far consumers have come, and moving them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from skyroute.client.admin.calls import ask_all
from skyroute.client.admin.topics import TopicAdmin
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

GROUPS_AT_ONCE: Final = 16
"""How many groups are asked about at the same time."""

STATS_TIMEOUT_S: Final = 15.0
"""A broker looks at every queue of a group to say how far that has come."""

RUNNING_TIMEOUT_S: Final = 12.0
"""A broker hands the question on to the consumer, and gives that ten seconds."""

END: Final = -1
"""In place of a time: behind the last message."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a group has come with each queue."""

    group: str
    queues: Mapping[QueueRef, QueueProgress]
    tps: float
    """Messages consumed a second, on all brokers."""

    @property
    def lag(self) -> int:
        """How many messages wait for the group."""
        return sum(progress.lag for progress in self.queues.values())

    @property
    def inflight(self) -> int:
        """How many messages its members hold, but have not finished."""
        return sum(progress.inflight for progress in self.queues.values())


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A consumer group at a glance; what could not be known is None, and `failure` says why."""

    group: str
    progress: GroupProgress | None
    consumers: ConsumerConnections | None
    """None too where nobody is connected."""
    failure: SkyrouteError | None = None


class GroupAdmin(TopicAdmin):
    """Calls about groups of consumers and producers."""

    # ----------------------------------------------------------------------------------------------------- settings

    async def group_config(self, group: str, broker: str) -> GroupConfig:
        """Return the settings of a consumer group on the broker at an address.

        Raises:
            GroupNotFoundError: it has none.
        """
        return decode_group_config((await self.session.ask(broker, encode_group_config_query(group))).body)

    async def group_configs(self, broker: str) -> dict[str, GroupConfig]:
        """Return the settings of all consumer groups on the broker at an address.

        Raises:
            BrokerRefusedError, RemotingError: it does not tell.
        """
        page = decode_group_page(await self.session.ask(broker, encode_group_page_query()))
        found, version = dict(page.groups), page.version
        while page.total is not None and page.groups and len(found) < page.total:
            page = decode_group_page(await self.session.ask(broker, encode_group_page_query(len(found), version)))
            if page.version != version:  # it has begun anew, and so do we
                found, version = {}, page.version
            found |= page.groups
        return dict(sorted(found.items()))

    async def create_group(
        self,
        config: GroupConfig,
        *,
        broker: str | None = None,
        cluster: str | None = None,
        attributes: Mapping[str, str | None] | None = None,
    ) -> list[str]:
        """Create a consumer group on one broker (its address) or on all masters of a cluster, or replace its settings.

        Returns who did. Of `attributes`, None drops one.

        Raises:
            InvalidNameError: the group cannot be called that.
            InvalidParameterError: the broker will not have it so.
            SomeFailedError: some brokers did not.
        """
        check_group(config.name)

        async def ask(address: str) -> Response:
            return await self.session.ask(address, encode_group_update(config, attributes))

        return list(await ask_all(await self.addresses(broker=broker, cluster=cluster), ask))

    async def delete_group(
        self, group: str, *, broker: str | None = None, cluster: str | None = None, with_offsets: bool = False
    ) -> list[str]:
        """Have one broker, or all masters of a cluster, forget a consumer group; return who did.

        From a cluster, the messages go too that the group was to try again, or has given up.

        Raises:
            SomeFailedError, BrokerRefusedError, RemotingError: not all did.
        """

        async def ask(address: str) -> Response:
            return await self.session.ask(address, encode_group_deletion(group, with_offsets=with_offsets))

        done = list(await ask_all(await self.addresses(broker=broker, cluster=cluster), ask))
        if cluster is not None:
            await self.delete_topic(retry_topic(group), cluster)
            await self.delete_topic(dead_letter_topic(group), cluster)
        return done

    # -------------------------------------------------------------------------------------------------- connections

    async def consumers(self, group: str, *, broker: str | None = None) -> ConsumerConnections:
        """Return who is connected for a consumer group, and what for, as one of its brokers says, or a certain one.

        Raises:
            NoRouteError: no broker knows the group.
            ConsumerOfflineError: nobody is connected.
        """

        async def ask(address: str) -> ConsumerConnections:
            answer = await self.session.ask(address, encode_consumer_connections_query(group))
            return decode_consumer_connections(answer.body)

        return await first_answer([broker] if broker is not None else await self._group_addresses(group), ask)

    async def producers(self, group: str, topic: str) -> list[Connection]:
        """Return who is connected for a producer group, as one broker of a topic that it sends to says.

        Raises:
            NoRouteError: no broker has the topic.
            ServerFailedError: nobody is connected.
        """

        async def ask(address: str) -> list[Connection]:
            answer = await self.session.ask(address, encode_producer_connections_query(group))
            return sorted(decode_producer_connections(answer.body))

        return await first_answer(await self.serving(topic), ask)

    async def running_consumer(self, group: str, client_id: str, *, with_stacks: bool = False) -> RunningConsumer:
        """Return what one consumer of a group says of itself: its queues, its pace, and what its threads do.

        Raises:
            NoRouteError: no broker knows the group.
            BrokerRefusedError: it is not connected, or does not answer.
        """

        async def ask(address: str) -> RunningConsumer:
            request = encode_running_query(RunningQuery(group, client_id, with_stacks))
            return decode_running_consumer((await self.session.ask(address, request, RUNNING_TIMEOUT_S)).body)

        return await first_answer(await self._group_addresses(group), ask)

    async def owners(self, group: str) -> dict[QueueRef, str]:
        """Return which member of a group, by its client id, holds which queue.

        Raises:
            ConsumerOfflineError: nobody is connected.
            SomeFailedError: some members do not answer.
        """
        members = [connection.client_id for connection in (await self.consumers(group)).connections]

        async def ask(client_id: str) -> RunningConsumer:
            return await self.running_consumer(group, client_id)

        answers = await ask_all(members, ask)
        return {queue: client_id for client_id, answer in answers.items() for queue in answer.queues}

    # ----------------------------------------------------------------------------------------------------- progress

    async def groups(self) -> list[str]:
        """Return the consumer groups that have a retry topic, which is to say: all that ever consumed as a group.

        Raises:
            NoNameServerError: none answers.
        """
        return sorted({group_of(topic) or "" for topic in await self.topics() if is_retry_topic(topic)})

    async def progress(self, group: str, topic: str | None = None, cluster: str | None = None) -> GroupProgress:
        """Return how far a group has come, with all topics or with one. Of a light queue, `cluster` says where it is.

        Raises:
            NoRouteError: no broker knows the group.
            SomeFailedError, BrokerRefusedError, RemotingError: not all its brokers answer.
        """

        async def ask(address: str) -> ConsumeStats:
            answer = await self.session.ask(address, encode_consume_stats_query(group, topic), STATS_TIMEOUT_S)
            return decode_consume_stats(answer.body)

        answers = (await ask_all(await self._group_addresses(group, topic, cluster), ask)).values()
        found = {queue: progress for stats in answers for queue, progress in stats.queues.items()}
        return GroupProgress(group, dict(sorted(found.items())), sum(stats.tps for stats in answers))

    async def summaries(self) -> list[GroupSummary]:
        """Return every consumer group at a glance.

        Raises:
            NoNameServerError: none answers.
        """
        names = await self.groups()
        found: list[GroupSummary] = []
        for start in range(0, len(names), GROUPS_AT_ONCE):
            found += await asyncio.gather(*map(self._summary, names[start : start + GROUPS_AT_ONCE]))
        return found

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
        """Return where to ask about a group: where its retry topic is, or else the topic it consumes.

        Raises:
            NoRouteError: none of them is anywhere.
        """
        candidates = [retry_topic(group)]
        if topic is not None:
            candidates += [topic, pop_retry_topic(group, topic)]
        for candidate in candidates:
            try:
                return await self.serving(candidate, cluster)
            except NoRouteError:
                continue
        raise NoRouteError(f"no broker knows the consumer group {group}; see consumerProgress for those there are")

    # ------------------------------------------------------------------------------------------------ moving groups

    async def reset_to_time(
        self, group: str, topic: str, when_ms: int, *, force: bool = True, cluster: str | None = None
    ) -> dict[QueueRef, int]:
        """Have a group go on, in all queues of a topic, at the first message of a time (END: behind the last).

        Members that are connected go there within seconds. Without `force`, no queue moves forward. Returns where
        each queue was moved to.

        Raises:
            NoRouteError: no broker has the topic.
            SomeFailedError, BrokerRefusedError, RemotingError: not all brokers did.
        """

        async def ask(address: str) -> dict[QueueRef, int]:
            try:
                answer = await self.session.ask(address, encode_reset_order(topic, group, when_ms, force=force))
            except ConsumerOfflineError:
                # Older brokers tell connected members, and leave the rest to the asker.
                return await self._move_offline(group, topic, address, when_ms, force=force)
            return decode_reset_offsets(answer.body)

        answers = (await ask_all(await self.serving(topic, cluster), ask)).values()
        return dict(sorted((queue, offset) for moved in answers for queue, offset in moved.items()))

    async def _move_offline(
        self, group: str, topic: str, address: str, when_ms: int, *, force: bool
    ) -> dict[QueueRef, int]:
        name = await self.broker_name_at(address)
        moved = {}
        for queue in subscribe_queues(topic, await self.route(topic)):
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
        """Have a group go on at a certain offset of one queue.

        Raises:
            NoBrokerError: no name server knows the broker.
            GroupNotFoundError, TopicNotFoundError, BrokerRefusedError, RemotingError: it does not.
        """
        address = await self.address_of(queue.broker_name)
        answer = await self.session.ask(address, encode_offset_update(group, queue, offset))
        # Connected members would overwrite this soon, unless the broker makes them take it over. An older broker does
        # not know this order for one queue: it would move all of them.
        if answer.version >= V5_0_0:
            order = encode_reset_order(queue.topic, group, 0, queue_id=queue.queue_id, offset=offset)
            await self.session.ask(address, order)

    async def clone_offsets(self, source: str, destination: str, topic: str) -> dict[QueueRef, int]:
        """Have a group go on with a topic where another one is now; return where, by queue.

        Raises:
            ClientError: the source has consumed nothing of the topic.
            NoRouteError: no broker has the topic.
            BrokerRefusedError, RemotingError: not all brokers did.
        """
        offsets: dict[QueueRef, int] = {}
        for queue in subscribe_queues(topic, await self.route(topic)):
            # A group's progress would do as well, but for a group that nobody knows it says 0.
            offset = await queues.committed_offset(self.session, source, queue, zero_if_not_found=False)
            if offset is not None:
                offsets[queue] = offset
        if not offsets:
            raise ClientError(f"the group {source} has consumed nothing of {topic}, so there is nothing to clone")
        for queue, offset in offsets.items():
            await queues.commit_offset(self.session, destination, queue, offset, wait=True)
        return offsets

    async def broker_name_at(self, address: str) -> str:
        """Return the name of the broker at an address.

        Raises:
            NoBrokerError: no name server knows it.
        """
        for group in await self.groups_of(None):
            if address in group.addresses.values():
                return group.name
        raise NoBrokerError(f"no name server knows a broker at {address}; see clusterList")

    async def address_of(self, broker_name: str) -> str:
        """Return where the master of a name is.

        Raises:
            NoBrokerError: no name server knows it.
        """
        for group in await self.groups_of(None):
            if group.name == broker_name and (master := group.addresses.get(MASTER_ID)):
                return master
        raise NoBrokerError(f"no name server knows a master of the name {broker_name}; see clusterList")


async def first_answer(addresses: Iterable[str], ask: Callable[[str], Awaitable[T]]) -> T:
    """Ask one after the other until one answers.

    Raises:
        SkyrouteError: none did; it is what the last one said.
    """
    failure: SkyrouteError = NoBrokerError("there is no broker to ask")
    for address in addresses:
        try:
            return await ask(address)
        except SkyrouteError as error:
            failure = error
    raise failure
