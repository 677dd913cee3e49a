"""Reply messages: forwards each to the client that sent the request message."""

import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

import msgspec

from skyroute.access.resources import Action
from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.config import BrokerConfig
from skyroute.broker.handlers.access_checks import RequireTopic
from skyroute.broker.handlers.send import check_queue, check_send
from skyroute.broker.identity import Identity
from skyroute.broker.tables.topics import Topics
from skyroute.clock import Clock
from skyroute.errors import SkyrouteError
from skyroute.message.host import decode_host
from skyroute.message.properties import PAIR_END, split_properties
from skyroute.message.property_names import PUSH_REPLY_TIME, REPLY_TO_CLIENT
from skyroute.message.reserved_topics import reply_topic
from skyroute.remoting.dispatch import DeferredResponse, Handler, OrderedResponse, Peer, wait_for_response
from skyroute.remoting.errors import RefusedError, RemotingError
from skyroute.wire.calls.send import (
    SENT_CODES,
    Sending,
    SendReceipt,
    decode_send,
    encode_pushed_reply,
    encode_send_receipt,
    region_fields,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

PUSH_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class ReplyHandlers:
    """Forwards reply messages, and stores them if `storeReplyMessageEnable` is set."""

    clients: ConnectedClients
    topics: Topics
    store: Handler
    """The handler of sends."""
    identity: Identity
    config: BrokerConfig
    clock: Clock
    require: RequireTopic | None = None

    def reply(self, request: Request, peer: Peer) -> Awaitable[Response]:
        """Forward a reply message; respond when the requesting client has confirmed it."""
        sending = decode_send(request)
        if self.require is not None:
            # A reply goes to any client that it names, so a right to some other topic is not enough.
            self.require(reply_topic(self.identity.cluster), Action.PUB, peer)
        return self._reply(sending, request, peer)

    async def _reply(self, sending: Sending, request: Request, peer: Peer) -> Response:
        fields = region_fields(self.config.region_id, trace_on=self.config.trace_on)
        try:
            self._check(sending, peer)
        except RefusedError as error:
            raise RefusedError(error.code, str(error), fields) from None
        failure = await self._push(sending, request.body, peer)
        stored = await self._store(request, peer) if self.config.store_replies else None
        if failure is not None:
            return Response(ResponseCode.SYSTEM_ERROR, failure, fields)
        if stored is not None:
            return msgspec.structs.replace(stored, code=int(ResponseCode.SUCCESS))
        receipt = SendReceipt(
            "0", max(sending.queue_id, 0), 0, region=self.config.region_id, trace_on=self.config.trace_on
        )
        return encode_send_receipt(receipt)

    def _check(self, sending: Sending, peer: Peer) -> None:
        """Refuse a reply that a send would refuse, before it is forwarded."""
        topic = self.topics.get(sending.topic)
        check_send(sending, topic, self.config, self.identity, self.clock)
        if topic is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{sending.topic}] not exist")
        check_queue(sending.queue_id, topic, peer)

    async def _push(self, sending: Sending, body: bytes, peer: Peer) -> str | None:
        """Send a reply message to the requesting client; return the reason if that fails."""
        client_id = split_properties(sending.properties).get(REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        client = self.clients.producer_of(client_id)
        if client is None:
            return f"push reply message fail, channel of <{client_id}> not found."
        now_ms = int(self.clock.wall() * 1000)
        pushed = encode_pushed_reply(
            sending,
            body,
            f"{sending.properties.removesuffix(PAIR_END)}{PAIR_END}{PUSH_REPLY_TIME}\x01{now_ms}{PAIR_END}",
            stored_at_ms=now_ms,
            born_host=peer.address,
            store_host=str(decode_host(self.identity.raw_store_host)),
        )
        try:
            response = await client.call(pushed, PUSH_TIMEOUT_S)
        except RemotingError as error:
            reason = str(error)
        else:
            if response.code == ResponseCode.SUCCESS:
                return None
            reason = f"its response was {response.code}: {response.remark}"
        return f"push reply message to {client_id} fail. {reason}"

    async def _store(self, request: Request, peer: Peer) -> Response | None:
        """Store a reply message; return None if that fails, which does not fail the reply."""
        try:
            answer = self.store(request, peer)
            if isinstance(answer, OrderedResponse):
                response = await answer.work
            else:
                response = (
                    await wait_for_response(answer) if isinstance(answer, Response | DeferredResponse) else await answer
                )
        except SkyrouteError as error:
            if peer.count_refusal():
                log.warning("reply message not stored peer=%s reason=%s", peer.address, error)
            return None
        return response if response.code in SENT_CODES else None
