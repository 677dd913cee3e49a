"""Requests of administrators about consumer groups: create, update, delete and list."""

import asyncio
import logging
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from skyroute.broker.handlers.stepwise_responses import (
    STEP_PARTS,
    ResponseCache,
    check_list_size,
    join_parts,
    make_response,
    write_response,
)
from skyroute.broker.identity import Identity
from skyroute.broker.stats import Stats
from skyroute.broker.tables.attributes import GROUP_ATTRIBUTES, alter
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.tables.request_modes import RequestModes
from skyroute.broker.tables.table_format import entry_pieces
from skyroute.broker.tables.topics import Topics
from skyroute.message.errors import InvalidNameError
from skyroute.message.names import check_group
from skyroute.message.reserved_topics import is_retry_topic
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import StepRunner, Steps
from skyroute.routing.topology import QUEUES_MAX
from skyroute.wire.calls.groups import (
    GroupConfig,
    GroupDeletion,
    GroupPage,
    GroupUpdate,
    ReadPermit,
    decode_group_deletion,
    decode_group_update,
    decode_group_updates,
    decode_read_permit,
    decode_request_mode,
    encode_group_config,
    encode_group_page,
    encode_read_permit,
    group_table_pieces,
)
from skyroute.wire.calls.topics import cut_page, decode_page_query, topic_list_parts
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.data_version import Version
from skyroute.wire.fields import required_name

log = logging.getLogger(__name__)

CHECKED_A_STEP: Final = 25
"""Groups of a list checked in one step, each with a retry policy of any allowed size."""


@dataclass(frozen=True, slots=True)
class GroupHandlers:
    """Saves each change of a group to the disk before it responds."""

    groups: Groups
    topics: Topics
    offsets: ConsumerOffsets
    request_modes: RequestModes
    stats: Stats
    identity: Identity
    step_runner: StepRunner
    table_cache: ResponseCache = field(default_factory=ResponseCache)
    """The last body with all groups."""

    def update(self, request: Request, peer: Peer) -> Answer:
        """Create or update a group."""
        self._put(self._checked(decode_group_update(request.body)), peer)
        return self._save()

    def update_many(self, request: Request, peer: Peer) -> Answer:
        """Create or update several groups; if one is invalid, none is changed."""
        check_list_size(request)
        return OrderedResponse(self._update_many(decode_group_updates(request.body), peer))

    async def _update_many(self, updates: Iterable[GroupUpdate], peer: Peer) -> Response:
        await self.step_runner.run(self._put_all(updates, peer))
        return await self._save()

    def _put_all(self, updates: Iterable[GroupUpdate], peer: Peer) -> Generator[None, None, None]:
        configs: list[GroupConfig] = []
        for update in updates:
            configs.append(self._checked(update))
            if len(configs) % CHECKED_A_STEP == 0:
                yield
        for number, config in enumerate(configs, 1):
            self._put(config, peer)
            if number % STEP_PARTS == 0:
                yield

    def _put(self, config: GroupConfig, peer: Peer) -> None:
        if self.groups.put(config):
            log.info("group set group=%s peer=%s", config.name, peer.address)

    def _checked(self, update: GroupUpdate) -> GroupConfig:
        config = update.config
        try:
            check_group(config.name)
        except InvalidNameError as error:
            raise RefusedError(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if config.retry_queues > QUEUES_MAX:
            raise RefusedError(
                ResponseCode.INVALID_PARAMETER, f"retryQueueNums={config.retry_queues} (expected at most {QUEUES_MAX})"
            )
        known = self.groups.get(config.name)
        attributes = alter(None if known is None else known.attributes, update.attribute_changes, GROUP_ATTRIBUTES)
        return msgspec.structs.replace(config, attributes=attributes)

    async def _save(self) -> Response:
        await self.groups.table_file.save()
        return Response()

    def delete(self, request: Request, peer: Peer) -> Answer:
        """Delete a group and, if the request says so, its offsets."""
        deletion = decode_group_deletion(request)
        if self.groups.delete(deletion.group):
            log.info("group deleted group=%s peer=%s", deletion.group, peer.address)
        self.stats.forget_group(deletion.group)
        return OrderedResponse(self._delete(deletion))

    async def _delete(self, deletion: GroupDeletion) -> Response:
        if deletion.with_offsets:
            await self.step_runner.run(self.offsets.delete_group(deletion.group))
        await asyncio.gather(self.groups.table_file.save(), self.offsets.table_file.save())
        return Response()

    def all(self, request: Request, _peer: Peer) -> Answer:
        """Return all groups, or one page of them."""
        query, groups, version = decode_page_query("Group", request), self.groups.all(), self.groups.version
        wire_version = Version.of(version)
        if query is None:
            return self.step_runner.answer(self._all(wire_version))
        page = GroupPage(cut_page(groups, query, wire_version), wire_version, len(groups))
        return encode_group_page(page, self.groups.forbidden())

    def _all(self, wire_version: Version) -> Steps:
        groups, forbidden = self.groups.all(), self.groups.forbidden()
        fields = {"totalGroupNum": str(len(groups))}
        pieces = yield from self.table_cache.find(
            wire_version, lambda: group_table_pieces(entry_pieces(forbidden), entry_pieces(groups), wire_version)
        )
        return make_response(pieces, fields)

    def get(self, request: Request, _peer: Peer) -> Response:
        """Return the settings of one group. As in Java, this may create the group."""
        config = self.groups.find(required_name(request.fields, "group"))
        if config is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")
        return encode_group_config(config)

    def set_read_permission(self, request: Request, peer: Peer) -> Answer:
        """Allow or forbid a group to read a topic, if the request says so; return whether it may."""
        permit = decode_read_permit(request)
        if permit.readable is not None and self.groups.set_forbidden(
            permit.group, permit.topic, forbidden=not permit.readable
        ):
            log.info(
                "read permission set readable=%s group=%s topic=%s peer=%s",
                permit.readable,
                permit.group,
                permit.topic,
                peer.address,
            )
        return self._save_read_permission(permit)

    async def _save_read_permission(self, permit: ReadPermit) -> Response:
        await self.groups.table_file.save()
        readable = not self.groups.is_forbidden(permit.group, permit.topic)
        return encode_read_permit(msgspec.structs.replace(permit, readable=readable))

    def topics_of(self, request: Request, _peer: Peer) -> Answer:
        """Return the topics that a group has offsets for."""
        topics = self.offsets.topics_of(required_name(request.fields, "group"))
        return self.step_runner.answer(write_response(join_parts(topic_list_parts(topics, self.identity.address))))

    # ---------------------------------------------------------------------------------------------------- request modes

    def set_request_mode(self, request: Request, peer: Peer) -> Answer:
        """Set whether members of a group pull or pop the messages of a topic."""
        mode = decode_request_mode(request.body)
        if is_retry_topic(mode.topic):
            raise RefusedError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if self.topics.get(mode.topic) is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist")
        if self.groups.find(mode.group) is None:
            raise RefusedError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        self.request_modes.put(mode)
        log.info("request mode set mode=%s group=%s topic=%s peer=%s", mode.mode, mode.group, mode.topic, peer.address)
        return self._save_request_mode()

    async def _save_request_mode(self) -> Response:
        await self.request_modes.table_file.save()
        return Response()

    def all_request_modes(self, _request: Request, _peer: Peer) -> Answer:
        """Return all request modes, in the form of their file."""
        return self.step_runner.answer(write_response(self.request_modes.pieces()))
