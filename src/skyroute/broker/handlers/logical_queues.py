"""Requests for logical queues of static topics, translated to requests for physical queues, here or on other brokers.

The other handlers know physical queues only. `LogicalQueues.wrap` puts a translation before those whose requests name
a queue; for all other topics it costs one look into an empty table.
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from skyroute.broker.cluster.peer_brokers import PeerBrokers
from skyroute.broker.tables.queue_mappings import QueueMappings
from skyroute.message.property_names import TRANSACTION_PREPARED
from skyroute.remoting.dispatch import Answer, DeferredResponse, Handler, OrderedResponse, Peer, wait_for_response
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.offsets import (
    decode_offset,
    decode_offset_query,
    decode_offset_update,
    decode_queue,
    decode_time_search,
    decode_timestamp,
    encode_offset,
    encode_timestamp,
)
from skyroute.wire.calls.pull import PullPosition, decode_pull, move_pull, physical_pull, pull_position
from skyroute.wire.calls.send import SENT_CODES, SendRequest, decode_send
from skyroute.wire.calls.static_topics import Items, MappingItem, QueueMapping, find_item, next_item
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import FORM_BINARY, Request, Response
from skyroute.wire.fields import required_int
from skyroute.wire.signature import ACCESS_FIELDS

Change = Callable[[Response], Response]

_HALF_MARK: Final = f"{TRANSACTION_PREPARED}\x01true"
_MAX_OFFSET: Final = (1 << 63) - 1


class LogicalQueues:
    """Translates requests for logical queues.

    A queue that another broker leads is refused with NOT_LEADER_FOR_QUEUE: the client reads the route again.
    """

    def __init__(self, mappings: QueueMappings, peers: PeerBrokers, broker_name: str) -> None:
        self._mappings = mappings.all()
        """A live view, whose truth value costs no call."""
        self._peers = peers
        self._broker_name = broker_name
        self._inner: Mapping[int, Handler] = {}

    def wrap(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the handlers, with the translation before those whose requests name a queue."""
        self._inner = dict(handlers)
        code = RequestCode
        sends = dict.fromkeys((code.SEND_MESSAGE, code.SEND_MESSAGE_V2, code.SEND_BATCH_MESSAGE), self._send)
        pulls = dict.fromkeys((code.PULL_MESSAGE, code.LITE_PULL_MESSAGE), self._pull)
        offsets: dict[int, Callable[[Request, Peer, QueueMapping], Answer]] = {
            code.QUERY_CONSUMER_OFFSET: self._query_offset,
            code.UPDATE_CONSUMER_OFFSET: self._update_offset,
            code.GET_MAX_OFFSET: self._max_offset,
            code.GET_MIN_OFFSET: self._min_offset,
            code.GET_EARLIEST_MSG_STORETIME: self._earliest_time,
            code.SEARCH_OFFSET_BY_TIMESTAMP: self._offset_at_time,
        }
        translated: dict[int, Handler] = {
            number: self._if_any(handlers[number], partial(each, handlers[number])) for number, each in sends.items()
        }
        translated |= {
            number: self._if_any(handlers[number], partial(self._if_logical, handlers[number], each))
            for number, each in (pulls | offsets).items()
        }
        return {**handlers, **translated}

    def _if_any(self, inner: Handler, translated: Handler) -> Handler:
        """Return a handler that translates if there are static topics at all."""
        mappings = self._mappings

        def handle(request: Request, peer: Peer) -> Answer:
            return translated(request, peer) if mappings else inner(request, peer)

        return handle

    def _if_logical(
        self,
        inner: Handler,
        translated: Callable[[Request, Peer, QueueMapping], Answer],
        request: Request,
        peer: Peer,
    ) -> Answer:
        mapping = self._mappings.get(request.fields.get("topic", ""))
        # `lo` is false in requests that another broker has translated.
        if mapping is None or request.fields.get("lo", "").lower() == "false":
            return inner(request, peer)
        return translated(request, peer, mapping)

    def _led_items(self, mapping: QueueMapping, queue_id: int) -> Items:
        items = mapping.led_items(queue_id)
        if not items:
            raise RefusedError(
                ResponseCode.NOT_LEADER_FOR_QUEUE,
                f"{mapping.topic}-{queue_id} is not led by broker {self._broker_name}: read the route again",
            )
        return items

    # Sends

    def _send(self, inner: Handler, request: Request, peer: Peer) -> Answer:
        sending = decode_send(request)
        mapping = self._mappings.get(sending.topic)
        if mapping is None:
            return inner(request, peer)
        queue_id = sending.queue_id
        if queue_id < 0:
            led = [each for each in mapping.hosted if mapping.led_items(each)]
            queue_id = random.choice(led) if led else queue_id
        item = self._led_items(mapping, queue_id)[-1]
        physical = SendRequest(
            code=request.code,
            fields=msgspec.structs.replace(sending, queue_id=item.queue_id),
            flag=request.flag,
            language=request.language,
            request_id=request.request_id,
            version=request.version,
            body=request.body,
            form=FORM_BINARY,  # so that the receipt is not encoded yet
        )
        # The offset of a half message is that in the half topic, and ends its transaction.
        is_half = _HALF_MARK in sending.properties
        return _change(inner(physical, peer), partial(_logical_receipt, item, queue_id, is_half=is_half))

    # Pulls

    def _pull(self, request: Request, peer: Peer, mapping: QueueMapping) -> Answer:
        question = decode_pull(request)
        items = self._led_items(mapping, question.queue_id)
        item = find_item(items, question.offset)
        if item is None:
            raise _not_readable(mapping, question.queue_id)
        commit = question.commit_offset
        physical = physical_pull(
            request,
            item.queue_id,
            item.to_physical(question.offset),
            # An offset of another item is committed by the client's own request.
            None if commit is None or find_item(items, commit) is not item else item.to_physical(commit),
            # A moved queue gets no more messages: say at once where to go on.
            suspend=item is items[-1],
        )
        change = partial(_logical_pull, items, item, item.to_physical(question.offset))
        if item.broker_name == self._broker_name:
            return _change(self._inner[request.code](physical, peer), change)
        return _changed(self._forward(item, physical), change)

    async def _forward(self, item: MappingItem, request: Request) -> Response:
        """Send a translated request to the broker of an item."""
        fields = {name: value for name, value in request.fields.items() if name not in ACCESS_FIELDS}
        fields |= {"lo": "false", "bname": item.broker_name}
        response = await self._peers.call(item.broker_name, Request(request.code, fields, body=request.body))
        return Response(response.code, response.remark, response.fields, response.body)

    # Offsets

    async def _ask(self, item: MappingItem, request: Request, peer: Peer, **changed: str) -> Response:
        """Process a request for the physical queue of an item, here or on its broker."""
        fields = request.fields | {"queueId": str(item.queue_id)} | changed
        physical = Request(request.code, fields, language=request.language, version=request.version)
        if item.broker_name != self._broker_name:
            return await self._forward(item, physical)
        answer = self._inner[request.code](physical, peer)
        assert isinstance(answer, Response | DeferredResponse)  # handlers of offsets do not wait
        return await wait_for_response(answer)

    async def _query_offset(self, request: Request, peer: Peer, mapping: QueueMapping) -> Response:
        items = self._led_items(mapping, decode_offset_query(request).queue.queue_id)
        if len(items) == 1 and items[0].logical_start == 0:
            return await self._ask(items[0], request, peer)
        for item in reversed(items):  # the group may not have committed an offset since the queue moved
            if not item.is_decided:
                continue
            response = await self._ask(item, request, peer, setZeroIfNotFound="false")
            if response.code == ResponseCode.SUCCESS:
                return encode_offset(item.to_logical(decode_offset(response)))
            if response.code != ResponseCode.QUERY_NOT_FOUND:
                return response
        return Response(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")

    async def _update_offset(self, request: Request, peer: Peer, mapping: QueueMapping) -> Response:
        update = decode_offset_update(request)
        item = find_item(self._led_items(mapping, update.queue.queue_id), update.offset)
        if item is None:
            raise _not_readable(mapping, update.queue.queue_id)
        return await self._ask(item, request, peer, commitOffset=str(item.to_physical(update.offset)))

    async def _max_offset(self, request: Request, peer: Peer, mapping: QueueMapping) -> Response:
        item = self._item_at(request, mapping, _MAX_OFFSET)
        return _logical_offset(item, await self._ask(item, request, peer))

    async def _min_offset(self, request: Request, peer: Peer, mapping: QueueMapping) -> Response:
        item = self._item_at(request, mapping, 0)
        return _logical_offset(item, await self._ask(item, request, peer))

    async def _earliest_time(self, request: Request, peer: Peer, mapping: QueueMapping) -> Response:
        response = Response()
        for item in self._decided_items(request, mapping):
            response = await self._ask(item, request, peer)
            if response.code != ResponseCode.SUCCESS or decode_timestamp(response) >= 0:
                return response
        return encode_timestamp(-1) if response.code == ResponseCode.SUCCESS else response

    async def _offset_at_time(self, request: Request, peer: Peer, mapping: QueueMapping) -> Response:
        search = decode_time_search(request)
        items = self._decided_items(request, mapping)
        if search.upper:  # the last item with a message that is old enough
            for item in reversed(items[1:]):
                code = RequestCode.GET_EARLIEST_MSG_STORETIME
                earliest = await self._ask(item, msgspec.structs.replace(request, code=code), peer)
                if 0 <= decode_timestamp(earliest) <= search.timestamp_ms:
                    return _logical_offset(item, await self._ask(item, request, peer))
            return _logical_offset(items[0], await self._ask(items[0], request, peer))
        for item in items[:-1]:  # the first item with a message that is new enough
            found = await self._ask(item, request, peer)
            end = await self._ask(item, msgspec.structs.replace(request, code=RequestCode.GET_MAX_OFFSET), peer)
            if found.code != ResponseCode.SUCCESS or decode_offset(found) < decode_offset(end):
                return _logical_offset(item, found)
        return _logical_offset(items[-1], await self._ask(items[-1], request, peer))

    def _decided_items(self, request: Request, mapping: QueueMapping) -> Items:
        queue_id = decode_queue(request).queue_id
        items = tuple(item for item in self._led_items(mapping, queue_id) if item.is_decided)
        if not items:
            raise _not_readable(mapping, queue_id)
        return items

    def _item_at(self, request: Request, mapping: QueueMapping, logical: int) -> MappingItem:
        items = self._decided_items(request, mapping)
        found = find_item(items, logical)
        return items[0] if found is None else found


def _not_readable(mapping: QueueMapping, queue_id: int) -> RefusedError:
    return RefusedError(
        ResponseCode.SYSTEM_ERROR, f"{mapping.topic}-{queue_id} has no logical offset yet: finish remappingStaticTopic"
    )


def _change(answer: Answer, change: Change) -> Answer:
    """Return an answer whose response is changed before it is sent."""
    if isinstance(answer, Response):
        return change(answer)
    if isinstance(answer, DeferredResponse):
        later = DeferredResponse()
        answer.then(lambda response: later.give(change(response)))
        return later
    if isinstance(answer, OrderedResponse):
        return OrderedResponse(_changed(answer.work, change))
    return _changed(answer, change)


async def _changed(answer: Awaitable[Response], change: Change) -> Response:
    return change(await answer)


def _logical_receipt(item: MappingItem, queue_id: int, response: Response, *, is_half: bool) -> Response:
    """Translate the receipt of a send. A message of a queue that is moving has no logical offset yet."""
    if response.code not in SENT_CODES or response.fields is None:
        return response
    offset = required_int(response.fields, "queueOffset")
    if not is_half:
        offset = item.to_logical(offset) if item.is_decided else -1
    fields = response.fields | {"queueId": str(queue_id), "queueOffset": str(offset)}
    return msgspec.structs.replace(response, fields=fields)


def _logical_offset(item: MappingItem, response: Response) -> Response:
    if response.code != ResponseCode.SUCCESS:
        return response
    return encode_offset(item.to_logical(decode_offset(response)))


def _logical_pull(items: Items, item: MappingItem, asked: int, response: Response) -> Response:
    """Translate the response to a pull; at the end of an item, it says to go on with the next one."""
    found = pull_position(response)
    if found is None:
        return response
    status, moved = found.code, found
    if status != ResponseCode.SUCCESS:
        is_first, is_last = item is next(each for each in items if each.is_decided), item is items[-1]
        if asked < found.min_offset:
            # Messages between two items were deleted: nothing is lost that a consumer could still read.
            status = ResponseCode.PULL_OFFSET_MOVED if is_first else ResponseCode.PULL_RETRY_IMMEDIATELY
            moved = found._replace(next_offset=found.min_offset)
        elif asked >= found.max_offset and not is_last:
            follower = next_item(items, item)
            if follower is None:  # the queue is moving
                status = ResponseCode.PULL_NOT_FOUND
            else:
                status, item = ResponseCode.PULL_RETRY_IMMEDIATELY, follower
                moved = PullPosition(status, follower.start, follower.start, follower.start)
    next_offset = moved.next_offset
    if item.end > item.start:
        next_offset = min(next_offset, item.end)
    logical = PullPosition(
        status,
        item.to_logical(next_offset),
        item.to_logical(moved.min_offset),
        max(item.to_logical(moved.max_offset), items[-1].logical_end),
    )
    return move_pull(response, logical, item.delta)
