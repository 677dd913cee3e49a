"""Requests of tools to consumers. The broker has the connections, so it forwards them."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from skyroute.access.resources import Action
from skyroute.broker.clients.client_groups import GroupMember
from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.handlers.access_checks import RequireTopic, require_message
from skyroute.broker.handlers.stepwise_responses import join_parts, write_response
from skyroute.broker.identity import Identity
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.topics import Topics
from skyroute.message.errors import MessageIdError
from skyroute.message.message_id import decode_offset_id
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.errors import CallTimeoutError, RefusedError, RemotingError
from skyroute.remoting.stepwise import StepRunner, Steps
from skyroute.wire.calls.consumers import (
    OffsetsQuery,
    decode_consumer_offsets,
    decode_direct_consumption,
    decode_offsets_query,
    decode_running_query,
    encode_offsets_query,
)
from skyroute.wire.calls.groups import release_name
from skyroute.wire.calls.query import group_offsets_parts
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import BodyError
from skyroute.wire.signature import ACCESS_FIELDS

CALL_TIMEOUT_S: Final = 10.0
OFFSETS_TIMEOUT_S: Final = 5.0
"""Time limits of a forwarded request, as in Apache's brokers: the timeouts of tools fit them."""
CONCURRENT_CALLS_MAX: Final = 200
"""Maximum number of members of a group that are called at the same time."""
OFFSETS_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum size of the offsets of all members together. Tools refuse frames above 16 MiB."""
_V3_0_7_SNAPSHOT: Final = 28
_V3_1_8_SNAPSHOT: Final = 62


@dataclass(frozen=True, slots=True)
class ForwardingHandlers:
    """Forwards requests to one consumer, or to all consumers of a group."""

    clients: ConnectedClients
    store: MessageStore
    topics: Topics
    groups: Groups
    identity: Identity
    step_runner: StepRunner
    require: RequireTopic | None = None

    def running_info(self, request: Request, _peer: Peer) -> Answer:
        """Return the running info of a consumer: its settings, queues, rates and threads."""
        query = decode_running_query(request)
        return self._forward(request, query.group, query.client_id, _without_keys(request.fields), b"")

    def consume_directly(self, request: Request, peer: Peer) -> Answer:
        """Make a consumer consume one message now, regardless of its offsets."""
        order = decode_direct_consumption(request)
        fields = _without_keys(request.fields) | {"brokerName": self.identity.name}
        topic = None if order.topic is None else self.topics.get(order.topic)
        if topic is not None:
            fields["topicSysFlag"] = str(topic.sys_flag)
        group = self.groups.get(order.group)
        if group is not None:
            fields["groupSysFlag"] = str(group.sys_flag)
        message_id = order.message_id or ""
        try:
            position = decode_offset_id(message_id).log_position
        except MessageIdError as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        message, record = self.store.message_at(position), self.store.record_at(position)
        if message is None or record is None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"message {message_id} not found")
        if self.require is not None:
            require_message(self.require, message, Action.SUB, peer)
        return self._forward(request, order.group, order.client_id or "", fields, record)

    def _forward(self, request: Request, group: str, client_id: str, fields: dict[str, str], body: bytes) -> Answer:
        consumers = self.clients.consumers(group)
        member = None if consumers is None else consumers.find(client_id)
        if member is None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if member.version < _V3_1_8_SNAPSHOT:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{release_name(member.version)}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        return _call(member, group, Request(request.code, fields, body=body))

    def consumer_offsets(self, request: Request, _peer: Peer) -> Answer:
        """Return the offsets of a topic that each member of a group holds in memory."""
        query = decode_offsets_query(request)
        consumers = self.clients.consumers(query.group)
        if consumers is None:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{query.group}]"
            )
        for member in consumers.members:
            if member.version < _V3_0_7_SNAPSHOT:
                raise RefusedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={release_name(member.version)}",
                )
        # The field is called an address; tools send a client id.
        members = [member for member in consumers.members if query.client_address in (None, member.client_id)]
        return OrderedResponse(self._offsets_of(members, OffsetsQuery(query.topic, query.group)))

    async def _offsets_of(self, members: list[GroupMember], query: OffsetsQuery) -> Response:
        bodies = await _gather_offsets(members, query)
        return await self.step_runner.run(_write_offsets(bodies))


def _without_keys(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a request without those that prove who sent it: they are not for the consumer."""
    return {name: value for name, value in fields.items() if name not in ACCESS_FIELDS}


async def _call(member: GroupMember, group: str, request: Request) -> Response:
    try:
        response = await member.peer.call(request, CALL_TIMEOUT_S)
    except CallTimeoutError as error:
        raise RefusedError(
            ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{member.client_id}> Timeout: {error}"
        ) from None
    except RemotingError as error:
        raise RefusedError(
            ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{member.client_id}> Exception: {error}"
        ) from None
    return Response(response.code, response.remark, response.fields, response.body)


async def _gather_offsets(members: list[GroupMember], query: OffsetsQuery) -> dict[str, bytes]:
    """Request the offsets of all members; return the bodies by client id, without members that do not respond.

    Raises:
        RefusedError: they are too long.
    """
    bodies: dict[str, bytes] = {}
    size = 0

    async def call(member: GroupMember) -> None:
        nonlocal size
        with suppress(RemotingError):
            response = await member.peer.call(encode_offsets_query(query), OFFSETS_TIMEOUT_S)
            size += len(response.body)
            if response.code == ResponseCode.SUCCESS and size <= OFFSETS_BYTES_MAX:
                bodies[member.client_id] = response.body

    for start in range(0, len(members), CONCURRENT_CALLS_MAX):
        await asyncio.gather(*map(call, members[start : start + CONCURRENT_CALLS_MAX]))
        if size > OFFSETS_BYTES_MAX:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"the offsets of group {query.group} have more than {OFFSETS_BYTES_MAX} bytes: request those of one "
                "member (clientAddr)",
            )
    return bodies


def _write_offsets(bodies: Mapping[str, bytes]) -> Steps:
    """Decode and write the offsets of members; those whose offsets are invalid are left out."""
    found: dict[str, dict[QueueRef, int]] = {}
    for client_id, body in bodies.items():
        with suppress(BodyError):
            found[client_id] = yield from decode_consumer_offsets(body)
    return (yield from write_response(join_parts(group_offsets_parts(found.items()))))
