"""Topics: created, changed, deleted and looked at by administrators."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from skyroute.broker.attributes import MESSAGE_TYPE, MIXED, TOPIC_ATTRIBUTES, alter
from skyroute.broker.config import BrokerConfig
from skyroute.broker.members import Members
from skyroute.broker.offsets import Offsets
from skyroute.broker.stats import Stats
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.topics import Announce, Topics
from skyroute.message.errors import InvalidNameError
from skyroute.message.names import check_topic
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import LIGHT_QUEUE_PREFIX, pop_retry_topic
from skyroute.remoting.dispatch import Answer, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.routing.topology import QUEUES_MAX
from skyroute.wire.calls.topics import (
    QueueSpan,
    TopicConfig,
    TopicPage,
    TopicStats,
    TopicUpdate,
    Version,
    cut_page,
    decode_page_query,
    decode_topic_update,
    decode_topic_updates,
    encode_topic_config,
    encode_topic_list,
    encode_topic_page,
    encode_topic_readers,
    encode_topic_stats,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.fields import required_name

log = logging.getLogger(__name__)

_PERMISSION_MAX: Final = 7


@dataclass(frozen=True, slots=True)
class TopicHandlers:
    """Before a change of a topic is answered, it is on the disk, and name servers know of it."""

    topics: Topics
    offsets: Offsets
    members: Members
    store: MessageStore
    stats: Stats
    config: BrokerConfig
    announce: Announce
    now_ms: Callable[[], int]

    def update(self, request: Request, peer: Peer) -> Answer:
        """Create a topic, or change it."""
        return self._update([decode_topic_update(request)], peer)

    def update_many(self, request: Request, peer: Peer) -> Answer:
        """Create or change several topics. If one of them may not be, none is touched."""
        return self._update(decode_topic_updates(request.body), peer)

    def _update(self, updates: Sequence[TopicUpdate], peer: Peer) -> Answer:
        changed = [config for config in map(self._wanted, updates) if self.topics.get(config.name) != config]
        for config in changed:
            self.topics.put(config)
            log.info(
                "topic set topic=%s queues=%d/%d permission=%d peer=%s",
                config.name,
                config.read_queues,
                config.write_queues,
                config.permission,
                peer.address,
            )
        return self._make_known(changed) if changed else Response()

    def _wanted(self, update: TopicUpdate) -> TopicConfig:
        config, changes = update.config, update.attribute_changes
        _check_name(config.name)
        self._check_not_system(config.name)
        if changes.get(MESSAGE_TYPE) == MIXED and not self.config.enable_mixed_message_type:
            raise _invalid("MIXED message type is not supported.")
        for queues in (config.read_queues, config.write_queues):
            if not 0 <= queues <= QUEUES_MAX:
                raise _invalid(f"a topic has from 0 to {QUEUES_MAX} queues, not {queues}")
        if not 0 <= config.permission <= _PERMISSION_MAX:
            raise _invalid(f"a permission is from 0 to {_PERMISSION_MAX}, not {config.permission}")
        known = self.topics.get(config.name)
        attributes = alter(None if known is None else known.attributes, changes, TOPIC_ATTRIBUTES)
        return msgspec.structs.replace(config, attributes=attributes)

    def _check_not_system(self, topic: str) -> None:
        if self.config.validate_system_topic_when_update_topic and self.topics.is_system(topic):
            raise _invalid(f"The topic[{topic}] is conflict with system topic.")

    async def _make_known(self, configs: Collection[TopicConfig]) -> Response:
        await asyncio.gather(self.announce(configs), self.topics.keeper.save())
        return Response()

    def delete(self, request: Request, peer: Peer) -> Answer:
        """Delete a topic with its messages and everybody's offsets; of what name servers know, the asker sees to it."""
        topic = request.fields.get("topic", "")
        if not topic.strip():
            raise _invalid("The specified topic is blank.")
        self._check_not_system(topic)
        if self.topics.get(topic) is None:
            _check_name(topic)
        for name in [topic, *self._pop_retry_topics(topic)]:
            if self.topics.delete(name):
                log.info("topic deleted topic=%s peer=%s", name, peer.address)
            self.offsets.delete_topic(name)
            self.store.delete_topic(name)
            self.stats.forget_topic(name)
        return self._save_deletion()

    def _pop_retry_topics(self, topic: str) -> list[str]:
        if not self.config.clear_retry_topic_when_delete_topic:
            return []
        names = [
            pop_retry_topic(group, topic, version=version)
            for group in self.offsets.groups_of(topic)
            for version in (1, 2)
        ]
        return [name for name in names if self.topics.get(name) is not None]

    async def _save_deletion(self) -> Response:
        await asyncio.gather(self.topics.keeper.save(), self.offsets.keeper.save())
        return Response()

    # -------------------------------------------------------------------------------------------------------- looking

    def all(self, request: Request, _peer: Peer) -> Response:
        """Tell all topics, or those of one page."""
        query, topics, version = decode_page_query("Topic", request), self.topics.all(), self.topics.version
        edition = Version(version.counter, version.state_version, version.timestamp_ms)
        return encode_topic_page(TopicPage(cut_page(topics, query, edition), edition, len(topics)))

    def get(self, request: Request, _peer: Peer) -> Response:
        """Tell the settings of one topic."""
        topic = request.fields.get("topic", "")
        config = self.topics.get(topic)
        if config is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic[:255]}")
        return encode_topic_config(config)

    def status(self, request: Request, _peer: Peer) -> Response:
        """Tell where the queues of a topic begin and end."""
        topic = request.fields.get("topic", "")
        config = self.topics.get(topic)
        if config is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:255]}] not exist")
        queues = {
            QueueRef(topic, self.config.broker_name, queue_id): self._span(topic, queue_id)
            for queue_id in range(max(config.read_queues, config.write_queues))
        }
        return encode_topic_stats(TopicStats(queues, self.stats.put_rate(topic)))

    def _span(self, topic: str, queue_id: int) -> QueueSpan:
        store = self.store
        end = store.max_offset(topic, queue_id)
        updated_at_ms = store.stored_at_ms(topic, queue_id, end - 1) if end else None
        return QueueSpan(store.min_offset(topic, queue_id), end, updated_at_ms or 0)

    def readers(self, request: Request, _peer: Peer) -> Response:
        """Tell which groups read a topic, or have."""
        topic = required_name(request.fields, "topic")
        return encode_topic_readers({*self.members.consumer_groups_of(topic), *self.offsets.groups_of(topic)})

    def system_topics(self, _request: Request, _peer: Peer) -> Response:
        """Tell which names are the system's own."""
        return encode_topic_list(self.topics.system_topics())

    # ------------------------------------------------------------------------------------------------------- cleaning

    def clean_expired_queues(self, _request: Request, peer: Peer) -> Response:
        """Remove what queues hold of messages that are no longer in the log."""
        expired = self.store.delete_expired(self.now_ms(), is_due=False, disk_used=self.store.disk_used())
        log.info("queues cleaned segments=%d peer=%s", expired.queue_segments, peer.address)
        return Response()

    def clean_unused_topics(self, _request: Request, peer: Peer) -> Response:
        """Remove the queues of topics that are no longer there."""
        for topic in sorted(self.store.topics() - self.topics.all().keys()):
            if not self.topics.is_system(topic) and not topic.startswith(LIGHT_QUEUE_PREFIX):
                self.store.delete_topic(topic)
                log.info("queues of an unknown topic removed topic=%s peer=%s", topic, peer.address)
        return Response()


def _check_name(topic: str) -> None:
    try:
        check_topic(topic)
    except InvalidNameError as error:
        raise _invalid(str(error)) from None


def _invalid(reason: str) -> RefusedError:
    return RefusedError(ResponseCode.INVALID_PARAMETER, reason)
