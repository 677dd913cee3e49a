"""What tools ask of consumers: a broker has the connection, so it passes the question on."""

import asyncio
from dataclasses import dataclass
from typing import Final

from skyroute.broker.clients.client_groups import GroupMember
from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.identity import Identity
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.topics import Topics
from skyroute.errors import SkyrouteError
from skyroute.message.errors import MessageIdError
from skyroute.message.message_id import decode_offset_id
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.dispatch import Answer, Peer
from skyroute.remoting.errors import CallTimeoutError, RefusedError, RemotingError
from skyroute.wire.calls.consumers import (
    OffsetsQuery,
    decode_consumer_offsets,
    decode_direct_consumption,
    decode_offsets_query,
    decode_running_query,
    encode_offsets_query,
)
from skyroute.wire.calls.groups import release_name
from skyroute.wire.calls.query import encode_group_offsets
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

ANSWER_S: Final = 10.0
OFFSETS_ANSWER_S: Final = 5.0
"""How long a consumer may take to answer; as Apache's brokers have it, since tools wait accordingly."""
ASKED_AT_ONCE: Final = 200
"""So many members of a group are asked at the same time."""
_V3_0_7_SNAPSHOT: Final = 28
_V3_1_8_SNAPSHOT: Final = 62


@dataclass(frozen=True, slots=True)
class ForwardingHandlers:
    """Questions to one consumer, or to all of a group."""

    clients: ConnectedClients
    store: MessageStore
    topics: Topics
    groups: Groups
    identity: Identity

    def running(self, request: Request, _peer: Peer) -> Answer:
        """Have a consumer tell what it is doing."""
        query = decode_running_query(request)
        return self._pass_on(request, query.group, query.client_id, dict(request.fields), b"")

    def consume(self, request: Request, _peer: Peer) -> Answer:
        """Have a consumer handle one message now, whatever its offsets say."""
        wanted = decode_direct_consumption(request)
        fields = {**request.fields, "brokerName": self.identity.name}
        topic = None if wanted.topic is None else self.topics.get(wanted.topic)
        if topic is not None:
            fields["topicSysFlag"] = str(topic.sys_flag)
        group = self.groups.get(wanted.group)
        if group is not None:
            fields["groupSysFlag"] = str(group.sys_flag)
        record = self._record(wanted.message_id or "")
        return self._pass_on(request, wanted.group, wanted.client_id or "", fields, record)

    def _record(self, message_id: str) -> bytes:
        try:
            position = decode_offset_id(message_id).log_position
        except MessageIdError as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        record = self.store.record_at(position)
        if record is None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"there is no message {message_id}")
        return record

    def _pass_on(self, request: Request, group: str, client_id: str, fields: dict[str, str], body: bytes) -> Answer:
        known = self.clients.consumers(group)
        member = None if known is None else known.find(client_id)
        if member is None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"The Consumer <{group}> <{client_id}> not online")
        if member.version < _V3_1_8_SNAPSHOT:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{client_id}> Version <{release_name(member.version)}> too low to finish, "
                "please upgrade it to V3_1_8_SNAPSHOT",
            )
        return _relay(member, group, Request(request.code, fields, body=body))

    def offsets(self, request: Request, _peer: Peer) -> Answer:
        """Have the members of a group tell how far they have got with a topic."""
        query = decode_offsets_query(request)
        known = self.clients.consumers(query.group)
        if known is None:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{query.group}]"
            )
        for member in known.members:
            if member.version < _V3_0_7_SNAPSHOT:
                raise RefusedError(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={release_name(member.version)}",
                )
        # It is called an address, and is a client's id.
        asked = [member for member in known.members if query.client_address in (None, member.client_id)]
        return _gather(asked, OffsetsQuery(query.topic, query.group))


async def _relay(member: GroupMember, group: str, request: Request) -> Response:
    try:
        answer = await member.peer.call(request, ANSWER_S)
    except CallTimeoutError as error:
        raise RefusedError(
            ResponseCode.CONSUME_MSG_TIMEOUT, f"consumer <{group}> <{member.client_id}> Timeout: {error}"
        ) from None
    except RemotingError as error:
        raise RefusedError(
            ResponseCode.SYSTEM_ERROR, f"invoke consumer <{group}> <{member.client_id}> Exception: {error}"
        ) from None
    return Response(answer.code, answer.remark, answer.fields, answer.body)


async def _gather(members: list[GroupMember], query: OffsetsQuery) -> Response:
    """Ask all, and tell what those say who answer."""
    found: dict[str, dict[QueueRef, int]] = {}

    async def ask(member: GroupMember) -> None:
        try:
            answer = await member.peer.call(encode_offsets_query(query), OFFSETS_ANSWER_S)
            if answer.code == ResponseCode.SUCCESS and answer.body:
                found[member.client_id] = decode_consumer_offsets(answer.body)
        except SkyrouteError:
            return  # who does not answer, or not so that it can be read, is left out

    for start in range(0, len(members), ASKED_AT_ONCE):
        await asyncio.gather(*map(ask, members[start : start + ASKED_AT_ONCE]))
    return encode_group_offsets(found)
