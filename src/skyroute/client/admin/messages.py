"""Admin calls about messages: find them, read queues without consuming, and track which groups consumed them."""

import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from skyroute.client.admin.arguments import check_strings
from skyroute.client.admin.base import SomeFailedError, call_each, preferred_address
from skyroute.client.admin.groups import GroupAdmin
from skyroute.client.admin.names import READER_GROUP
from skyroute.client.arguments import (
    OFFSET_MAX,
    check_counts,
    check_flags,
    check_kind,
    check_queue,
    check_texts,
    check_texts_or_none,
)
from skyroute.client.consuming import queue_calls as queues
from skyroute.client.consuming.subscription import make_subscription, read_messages
from skyroute.client.errors import ClientError, ConsumerOfflineError, NoRouteError, NotFoundError, ServerFailedError
from skyroute.client.producing.queue_selection import subscribe_queues
from skyroute.errors import SkyrouteError
from skyroute.message.errors import MessageIdError
from skyroute.message.message import StoredMessage
from skyroute.message.message_id import decode_offset_id
from skyroute.message.queue_ref import QueueRef
from skyroute.message.record import decode_records
from skyroute.message.reserved_topics import LIGHT_QUEUE_PREFIX
from skyroute.wire.calls.clients import ConsumeType, MessageModel
from skyroute.wire.calls.consumers import (
    DirectConsumption,
    DirectOutcome,
    decode_direct_outcome,
    encode_direct_consumption,
)
from skyroute.wire.calls.groups import ConsumerConnections
from skyroute.wire.calls.pull import PullQuestion, PullStatus
from skyroute.wire.calls.query import FOREVER_MS, UNIQUE_QUERY_MAX, encode_key_query, encode_view

log = logging.getLogger(__name__)

PULL_BATCH: Final = 32
QUERY_TIMEOUT_S: Final = 15.0
"""Timeout of an index query: the index may be large and on a slow disk."""
CONSUME_TIMEOUT_S: Final = 30.0
"""How long a consumer may take for a message that is sent to it directly."""

_BY_TAG: Final = "T"
_HOUR_MS: Final = 3_600_000


class MessageNotFoundError(ClientError):
    """There is no such message, it has expired, or it is not in the broker's index yet."""


class Tracking(StrEnum):
    """Whether a group has consumed a message, by Apache's names."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    """The group's offset is past it, and its subscription excludes the tag."""
    PULL = "PULL"
    """Members pull messages themselves: the broker does not know what they consumed."""
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    """Each member keeps its own offsets: the broker does not know them."""
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """Whether one group has consumed a message."""

    group: str
    tracking: Tracking
    remark: str | None = None


class MessageAdmin(GroupAdmin):
    """Calls about messages."""

    async def find_message(self, topic: str, message_id: str, cluster: str | None = None) -> StoredMessage:
        """Return the message with an id: the unique id its producer gave it, or the offset id its broker gave it.

        Raises:
            MessageNotFoundError: there is no such message.
            NoRouteError: no broker has the topic.
            SomeFailedError, BrokerRefusedError, RemotingError: a request failed.
        """
        check_texts(topic=topic, message_id=message_id)
        check_texts_or_none(cluster=cluster)
        try:
            place = decode_offset_id(message_id)
        except MessageIdError:
            place = None
        if place is not None:
            # Both kinds of id look alike. An offset id contains the address of a broker.
            address = str(place.store_host)
            names = {at: group.name for group in await self.broker_groups(None) for at in group.addresses.values()}
            if address in names:
                try:
                    request = encode_view(self._names.full(topic), place.log_position)
                    response = await self.session.ask(address, request)
                    return self._names.short_messages(_with_broker(response.body, names[address]))[0]
                except (ServerFailedError, IndexError):
                    pass  # no record at this position: try it as a unique id
        return (await self.messages_by_unique_id(topic, message_id, cluster))[0]

    async def messages_by_unique_id(
        self,
        topic: str,
        message_id: str,
        cluster: str | None = None,
        *,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
    ) -> list[StoredMessage]:
        """Return the messages with a unique id, oldest first. A retried send may have stored several.

        Brokers that fail are logged if the others have such a message.

        Raises:
            MessageNotFoundError: there is no such message.
            NoRouteError: no broker has the topic.
            SomeFailedError, BrokerRefusedError, RemotingError: nothing was found, and a request failed.
        """
        check_texts(message_id=message_id)
        return await self._query(
            *(topic, message_id, cluster, UNIQUE_QUERY_MAX, begin_ms, end_ms),
            is_wanted=lambda message: message.message_id == message_id,
            unique=True,
        )

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        count_max: int = 64,
        begin_ms: int = 0,
        end_ms: int = FOREVER_MS,
        cluster: str | None = None,
        by_tag: bool = False,
        last_key: str | None = None,
    ) -> list[StoredMessage]:
        """Return messages with a key, oldest first, at most `count_max` of each broker.

        Brokers with an index in RocksDB also find messages `by_tag`, and continue after `last_key` (see `index_key`).
        Brokers that fail are logged if the others have such a message.

        Raises:
            MessageNotFoundError: there is no such message.
            NoRouteError: no broker has the topic.
            SomeFailedError, BrokerRefusedError, RemotingError: nothing was found, and a request failed.
        """
        check_texts(topic=topic, key=key)
        check_counts(count_max=count_max)
        check_flags(by_tag=by_tag)
        if last_key is not None:
            check_strings(last_key=last_key)
        full = self._names.full(topic)

        def is_wanted(message: StoredMessage) -> bool:
            has_key = message.tag == key if by_tag else key in message.keys
            return has_key and (full.startswith(LIGHT_QUEUE_PREFIX) or message.topic == full)

        return await self._query(
            *(topic, key, cluster, count_max, begin_ms, end_ms),
            is_wanted=is_wanted,
            index_type=_BY_TAG if by_tag else None,
            last_key=last_key,
        )

    async def _query(
        self,
        topic: str,
        key: str,
        cluster: str | None,
        count_max: int,
        begin_ms: int,
        end_ms: int,
        *,
        is_wanted: Callable[[StoredMessage], bool],
        unique: bool = False,
        index_type: str | None = None,
        last_key: str | None = None,
    ) -> list[StoredMessage]:
        check_texts(topic=topic)
        check_texts_or_none(cluster=cluster)
        check_counts(0, OFFSET_MAX, begin_ms=begin_ms, end_ms=end_ms)
        full = self._names.full(topic)
        is_light = full.startswith(LIGHT_QUEUE_PREFIX)
        # The records of a light queue are in its parent topic, which is given in place of the cluster.
        queried = cluster if is_light and cluster else full
        names = {
            address: group.name
            for group in (await self._route(queried)).groups
            if (is_light or cluster in (None, group.cluster)) and (address := preferred_address(group))
        }
        if not names:
            raise NoRouteError(f"no broker of the cluster {cluster} has the topic {topic}")

        async def call(address: str) -> list[StoredMessage]:
            request = encode_key_query(
                queried,
                key,
                count_max=count_max,
                begin_ms=begin_ms,
                end_ms=end_ms,
                unique=unique,
                index_type=index_type,
                last_key=last_key,
            )
            try:
                response = await self.session.ask(address, request, QUERY_TIMEOUT_S)
            except NotFoundError:
                return []
            return _with_broker(response.body, names[address])

        results, failures = await call_each(names, call)
        # The index stores hashes of keys: its results may contain messages with other keys.
        found = [message for messages in results.values() for message in messages if is_wanted(message)]
        if not found and failures:
            raise SomeFailedError(results, failures)
        if not found:
            raise MessageNotFoundError(f"no message of {topic} has the {'id' if unique else 'key'} {key}")
        for address, error in failures.items():
            log.warning("message query incomplete topic=%s broker=%s reason=%s", topic, address, error)
        return self._names.short_messages(sorted(found, key=lambda message: message.stored_at_ms))

    async def message_at(self, queue: QueueRef, offset: int) -> StoredMessage:
        """Return the message at an offset of a queue.

        Raises:
            MessageNotFoundError: there is no such message.
            ClientError, RemotingError: a request failed.
        """
        check_counts(0, OFFSET_MAX - 1, offset=offset)
        async for messages in self.read(queue, offset, offset + 1):
            for message in messages:
                if message.queue_offset == offset:
                    return message
        raise MessageNotFoundError(f"there is no message at offset {offset} of {queue}")

    async def queues_of(self, topic: str, parent: str | None = None) -> list[QueueRef]:
        """Return the queues of a topic. For a light queue, give its parent topic.

        Raises:
            NoRouteError: no broker has the topic.
        """
        check_texts(topic=topic)
        check_texts_or_none(parent=parent)
        found = subscribe_queues(parent or topic, await self.route(parent or topic))
        return [QueueRef(self._names.short(topic), queue.broker_name, queue.queue_id) for queue in found]

    async def span(self, queue: QueueRef, begin_ms: int | None = None, end_ms: int | None = None) -> tuple[int, int]:
        """Return the minimum and maximum offset of a queue, or the offsets at two times.

        Raises:
            ClientError, RemotingError: a request failed.
        """
        check_queue("queue", queue)
        times = {"begin_ms": begin_ms, "end_ms": end_ms}
        check_counts(0, OFFSET_MAX, **{name: time_ms for name, time_ms in times.items() if time_ms is not None})
        queue = self._names.full_queue(queue)
        if begin_ms is None:
            begin = await queues.min_offset(self.session, queue)
        else:
            begin = await queues.offset_at(self.session, queue, begin_ms)
        if end_ms is None:
            end = await queues.max_offset(self.session, queue)
        else:
            end = await queues.offset_at(self.session, queue, end_ms)
        # A broker without messages of the queue may return -1.
        return max(0, begin), max(0, end)

    def read(
        self, queue: QueueRef, begin: int, end: int, expression: str = "*", *, group: str = READER_GROUP
    ) -> AsyncGenerator[list[StoredMessage], None]:
        """Read a queue from offset `begin` up to `end`. No group's offsets change.

        Raises:
            TagExpressionError: the expression has no tag.
            ClientError, RemotingError: a request failed.
        """
        check_queue("queue", queue)
        check_counts(0, OFFSET_MAX, begin=begin, end=end)
        check_strings(expression=expression)
        check_texts(group=group)
        return self._read(self._names.full_queue(queue), begin, end, expression, self._names.full(group))

    async def _read(
        self, queue: QueueRef, begin: int, end: int, expression: str, group: str
    ) -> AsyncGenerator[list[StoredMessage], None]:
        subscription = make_subscription(queue.topic, expression, 0)
        while begin < end:
            question = PullQuestion(
                group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                offset=begin,
                count_max=min(PULL_BATCH, end - begin),
                commit_offset=None,
                suspend_ms=0,
                expression=subscription.expression,
                broker_name=queue.broker_name,
            )
            result = await queues.pull(self.session, question)
            if result.status in (PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_ILLEGAL):
                return
            found, next_offset = read_messages(result, queue, subscription, begin)
            if wanted := [message for message in found if message.queue_offset < end]:
                yield self._names.short_messages(wanted)
            begin = max(begin + 1, next_offset)

    # ----------------------------------------------------------------------------------------------------- tracking

    async def track(self, message: StoredMessage) -> list[MessageTrack]:
        """Return for each group that reads a message's topic whether it has consumed the message.

        Raises:
            NoRouteError: no broker has the topic any more.
            SomeFailedError, BrokerRefusedError, RemotingError: a broker did not return the topic's groups.
        """
        check_kind("message", message, StoredMessage)
        message = message.replace(topic=self._names.full(message.topic))
        return [await self._track(message, group) for group in await self._readers(message.topic)]

    async def _track(self, message: StoredMessage, group: str) -> MessageTrack:
        tracking, remark = Tracking.UNKNOWN, None
        try:
            tracking = await self._find_tracking(message, group)
        except ConsumerOfflineError as error:
            tracking, remark = Tracking.NOT_ONLINE, f"CODE:{error.code} DESC:{error.remark}"
        except SkyrouteError as error:
            remark = str(error)
        return MessageTrack(self._names.short(group), tracking, remark)

    async def _find_tracking(self, message: StoredMessage, group: str) -> Tracking:
        members = await self._consumers(group)
        if members.consume_type == ConsumeType.PULL:
            return Tracking.PULL
        if members.model == MessageModel.BROADCASTING:
            return Tracking.CONSUME_BROADCASTING
        broker_name = message.broker_name or await self.broker_name_at(str(message.store_host))
        queue = QueueRef(message.topic, broker_name, message.queue_id)
        progress = (await self._progress(group, message.topic)).queues.get(queue)
        if progress is None or progress.consumer_offset <= message.queue_offset:
            return Tracking.NOT_CONSUME_YET
        return Tracking.CONSUMED if _matches(members, message) else Tracking.CONSUMED_BUT_FILTERED

    async def consume_directly(self, group: str, client_id: str, message: StoredMessage) -> DirectOutcome:
        """Send a message to one member of a group regardless of offsets; return what its handler returned.

        Raises:
            BrokerRefusedError: the member is not connected, is a pull consumer, or does not respond.
            RemotingError: the broker that stores the message cannot be reached.
        """
        check_texts(group=group, client_id=client_id)
        check_kind("message", message, StoredMessage)
        group, topic = self._names.full(group), self._names.full(message.topic)
        request = encode_direct_consumption(DirectConsumption(group, client_id, b"", message.offset_id, topic))
        response = await self.session.ask(str(message.store_host), request, CONSUME_TIMEOUT_S)
        return decode_direct_outcome(response.body)


def index_key(message: StoredMessage, key: str, *, by_tag: bool = False) -> str:
    """Return a message's key in an index in RocksDB, for `last_key`."""
    hour_ms = message.stored_at_ms // _HOUR_MS * _HOUR_MS
    kind = _BY_TAG if by_tag else "K"
    return f"{hour_ms}@{message.topic}@{kind}@{key}@{message.message_id}@{message.log_position}"


def _with_broker(records: bytes, broker_name: str) -> list[StoredMessage]:
    return [message.replace(broker_name=broker_name) for message in decode_records(records)]


def _matches(members: ConsumerConnections, message: StoredMessage) -> bool:
    subscription = members.subscriptions.get(message.topic)
    return subscription is None or not subscription.tags or message.tag in subscription.tags
