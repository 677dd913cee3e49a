"""Administration of messages: finding single ones, reading queues without consuming them, and who has had which."""

import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from skyroute.client.admin.calls import SomeFailedError, ask_each, preferred_address
from skyroute.client.admin.groups import GroupAdmin
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

READER_GROUP: Final = "TOOLS_CONSUMER"
"""The group under which tools read; every broker knows it, and keeps no offsets for it."""

MESSAGES_A_PULL: Final = 32
QUERY_TIMEOUT_S: Final = 15.0
"""An index may be large, and lie on a slow disk."""
HANDLING_TIMEOUT_S: Final = 30.0
"""How long a consumer may take over one message that is handed to it directly."""

_BY_TAG: Final = "T"
_HOUR_MS: Final = 3_600_000


class MessageNotFoundError(ClientError):
    """There is no such message, or no more, or not yet in the broker's index."""


class Tracking(StrEnum):
    """What became of a message in one group."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    """The group has gone past it, and does not want its tag."""
    PULL = "PULL"
    """Its members pull, and nobody but them knows."""
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    """Each member has its own offsets, and nobody but them knows."""
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """What became of a message in one group."""

    group: str
    tracking: Tracking
    remark: str | None = None


class MessageAdmin(GroupAdmin):
    """Calls about single messages."""

    async def find_message(self, topic: str, message_id: str, cluster: str | None = None) -> StoredMessage:
        """Return the message with an id: its sender's, or the one that says where a broker put it.

        Raises:
            MessageNotFoundError: there is none.
            NoRouteError: no broker has the topic.
            SomeFailedError, BrokerRefusedError, RemotingError: not all brokers answer.
        """
        try:
            place = decode_offset_id(message_id)
        except MessageIdError:
            place = None
        if place is not None:
            # Nothing in an id tells which of the two it is; but the place that one says must be that of a broker.
            address = str(place.store_host)
            names = {at: group.name for group in await self.groups_of(None) for at in group.addresses.values()}
            if address in names:
                try:
                    answer = await self.session.ask(address, encode_view(topic, place.log_position))
                    return _with_broker(decode_records(answer.body), names[address])[0]
                except (ServerFailedError, IndexError):
                    pass  # there is no record at this place
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
        """Return the messages with the id that their sender gave them, oldest first; after a retry there are several.

        What the brokers that answer have is enough: of those that do not, a line in the log tells.

        Raises:
            MessageNotFoundError: there is none.
            NoRouteError: no broker has the topic.
            SomeFailedError, BrokerRefusedError, RemotingError: none was found, and not all brokers answer.
        """
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
        """Return messages with a key, oldest first, of each broker up to a number.

        Brokers that keep their index in RocksDB also find messages `by_tag`, and go on behind an `index_key`.
        What the brokers that answer have is enough: of those that do not, a line in the log tells.

        Raises:
            MessageNotFoundError: there is none.
            NoRouteError: no broker has the topic.
            SomeFailedError, BrokerRefusedError, RemotingError: none was found, and not all brokers answer.
        """
        is_light = topic.startswith(LIGHT_QUEUE_PREFIX)

        def is_wanted(message: StoredMessage) -> bool:
            has_key = message.tag == key if by_tag else key in message.keys
            return has_key and (is_light or message.topic == topic)

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
        is_light = topic.startswith(LIGHT_QUEUE_PREFIX)
        # The records of a light queue are those of the topic it belongs to, which stands in the cluster's place.
        asked = cluster if is_light and cluster else topic
        names = {
            address: group.name
            for group in (await self.route(asked)).groups
            if (is_light or cluster in (None, group.cluster)) and (address := preferred_address(group))
        }
        if not names:
            raise NoRouteError(f"no broker of the cluster {cluster} has the topic {topic}")

        async def ask(address: str) -> list[StoredMessage]:
            request = encode_key_query(
                asked,
                key,
                count_max=count_max,
                begin_ms=begin_ms,
                end_ms=end_ms,
                unique=unique,
                index_type=index_type,
                last_key=last_key,
            )
            try:
                answer = await self.session.ask(address, request, QUERY_TIMEOUT_S)
            except NotFoundError:
                return []
            return _with_broker(decode_records(answer.body), names[address])

        answers, failures = await ask_each(names, ask)
        # An index knows hashes of keys only, so that others may be among what it finds.
        found = [message for messages in answers.values() for message in messages if is_wanted(message)]
        if not found and failures:
            raise SomeFailedError(answers, failures)
        if not found:
            raise MessageNotFoundError(f"no message of {topic} has the {'id' if unique else 'key'} {key}")
        for address, error in failures.items():
            log.warning("not all that may be found topic=%s broker=%s reason=%s", topic, address, error)
        return sorted(found, key=lambda message: message.stored_at_ms)

    async def message_at(self, queue: QueueRef, offset: int) -> StoredMessage:
        """Return the message at an offset of a queue.

        Raises:
            MessageNotFoundError: there is none.
            ClientError, RemotingError: it cannot be read now.
        """
        async for messages in self.read(queue, offset, offset + 1):
            for message in messages:
                if message.queue_offset == offset:
                    return message
        raise MessageNotFoundError(f"there is no message at offset {offset} of {queue}")

    async def queues_of(self, topic: str, parent: str | None = None) -> list[QueueRef]:
        """Return the queues of a topic; those of a light queue are where its parent's are.

        Raises:
            NoRouteError: no broker has the topic.
        """
        found = subscribe_queues(parent or topic, await self.route(parent or topic))
        return [QueueRef(topic, queue.broker_name, queue.queue_id) for queue in found]

    async def span(self, queue: QueueRef, begin_ms: int | None = None, end_ms: int | None = None) -> tuple[int, int]:
        """Return where a queue begins and where its next message will be, or what lies between two times.

        Raises:
            ClientError, RemotingError: it cannot be known now.
        """
        if begin_ms is None:
            begin = await queues.min_offset(self.session, queue)
        else:
            begin = await queues.offset_at(self.session, queue, begin_ms)
        if end_ms is None:
            end = await queues.max_offset(self.session, queue)
        else:
            end = await queues.offset_at(self.session, queue, end_ms)
        # A broker that has nothing of the queue yet may say -1.
        return max(0, begin), max(0, end)

    async def read(
        self, queue: QueueRef, begin: int, end: int, expression: str = "*", *, group: str = READER_GROUP
    ) -> AsyncGenerator[list[StoredMessage], None]:
        """Read a queue from one offset up to another, and leave no trace: nobody's offsets change.

        Raises:
            TagExpressionError: the expression has no tag in it.
            ClientError, RemotingError: it cannot be read now.
        """
        subscription = make_subscription(queue.topic, expression, 0)
        while begin < end:
            question = PullQuestion(
                group=group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                offset=begin,
                count_max=min(MESSAGES_A_PULL, end - begin),
                commit_offset=None,
                suspend_ms=0,
                expression=subscription.expression,
                broker_name=queue.broker_name,
            )
            answer = await queues.pull(self.session, question)
            if answer.status in (PullStatus.NO_NEW_MESSAGE, PullStatus.OFFSET_ILLEGAL):
                return
            found, next_offset = read_messages(answer, queue, subscription, begin)
            if wanted := [message for message in found if message.queue_offset < end]:
                yield wanted
            begin = max(begin + 1, next_offset)

    # ----------------------------------------------------------------------------------------------------- tracking

    async def track(self, message: StoredMessage) -> list[MessageTrack]:
        """Return what became of a message in each group that reads its topic.

        Raises:
            NoRouteError: no broker has the topic any more.
            SomeFailedError, BrokerRefusedError, RemotingError: not all its brokers say who reads it.
        """
        return [await self._track(message, group) for group in await self.readers(message.topic)]

    async def _track(self, message: StoredMessage, group: str) -> MessageTrack:
        try:
            members = await self.consumers(group)
            if members.consume_type == ConsumeType.PULL:
                return MessageTrack(group, Tracking.PULL)
            if members.model == MessageModel.BROADCASTING:
                return MessageTrack(group, Tracking.CONSUME_BROADCASTING)
            if not await self._has_passed(group, message):
                return MessageTrack(group, Tracking.NOT_CONSUME_YET)
        except ConsumerOfflineError as error:
            return MessageTrack(group, Tracking.NOT_ONLINE, f"CODE:{error.code} DESC:{error.remark}")
        except SkyrouteError as error:
            return MessageTrack(group, Tracking.UNKNOWN, str(error))
        wanted = _wants(members, message)
        return MessageTrack(group, Tracking.CONSUMED if wanted else Tracking.CONSUMED_BUT_FILTERED)

    async def _has_passed(self, group: str, message: StoredMessage) -> bool:
        broker_name = message.broker_name or await self.broker_name_at(str(message.store_host))
        queue = QueueRef(message.topic, broker_name, message.queue_id)
        progress = (await self.progress(group, message.topic)).queues.get(queue)
        return progress is not None and progress.consumer_offset > message.queue_offset

    async def consume_directly(self, group: str, client_id: str, message: StoredMessage) -> DirectOutcome:
        """Have one consumer of a group handle a message now, whatever its offsets say; return what came of it.

        Raises:
            BrokerRefusedError: it is not connected, pulls its messages itself, or does not answer.
            RemotingError: the broker that has the message cannot be reached.
        """
        order = DirectConsumption(group, client_id, b"", message.offset_id, message.topic)
        request = encode_direct_consumption(order)
        answer = await self.session.ask(str(message.store_host), request, HANDLING_TIMEOUT_S)
        return decode_direct_outcome(answer.body)


def index_key(message: StoredMessage, key: str, *, by_tag: bool = False) -> str:
    """Return where a message stands in an index that is kept in RocksDB: a query can go on behind it."""
    hour_ms = message.stored_at_ms // _HOUR_MS * _HOUR_MS
    kind = _BY_TAG if by_tag else "K"
    return f"{hour_ms}@{message.topic}@{kind}@{key}@{message.message_id}@{message.log_position}"


def _with_broker(messages: list[StoredMessage], broker_name: str) -> list[StoredMessage]:
    return [message.replace(broker_name=broker_name) for message in messages]


def _wants(members: ConsumerConnections, message: StoredMessage) -> bool:
    subscription = members.subscriptions.get(message.topic)
    return subscription is None or not subscription.tags or message.tag in subscription.tags
