"""Messages that a consumer failed to consume: stored for a retry, or in the dead-letter queue."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from skyroute.access.resources import Action
from skyroute.broker.appender import Appender
from skyroute.broker.config import BrokerConfig
from skyroute.broker.handlers.access_checks import RequireTopic, require_message
from skyroute.broker.identity import Identity
from skyroute.broker.scheduling.scheduled_delivery import replace_properties
from skyroute.broker.stats import Stats
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.topics import Announce, Topics
from skyroute.files.errors import StorageError
from skyroute.message.errors import RecordError
from skyroute.message.message import StoredMessage
from skyroute.message.message_id import encode_offset_id
from skyroute.message.properties import find_property
from skyroute.message.property_names import DELAY_LEVEL, ORIGIN_MESSAGE_ID, RETRY_TOPIC, WAIT_STORED
from skyroute.message.reserved_topics import dead_letter_topic, group_of, retry_topic
from skyroute.remoting.dispatch import Answer, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.routing.topology import Permission, TopicFlag
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.send_back import SendBack, decode_send_back
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

FIRST_RETRY_LEVEL: Final = 3
"""Delay level of the first retry, if the consumer does not name one."""
_V3_4_9: Final = 121
"""Clients from this release on send their own maximum of retries."""
_OPEN: Final = Permission.READ | Permission.WRITE


def redirect_retry(
    draft: Draft,
    *,
    groups: Groups,
    topics: Topics,
    max_reconsume_times: int | None,
    version: int,
    is_locked: Callable[[str], bool],
) -> Draft:
    """Return a draft for a retry topic, or the dead letter that replaces it.

    It becomes a dead letter if its retries are exhausted, or if its group consumes in order: such groups retry locally
    and send only failed messages. `max_reconsume_times` and `version` come from the sender.

    Raises:
        RefusedError: the group does not exist.
    """
    name = group_of(draft.topic) or ""
    group = _find_group(groups, name)
    if draft.reconsume_times <= _retries_max(group, max_reconsume_times, version) and not is_locked(name):
        return draft
    topic = topics.create(dead_letter_config(name)).name
    log.info(
        "message moved to dead-letter queue group=%s topic=%s reconsume_times=%d", name, topic, draft.reconsume_times
    )
    raw_properties = replace_properties(draft.raw_properties, {DELAY_LEVEL: "-1"})
    return msgspec.structs.replace(draft, topic=topic, queue_id=0, raw_properties=raw_properties)


def dead_letter_config(group: str) -> TopicConfig:
    """Return the dead-letter topic of a group."""
    return TopicConfig(dead_letter_topic(group), 1, 1, _OPEN)


def _retries_max(group: GroupConfig, requested: int | None, version: int) -> int:
    return requested if requested is not None and version >= _V3_4_9 else group.retry_times_max


def _find_group(groups: Groups, name: str) -> GroupConfig:
    group = groups.find(name)
    if group is None:
        raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}")
    return group


@dataclass(frozen=True, slots=True)
class SendBackHandlers:
    """Stores messages that consumers send back."""

    store: MessageStore
    appender: Appender
    topics: Topics
    groups: Groups
    stats: Stats
    announce: Announce
    config: BrokerConfig
    identity: Identity
    require: RequireTopic | None = None

    def send_back(self, request: Request, peer: Peer) -> Answer:
        """Store a message again: with a delay in the retry topic, or in the dead-letter topic."""
        order = decode_send_back(request)
        group = _find_group(self.groups, order.group)
        # Before anything is created.
        if self.require is not None and (found := self.store.message_at(order.log_position)) is not None:
            require_message(self.require, found, Action.SUB, peer)
        if not self.config.broker_permission & Permission.WRITE:
            where = self.identity.address.rpartition(":")[0]
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the broker[{where}] sending message is forbidden")
        if group.retry_queues <= 0:
            return Response()
        created: list[TopicConfig] = []
        sys_flag = int(TopicFlag.UNIT_SUBSCRIPTION) if order.unit_mode else 0
        config = TopicConfig(retry_topic(group.name), group.retry_queues, group.retry_queues, _OPEN, sys_flag=sys_flag)
        topic = self._find_or_create(config, created)
        if not topic.permission & Permission.WRITE:
            raise RefusedError(ResponseCode.NO_PERMISSION, f"the topic[{topic.name}] sending message is forbidden")
        message = self.store.message_at(order.log_position)
        if message is None:
            return self._refuse(f"look message by offset failed, {order.log_position}", created)
        level = retry_level(
            message.reconsume_times, order, _retries_max(group, order.max_reconsume_times, request.version)
        )
        if level is None:
            topic = self._find_or_create(dead_letter_config(group.name), created)
        queue_id = random.randrange(group.retry_queues) if level else 0
        return self._store(group.name, message, topic, queue_id, level or 0, created)

    def _find_or_create(self, config: TopicConfig, created: list[TopicConfig]) -> TopicConfig:
        found = self.topics.get(config.name)
        if found is None:
            found = self.topics.create(config)
            created.append(found)
        return found

    async def _refuse(self, reason: str, created: list[TopicConfig]) -> Response:
        """Refuse after the created retry topic, which stays, is announced."""
        await asyncio.gather(*self._announced(created))
        raise RefusedError(ResponseCode.SYSTEM_ERROR, reason)

    def _store(
        self,
        group: str,
        message: StoredMessage,
        topic: TopicConfig,
        queue_id: int,
        level: int,
        created: list[TopicConfig],
    ) -> Answer:
        draft = retry_draft(message, topic.name, queue_id, level, self.identity.raw_store_host)
        try:
            appended = self.appender.put(draft)
        except (StorageError, RecordError) as error:
            log.warning("message sent back was not stored group=%s reason=%s", group, error)
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"the message cannot be stored: {error}") from error
        self.stats.sent_back(group, find_property(message.raw_properties, RETRY_TOPIC) or message.topic)
        if not level:
            log.info(
                "message moved to dead-letter queue group=%s topic=%s message_id=%s reconsume_times=%d",
                *(group, topic.name, message.message_id, message.reconsume_times),
            )
        waits = [
            wait for wait in (self.appender.until_durable(appended), *self._announced(created)) if wait is not None
        ]
        return _respond_after(waits) if waits else Response()

    def _announced(self, created: list[TopicConfig]) -> list[Awaitable[None]]:
        return [self.announce(created), self.topics.table_file.save()] if created else []


async def _respond_after(waits: Iterable[Awaitable[None]]) -> Response:
    await asyncio.gather(*waits)
    return Response()


def retry_level(reconsume_times: int, order: SendBack, retries_max: int) -> int | None:
    """Return the delay level of the next retry; None for a dead letter."""
    if reconsume_times >= retries_max or order.delay_level < 0:
        return None
    return order.delay_level or FIRST_RETRY_LEVEL + reconsume_times


def retry_draft(message: StoredMessage, topic: str, queue_id: int, level: int, raw_store_host: bytes) -> Draft:
    """Return the draft of a message sent back; level 0 means without delay.

    Raises:
        RefusedError: its properties are too long with those to add.
    """
    raw_properties = message.raw_properties
    more = {WAIT_STORED: "false", DELAY_LEVEL: str(level)}
    if find_property(raw_properties, RETRY_TOPIC) is None:
        more[RETRY_TOPIC] = message.topic
    if not (find_property(raw_properties, ORIGIN_MESSAGE_ID) or "").strip():
        more[ORIGIN_MESSAGE_ID] = encode_offset_id(message.raw_store_host, message.log_position)
    return Draft(
        topic,
        queue_id,
        message.stored_body,
        replace_properties(raw_properties, more),
        message.born_at_ms,
        message.raw_born_host,
        raw_store_host,
        message.sys_flag,
        message.flag,
        message.reconsume_times + 1,
    )
