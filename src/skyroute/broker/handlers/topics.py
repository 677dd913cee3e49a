"""Requests of administrators about topics: create, update, delete, list and clean up."""

import asyncio
import logging
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import msgspec

from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.config import BrokerConfig
from skyroute.broker.handlers.stepwise_responses import (
    STEP_PARTS,
    ResponseCache,
    check_list_size,
    join_parts,
    make_response,
    write_response,
)
from skyroute.broker.stats import Stats
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.attributes import MESSAGE_TYPE, MIXED, TOPIC_ATTRIBUTES, alter
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.tables.queue_mappings import QueueMappings
from skyroute.broker.tables.table_format import entry_pieces
from skyroute.broker.tables.topics import Announce, Topics
from skyroute.message.errors import InvalidNameError
from skyroute.message.names import check_topic
from skyroute.message.reserved_topics import LIGHT_QUEUE_PREFIX, pop_retry_topic
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import StepRunner, Steps
from skyroute.routing.topology import QUEUES_MAX
from skyroute.wire.calls.static_topics import decode_mapping, encode_config_and_mapping, force_wanted, mapping_pieces
from skyroute.wire.calls.topics import (
    MappingTable,
    QueueSpan,
    TopicConfig,
    TopicPage,
    TopicUpdate,
    cut_page,
    decode_page_query,
    decode_topic_update,
    decode_topic_updates,
    encode_topic_config,
    encode_topic_list,
    encode_topic_page,
    topic_readers_parts,
    topic_stats_parts,
    topic_table_pieces,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.data_version import Version
from skyroute.wire.fields import required_name, truth

log = logging.getLogger(__name__)

_PERMISSION_MAX: Final = 7


@dataclass(frozen=True, slots=True)
class TopicHandlers:
    """Saves each change of a topic to the disk and registers it at the name servers before it responds."""

    topics: Topics
    offsets: ConsumerOffsets
    clients: ConnectedClients
    store: MessageStore
    stats: Stats
    config: BrokerConfig
    announce: Announce
    now_ms: Callable[[], int]
    step_runner: StepRunner
    mappings: QueueMappings
    complete_pulls: Callable[[str, int], None]
    """Responds to the suspended pulls of a physical queue."""
    table_cache: ResponseCache = field(default_factory=ResponseCache)
    """The last body with all topics."""

    def update(self, request: Request, peer: Peer) -> Answer:
        """Create or update a topic."""
        config = self._checked(decode_topic_update(request))
        return self._save_and_announce([config]) if self._put(config, peer) else Response()

    def update_static(self, request: Request, peer: Peer) -> Answer:
        """Create or update a static topic: its physical queues and the mapping of its logical queues."""
        config = self._checked(decode_topic_update(request))
        mapping = decode_mapping(request.body)
        if mapping.topic != config.name:
            raise _invalid(f"the mapping is of topic {mapping.topic[:80]!r} (expected {config.name!r})")
        self.mappings.put(mapping, force=force_wanted(request.fields))
        if not self._put(config, peer):
            self.topics.renew()  # name servers read mappings with a new version only
        log.info(
            "static topic set topic=%s epoch=%d logical_queues=%d of=%d peer=%s",
            *(config.name, mapping.epoch, len(mapping.hosted), mapping.total_queues, peer.address),
        )
        for items in mapping.hosted.values():
            for item in items:
                if item.broker_name == mapping.broker_name:  # its consumers may have to go to another broker now
                    self.complete_pulls(config.name, item.queue_id)
        return self._save_static(config)

    async def _save_static(self, config: TopicConfig) -> Response:
        await self.mappings.table_file.save()
        return await self._save_and_announce([config])

    def update_many(self, request: Request, peer: Peer) -> Answer:
        """Create or update several topics; if one is invalid, none is changed."""
        check_list_size(request)
        return OrderedResponse(self._update_many(decode_topic_updates(request.body), peer))

    async def _update_many(self, updates: Sequence[TopicUpdate], peer: Peer) -> Response:
        changed = await self.step_runner.run(self._put_all(updates, peer))
        return await self._save_and_announce(changed) if changed else Response()

    def _put_all(self, updates: Sequence[TopicUpdate], peer: Peer) -> Generator[None, None, list[TopicConfig]]:
        configs: list[TopicConfig] = []
        for update in updates:
            configs.append(self._checked(update))
            if len(configs) % STEP_PARTS == 0:
                yield
        self.topics.check_room(sum(self.topics.get(config.name) is None for config in configs))
        changed: list[TopicConfig] = []
        for number, config in enumerate(configs, 1):
            if self._put(config, peer):
                changed.append(config)
            if number % STEP_PARTS == 0:
                yield
        return changed

    def _put(self, config: TopicConfig, peer: Peer) -> bool:
        if not self.topics.put(config):
            return False
        log.info(
            "topic set topic=%s queues=%d/%d permission=%d peer=%s",
            config.name,
            config.read_queues,
            config.write_queues,
            config.permission,
            peer.address,
        )
        return True

    def _checked(self, update: TopicUpdate) -> TopicConfig:
        config, changes = update.config, update.attribute_changes
        _check_name(config.name)
        self._check_not_system(config.name)
        if changes.get(MESSAGE_TYPE) == MIXED and not self.config.allow_mixed_message_type:
            raise _invalid("MIXED message type is not supported.")
        for queues in (config.read_queues, config.write_queues):
            if not 0 <= queues <= QUEUES_MAX:
                raise _invalid(f"queue count {queues} is out of range (expected 0 to {QUEUES_MAX})")
        if not 0 <= config.permission <= _PERMISSION_MAX:
            raise _invalid(f"perm={config.permission} is out of range (expected 0 to {_PERMISSION_MAX})")
        known = self.topics.get(config.name)
        attributes = alter(None if known is None else known.attributes, changes, TOPIC_ATTRIBUTES)
        return msgspec.structs.replace(config, attributes=attributes)

    def _check_not_system(self, topic: str) -> None:
        if self.config.protect_system_topics and self.topics.is_system(topic):
            raise _invalid(f"The topic[{topic}] is conflict with system topic.")

    async def _save_and_announce(self, configs: Collection[TopicConfig]) -> Response:
        await asyncio.gather(self.announce(configs), self.topics.table_file.save())
        return Response()

    def delete(self, request: Request, peer: Peer) -> Answer:
        """Delete a topic with its queues and all offsets. The tool removes its route from the name servers."""
        topic = request.fields.get("topic", "")
        if not topic.strip():
            raise _invalid("The specified topic is blank.")
        self._check_not_system(topic)
        if self.topics.get(topic) is None:
            _check_name(topic)
        deleting = ExitStack()
        self._begin_to_delete(topic, deleting, peer)
        return OrderedResponse(self._delete(topic, deleting, peer))

    def _begin_to_delete(self, topic: str, deleting: ExitStack, peer: Peer) -> None:
        """Delete a topic from the tables. It cannot be created again before its queues are removed."""
        if self.topics.delete(topic):
            log.info("topic deleted topic=%s peer=%s", topic, peer.address)
        self.mappings.delete(topic)
        self.stats.forget_topic(topic)
        deleting.enter_context(self.topics.deleting(topic))

    async def _delete(self, topic: str, deleting: ExitStack, peer: Peer) -> Response:
        with deleting:
            await self.step_runner.run(self._remove(topic, deleting, peer))
        tables = (self.topics, self.offsets, self.mappings)
        await asyncio.gather(*(table.table_file.save() for table in tables))
        return Response()

    def _remove(self, topic: str, deleting: ExitStack, peer: Peer) -> Generator[None, None, None]:
        names = [topic]
        for name in self._pop_retry_topics(topic) if self.config.delete_retry_topics else ():
            if name is not None:
                self._begin_to_delete(name, deleting, peer)
                names.append(name)
            yield
        for name in names:
            yield from self.offsets.delete_topic(name)
            yield from self.store.remove_topic(name)

    def _pop_retry_topics(self, topic: str) -> Iterator[str | None]:
        """Yield the names of the POP retry topics of a topic, and None after every `STEP_PARTS` groups."""
        for number, group in enumerate(self.offsets.groups_of(topic), 1):
            if number % STEP_PARTS == 0:
                yield None
            for version in (1, 2):
                name = pop_retry_topic(group, topic, version=version)
                # It may also be the retry topic of another group, `a_b` for group `a` and topic `b`.
                if self.topics.get(name) is not None and set(self.offsets.groups_of(name)) <= {group}:
                    yield name

    # ---------------------------------------------------------------------------------------------------------- listing

    def all(self, request: Request, _peer: Peer) -> Answer:
        """Return all topics, or one page of them."""
        query, topics, version = decode_page_query("Topic", request), self.topics.all(), self.topics.version
        wire_version = Version.of(version)
        if query is None:
            return self.step_runner.answer(self._all(wire_version))
        page = cut_page(topics, query, wire_version)
        mappings = {name: mapping for name, mapping in self.mappings.all().items() if name in page}
        return encode_topic_page(
            TopicPage(page, wire_version, len(topics)), MappingTable(mappings, Version.of(self.mappings.version))
        )

    def _all(self, wire_version: Version) -> Steps:
        topics = self.topics.all()
        fields = {"totalTopicNum": str(len(topics))}
        pieces = yield from self.table_cache.find(
            (wire_version, self.mappings.version),
            lambda: topic_table_pieces(
                entry_pieces(topics),
                wire_version,
                mapping_pieces(dict(self.mappings.all())),
                Version.of(self.mappings.version),
            ),
        )
        return make_response(pieces, fields)

    def get(self, request: Request, _peer: Peer) -> Response:
        """Return the settings of one topic."""
        topic = request.fields.get("topic", "")
        config = self.topics.get(topic)
        if config is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {topic[:255]}")
        mapping = self.mappings.get(topic) if truth(request.fields, "lo") else None
        return encode_topic_config(config) if mapping is None else encode_config_and_mapping(config, mapping)

    def status(self, request: Request, _peer: Peer) -> Answer:
        """Return the first and last offset of each queue of a topic, each as of the time it is read."""
        topic = request.fields.get("topic", "")
        config = self.topics.get(topic)
        if config is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic[:255]}] not exist")
        queue_ids = range(max(config.read_queues, config.write_queues))
        spans = ((queue_id, self._span(topic, queue_id)) for queue_id in queue_ids)
        parts = topic_stats_parts(topic, self.config.broker_name, spans, self.stats.put_rate(topic))
        return self.step_runner.answer(write_response(join_parts(parts)))

    def _span(self, topic: str, queue_id: int) -> QueueSpan:
        store = self.store
        end = store.max_offset(topic, queue_id)
        updated_at_ms = store.stored_at_ms(topic, queue_id, end - 1) if end else None
        return QueueSpan(store.min_offset(topic, queue_id), end, updated_at_ms or 0)

    def consuming_groups(self, request: Request, _peer: Peer) -> Answer:
        """Return the groups that subscribe to a topic or have offsets for it."""
        topic = required_name(request.fields, "topic")
        return self.step_runner.answer(write_response(join_parts(topic_readers_parts(self._consuming_groups(topic)))))

    def _consuming_groups(self, topic: str) -> Iterator[str | None]:
        """Yield each group that subscribes to a topic or has offsets for it, and None for every other group."""
        read = dict.fromkeys(self.offsets.groups_of(topic))
        yield from read
        for name, group in list(self.clients.consumer_groups.items()):
            yield name if topic in group.subscriptions and name not in read else None

    def system_topics(self, _request: Request, _peer: Peer) -> Response:
        """Return the names of all system topics."""
        return encode_topic_list(self.topics.system_topics())

    # --------------------------------------------------------------------------------------------------------- cleaning

    def clean_expired_queues(self, _request: Request, peer: Peer) -> Response:
        """Delete the consume queue files whose messages are no longer in the log."""
        expired = self.store.delete_expired(self.now_ms(), is_due=False, disk_used=self.store.disk_used())
        log.info("queues cleaned segments=%d peer=%s", expired.queue_segments, peer.address)
        return Response()

    def clean_unused_topics(self, _request: Request, peer: Peer) -> Answer:
        """Delete the queues of topics that no longer exist."""
        return self.step_runner.answer(self._clean_unused_topics(peer))

    def _clean_unused_topics(self, peer: Peer) -> Steps:
        for topic in sorted(self.store.topics() - self.topics.all().keys()):
            if self.topics.get(topic) is not None:
                continue  # created in an earlier step
            if not self.topics.is_system(topic) and not topic.startswith(LIGHT_QUEUE_PREFIX):
                with self.topics.deleting(topic):
                    yield from self.store.remove_topic(topic)
                log.info("queues of an unknown topic removed topic=%s peer=%s", topic, peer.address)
        return Response()


def _check_name(topic: str) -> None:
    try:
        check_topic(topic)
    except InvalidNameError as error:
        raise _invalid(str(error)) from None


def _invalid(reason: str) -> RefusedError:
    return RefusedError(ResponseCode.INVALID_PARAMETER, reason)
