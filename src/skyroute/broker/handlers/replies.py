"""Passing replies on to those who asked."""

import logging
from dataclasses import dataclass
from typing import Final

import msgspec

from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.config import BrokerConfig
from skyroute.broker.handlers.send import check_queue, check_send
from skyroute.broker.identity import Identity
from skyroute.broker.tables.topics import Topics
from skyroute.clock import Clock
from skyroute.errors import SkyrouteError
from skyroute.message.host import decode_host
from skyroute.message.properties import PAIR_END, split_properties
from skyroute.message.property_names import PUSH_REPLY_TIME, REPLY_TO_CLIENT
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
    """Replies are messages: they go to the one who waits, and, if the settings say so, into the store."""

    clients: ConnectedClients
    topics: Topics
    store: Handler
    """Stores a message as any other."""
    identity: Identity
    config: BrokerConfig
    clock: Clock

    async def reply(self, request: Request, peer: Peer) -> Response:
        """Pass a reply on, and answer when it has arrived."""
        sending = decode_send(request)
        more = region_fields(self.config.region_id, trace_on=self.config.trace_on)
        try:
            self._check(sending, peer)
        except RefusedError as error:
            raise RefusedError(error.code, str(error), more) from None
        trouble = await self._push(sending, request.body, peer)
        stored = await self._store(request, peer) if self.config.store_replies else None
        if trouble is not None:
            return Response(ResponseCode.SYSTEM_ERROR, trouble, more)
        if stored is not None:
            return msgspec.structs.replace(stored, code=int(ResponseCode.SUCCESS))
        receipt = SendReceipt(
            "0", max(sending.queue_id, 0), 0, region=self.config.region_id, trace_on=self.config.trace_on
        )
        return encode_send_receipt(receipt)

    def _check(self, sending: Sending, peer: Peer) -> None:
        """Refuse what could not be sent either, before anybody hears of it."""
        topic = self.topics.get(sending.topic)
        check_send(sending, topic, self.config, self.identity, self.clock)
        if topic is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{sending.topic}] not exist")
        check_queue(sending.queue_id, topic, peer)

    async def _push(self, sending: Sending, body: bytes, peer: Peer) -> str | None:
        """Give a reply to the one who waits for it; return why not, if that fails."""
        client_id = split_properties(sending.properties).get(REPLY_TO_CLIENT)
        if client_id is None:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        asker = self.clients.producer_of(client_id)
        if asker is None:
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
            answer = await asker.call(pushed, PUSH_TIMEOUT_S)
        except RemotingError as error:
            reason = str(error)
        else:
            if answer.code == ResponseCode.SUCCESS:
                return None
            reason = f"it answered {answer.code}: {answer.remark}"
        return f"push reply message to {client_id} fail. {reason}"

    async def _store(self, request: Request, peer: Peer) -> Response | None:
        """Store a reply; None where that fails, which does not matter to the two who talk."""
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
                log.warning("reply not stored peer=%s reason=%s", peer.address, error)
            return None
        return response if response.code in SENT_CODES else None
