"""Request-reply: open requests of a producer, and the replies that brokers push to it."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from skyroute.client.errors import ClientError, NoRouteError, NotRunningError, RequestTimeoutError
from skyroute.client.producing.delivery import Delivery
from skyroute.client.session.session import Session
from skyroute.message import property_names as names
from skyroute.message.errors import InvalidMessageError
from skyroute.message.host import encode_host
from skyroute.message.message import StoredMessage
from skyroute.message.positions import LogPosition, QueueOffset
from skyroute.message.properties import PAIR_END, find_property, join_properties
from skyroute.message.record import body_crc
from skyroute.message.reserved_topics import DEFAULT_TOPIC, reply_topic
from skyroute.wire.calls.send import PushedReply, decode_pushed_reply
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

REQUESTS_MAX: Final = 10_000
"""Maximum number of open requests of one producer."""


class Replies:
    """The open requests of one producer, by correlation id."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._awaited: dict[str, asyncio.Future[StoredMessage]] = {}
        self.ready: set[str] = set()
        """Reply topics whose brokers got a heartbeat of this client."""

    def start(self) -> None:
        """Handle pushed replies from now on."""
        self._session.requests.add(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._on_reply)

    def stop(self) -> None:
        """Stop handling replies, and fail the open requests."""
        self._session.requests.remove(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._on_reply)
        self.ready.clear()
        for future in self._awaited.values():
            if not future.done():
                future.set_exception(NotRunningError("the producer was stopped before the reply arrived"))

    async def prepare(self, topic: str, delivery: Delivery) -> None:
        """Send heartbeats to every broker that may deliver the reply to a request to `topic`.

        Raises:
            NoRouteError: no broker serves the topic, and none would create it.
        """
        routes = self._session.routes
        await delivery.rotation(topic)
        route = routes.cached(topic) or await routes.find(DEFAULT_TOPIC)
        unknown = {reply_topic(group.cluster) for group in route.groups} - self.ready
        for replies in unknown:
            try:
                await routes.find(replies)
            except NoRouteError as error:
                log.info("reply topic not found topic=%s reason=%s", replies, error)
        if unknown:
            await self._session.heartbeats.send()
            self.ready |= unknown

    @contextmanager
    def expect(self) -> "Iterator[tuple[str, Callable[[float], Awaitable[StoredMessage]]]]":
        """Open a request: yields its correlation id, and a function to await the reply.

        Raises:
            ClientError: too many requests are open.
        """
        if len(self._awaited) >= REQUESTS_MAX:
            raise ClientError(f"{REQUESTS_MAX} requests wait for a reply, the maximum: await some of them first")
        correlation_id = str(uuid.uuid4())
        future: asyncio.Future[StoredMessage] = asyncio.get_running_loop().create_future()
        self._awaited[correlation_id] = future

        async def arrival(timeout_s: float) -> StoredMessage:
            try:
                async with asyncio.timeout(max(0.0, timeout_s)):
                    return await future
            except TimeoutError:
                raise RequestTimeoutError(
                    "the request was sent, and no reply came in time: does a consumer of the topic call `reply`?"
                ) from None

        try:
            yield correlation_id, arrival
        finally:
            del self._awaited[correlation_id]
            if future.done() and not future.cancelled():
                future.exception()  # marks it as retrieved, in case the send failed

    async def _on_reply(self, request: Request, address: str) -> Response | None:
        reply = decode_pushed_reply(request)
        correlation_id = find_property(reply.properties.encode(), names.CORRELATION_ID)
        if correlation_id is None:
            raise InvalidMessageError("the reply has no correlation id: expected the one of a request")
        future = self._awaited.get(correlation_id)
        if future is None:
            return None
        if not future.done():
            future.set_result(_stored(reply, arrived_at_ms=int(self._session.clock.wall() * 1000)))
        return Response()


def _stored(reply: PushedReply, *, arrived_at_ms: int) -> StoredMessage:
    arrival = join_properties({names.REPLY_ARRIVE_TIME: str(arrived_at_ms)})
    return StoredMessage(
        topic=reply.topic,
        queue_id=reply.queue_id,
        queue_offset=QueueOffset(0),
        log_position=LogPosition(0),
        stored_body=reply.body,
        raw_properties=f"{reply.properties}{PAIR_END}{arrival}".encode(),
        sys_flag=reply.sys_flag,
        flag=reply.flag,
        born_at_ms=reply.born_at_ms,
        raw_born_host=_host(reply.born_host),
        stored_at_ms=reply.stored_at_ms,
        raw_store_host=_host(reply.store_host),
        reconsume_times=0,
        prepared_position=LogPosition(0),
        body_crc=body_crc(reply.body),
        record_bytes=0,
    )


def _host(text: str) -> bytes:
    ip, _, port = text.lstrip("/").rpartition(":")
    return encode_host(ip.strip("[]"), int(port) if port.isdecimal() else 0)


def reply_properties(request: StoredMessage) -> tuple[str, dict[str, str]]:
    """Return the cluster of a request, and the properties that route the reply to the requester.

    Raises:
        InvalidMessageError: the message is not a request.
    """
    cluster = request.find_property(names.CLUSTER)
    correlation_id = request.find_property(names.CORRELATION_ID)
    client_id = request.find_property(names.REPLY_TO_CLIENT)
    if not cluster or not correlation_id or not client_id:
        raise InvalidMessageError("the message wants no reply: expected one that was sent with `request`")
    properties = {
        names.MESSAGE_TYPE: "reply",
        names.CORRELATION_ID: correlation_id,
        names.REPLY_TO_CLIENT: client_id,
    }
    if (ttl := request.find_property(names.TTL)) is not None:
        properties[names.TTL] = ttl
    return cluster, properties
