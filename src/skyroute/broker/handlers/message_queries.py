"""Queries for messages: by key, by log position, by queue offset."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from skyroute.access.resources import Action
from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.filters import Filter
from skyroute.broker.handlers.access_checks import RequireTopic, SharedRetryTopics, require_message
from skyroute.broker.pop.pop_subscriptions import PopSubscriptions
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.topics import Topics
from skyroute.message.message import StoredMessage
from skyroute.message.properties import find_property
from skyroute.message.property_names import KEY_SEPARATOR, KEYS, UNIQUE_ID
from skyroute.message.record import decode_record
from skyroute.remoting.dispatch import Answer, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import StepRunner, Steps
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.query import (
    KeyQuery,
    QueueUnit,
    decode_key_query,
    decode_units_query,
    decode_view,
    encode_key_matches,
    encode_units,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

FOUND_BYTES_MAX: Final = 8 * 1024 * 1024
"""Maximum size of the records in a response; a single record may be larger. Clients accept frames of 16 MiB."""
INDEX_WAIT_S: Final = 1.0
"""Maximum wait for the process that writes the index; then the search uses what it has written."""
RECORD_BYTES_A_STEP: Final = 4 * 1024 * 1024
"""Bytes of records read in one step."""
UNITS_MAX: Final = 1024
"""Maximum number of consume queue units in a response."""


@dataclass(frozen=True, slots=True)
class MessageQueryHandlers:
    """Handles queries of tools and of clients for stored messages."""

    store: MessageStore
    topics: Topics
    clients: ConnectedClients
    pop_subscriptions: PopSubscriptions
    config: BrokerConfig
    step_runner: StepRunner
    monotonic: Callable[[], float]
    require: RequireTopic | None = None
    shared_retries: SharedRetryTopics | None = None

    def by_key(self, request: Request, peer: Peer) -> Answer:
        """Return messages by key, or by the unique id of their producer."""
        query = decode_key_query(request)
        hide = None if self.shared_retries is None else self.shared_retries.hider(query.topic, peer)
        return self.step_runner.answer(self._by_key(query, None if hide is None else hide(Filter()).accept_record))

    def _by_key(self, query: KeyQuery, is_readable: Callable[[bytes], bool] | None) -> Steps:
        count_max = self.config.query_messages_max if query.unique else query.count_max
        deadline = self.monotonic() + INDEX_WAIT_S
        found = yield from self.store.search_by_key(
            *(query.topic, query.key, count_max, query.begin_ms, query.end_ms, lambda: self.monotonic() < deadline)
        )
        records: list[bytes] = []
        read_bytes = 0
        room = FOUND_BYTES_MAX
        for position in found.positions:
            record = self.store.record_at(position)
            read_bytes += len(record or b"")
            if read_bytes >= RECORD_BYTES_A_STEP:
                read_bytes = 0
                yield
            # The index holds hashes only, and different keys may have equal ones.
            if record is None or not _has_key(decode_record(record), query.topic, query.key):
                continue
            if is_readable is not None and not is_readable(record):
                continue
            room -= len(record)
            if room < 0 and records:
                break
            records.append(record)
        return encode_key_matches(
            b"".join(records), last_stored_at_ms=found.last_stored_at_ms, last_position=found.last_position
        )

    def at_position(self, request: Request, peer: Peer) -> Response:
        """Return the message at a log position."""
        position = decode_view(request)
        record = self.store.record_at(position)
        if record is not None and self.require is not None:
            message = self.store.message_at(position)
            if message is None:
                record = None
            else:
                require_message(self.require, message, Action.GET, peer)
        if record is None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {position}")
        return Response(body=record)

    def queue_units(self, request: Request, _peer: Peer) -> Response:
        """Return units of a consume queue."""
        query = decode_units_query(request)
        topic, queue_id = query.topic, query.queue_id
        max_offset = self.store.max_offset(topic, queue_id)
        known = self.topics.get(topic)
        if not max_offset and (known is None or queue_id >= max(known.read_queues, known.write_queues)):
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        min_offset = self.store.min_offset(topic, queue_id)
        if not min_offset <= query.offset < max_offset:
            return Response(remark=f"Index {query.offset} of {queue_id}@{topic} is not exist!")
        stop = min(query.offset + min(query.count, UNITS_MAX), max_offset)
        units = (self.store.unit(topic, queue_id, offset) for offset in range(query.offset, stop))
        return encode_units(
            [QueueUnit(*unit) for unit in units if unit is not None],
            min_offset=min_offset,
            max_offset=max_offset,
            group_of=query if query.group else None,
            subscription=self._subscription(query.group, topic) if query.group else None,
        )

    def _subscription(self, group: str, topic: str) -> Subscription | None:
        return self.clients.subscription(group, topic) or self.pop_subscriptions.get(group, topic)


def _has_key(message: StoredMessage, topic: str, key: str) -> bool:
    raw = message.raw_properties
    if message.topic != topic:
        return False
    return find_property(raw, UNIQUE_ID) == key or key in (find_property(raw, KEYS) or "").split(KEY_SEPARATOR)
