"""Sends of batches. A batch of many messages is decoded and encoded in steps, and stored with one write."""

import asyncio
from collections.abc import Generator, Iterator
from typing import Final

from skyroute.broker.appender import Appender
from skyroute.broker.config import BrokerConfig
from skyroute.broker.handlers.send_responses import SendResponses
from skyroute.broker.identity import Identity
from skyroute.broker.store.draft import AppendedBatch, Draft
from skyroute.broker.store.index.keys import may_have_keys
from skyroute.broker.tables.topics import Topics
from skyroute.files.errors import StorageError
from skyroute.message.batch import RawItem, count_items, decode_some
from skyroute.message.errors import BatchError, RecordError
from skyroute.message.flags import MULTI_TAGS, TRANSACTION_MASK
from skyroute.message.message_id import encode_offset_ids
from skyroute.message.names import TOPIC_CHARS_MAX
from skyroute.message.properties import find_property
from skyroute.message.property_names import DELAY_LEVEL, UNIQUE_ID
from skyroute.message.reserved_topics import is_retry_topic
from skyroute.remoting.dispatch import DeferredResponse, OrderedResponse, wait_for_response
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import StepRunner
from skyroute.wire.calls.send import Sending
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Response

BATCH_MESSAGES_A_STEP: Final = 1_000
"""Messages of a batch decoded and encoded in one step."""
BATCH_COUNTED_A_STEP: Final = 8_000
"""Messages of a batch that are only counted, in one step: a batch topic stores them as they came."""
BATCH_KEYS_A_STEP: Final = 16_000
"""Keys of a batch encoded in one step, unless a single message has more."""
BATCH_IDS_A_STEP: Final = 10_000
"""Message ids of a batch encoded in one step."""


class BatchSends:
    """Stores batches: as single messages or, in a batch topic, as one record (an inner batch)."""

    def __init__(
        self,
        appender: Appender,
        topics: Topics,
        config: BrokerConfig,
        identity: Identity,
        responses: SendResponses,
        step_runner: StepRunner,
    ) -> None:
        self._appender = appender
        self._topics = topics
        self._config = config
        self._raw_store_host = identity.raw_store_host
        self._responses = responses
        self._step_runner = step_runner
        self._long_batches = asyncio.Lock()
        """Held while a long batch is encoded, which takes several times its memory."""

    def store(
        self,
        sending: Sending,
        body: bytes,
        topic: TopicConfig,
        queue_id: int,
        raw_born_host: bytes,
        raw_properties: bytes,
        unique_id: bytes,
    ) -> Response | DeferredResponse | OrderedResponse:
        """Store a batch; `raw_properties` and `unique_id` are those of the batch as a whole.

        Raises:
            RefusedError: the batch is invalid, or the store does not accept it.
        """
        if len(topic.name) > TOPIC_CHARS_MAX:
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"message topic length too long {len(topic.name)}")
        if is_retry_topic(topic.name):
            raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic.name}")
        if sending.sys_flag & TRANSACTION_MASK or (find_property(raw_properties, DELAY_LEVEL) or "0") != "0":
            raise self._responses.illegal()
        if not body or len(body) > self._config.message_bytes_max:
            raise self._responses.illegal()
        is_inner = self._topics.is_batch_topic(topic.name) and _has_unique_id(sending)
        draft = Draft(
            sending.topic,
            queue_id,
            body if is_inner else b"",
            raw_properties if is_inner else b"",
            sending.born_at_ms,
            raw_born_host,
            self._raw_store_host,
            sending.sys_flag | MULTI_TAGS if topic.filter_type == "MULTI_TAG" else sending.sys_flag,
            sending.flag,
            sending.reconsume_times,
        )
        items: list[RawItem] = []
        messages = 0
        if is_inner:
            messages, decoded_to = _count(body, 0)
        else:
            items, decoded_to = _decode(body, 0)
        if decoded_to < len(body) or _has_many_keys(items):
            putting = (
                self._put_long_inner(draft, messages, decoded_to)
                if is_inner
                else self._put_long(draft, body, items, decoded_to)
            )
            storing = self._store_long(draft, putting, unique_id, is_inner=is_inner)
            return OrderedResponse(self._responses.with_fields(storing))
        try:
            appended = self._put_inner(draft, messages) if is_inner else self._appender.put_batch(draft, items)
        except (StorageError, RecordError) as error:
            raise self._responses.store_failure(error) from error
        ids = encode_offset_ids(self._raw_store_host, appended.log_positions)
        return self._receipt(ids, draft, appended, unique_id, is_inner=is_inner)

    def _put_inner(self, draft: Draft, messages: int) -> AppendedBatch:
        record = self._appender.put_inner_batch(draft, messages)
        return AppendedBatch([record.log_position], record.queue_offset, record.log_end)

    def _receipt(
        self, ids: str, draft: Draft, appended: AppendedBatch, unique_id: bytes, *, is_inner: bool
    ) -> Response | DeferredResponse:
        return self._responses.batch_receipt(
            ids, draft.queue_id, appended.queue_offset, appended.log_end, unique_id, is_inner=is_inner
        )

    async def _store_long(
        self, draft: Draft, putting: Generator[None, None, AppendedBatch], unique_id: bytes, *, is_inner: bool
    ) -> Response:
        """Store a batch with too many messages or keys for one step."""
        try:
            async with self._long_batches:
                await self._step_runner.run(self._derive())  # the keys of earlier batches take memory
                appended = await self._step_runner.run(putting)
        except (StorageError, RecordError) as error:
            raise self._responses.store_failure(error) from error
        ids = await self._step_runner.run(self._encode_ids(appended))
        response = await wait_for_response(self._receipt(ids, draft, appended, unique_id, is_inner=is_inner))
        await self._step_runner.run(self._derive())
        return response

    def _put_long(
        self, draft: Draft, body: bytes, items: list[RawItem], decoded_to: int
    ) -> Generator[None, None, AppendedBatch]:
        batch = self._appender.prepare_batch(draft)
        while True:
            for part in _divide(items):
                batch.add(part)
                yield
            if decoded_to >= len(body):
                break
            items, decoded_to = _decode(body, decoded_to)
        self._check_topic(draft.topic)
        return self._appender.put_prepared(batch)

    def _put_long_inner(self, draft: Draft, messages: int, counted_to: int) -> Generator[None, None, AppendedBatch]:
        while counted_to < len(draft.body):
            yield
            count, counted_to = _count(draft.body, counted_to)
            messages += count
        self._check_topic(draft.topic)
        return self._put_inner(draft, messages)

    def _check_topic(self, topic: str) -> None:
        if self._topics.get(topic) is None:
            raise RefusedError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] was deleted before the message was stored"
            )

    def _encode_ids(self, appended: AppendedBatch) -> Generator[None, None, str]:
        parts: list[str] = []
        for start in range(0, len(appended.log_positions), BATCH_IDS_A_STEP):
            yield
            positions = appended.log_positions[start : start + BATCH_IDS_A_STEP]
            parts.append(encode_offset_ids(self._raw_store_host, positions))
        return ",".join(parts)

    def _derive(self) -> Generator[None, None, None]:
        while self._appender.dispatch_step():
            yield


def _decode(body: bytes, start: int) -> tuple[list[RawItem], int]:
    """Decode up to `BATCH_MESSAGES_A_STEP` messages from a position; return them and the position behind them."""
    try:
        return decode_some(body, start, BATCH_MESSAGES_A_STEP)
    except BatchError as error:
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None


def _count(body: bytes, start: int) -> tuple[int, int]:
    """Check up to `BATCH_COUNTED_A_STEP` messages from a position; return their number and the position behind them."""
    try:
        return count_items(body, start, BATCH_COUNTED_A_STEP)
    except BatchError as error:
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None


def _has_many_keys(items: list[RawItem]) -> bool:
    """Return whether messages may have more than `BATCH_KEYS_A_STEP` keys, which are words in their properties."""
    together = b"".join([raw for _, raw, _ in items])
    return may_have_keys(together) and together.count(b" ") > BATCH_KEYS_A_STEP


def _divide(items: list[RawItem]) -> Iterator[list[RawItem]]:
    """Yield messages in parts of at most `BATCH_KEYS_A_STEP` keys, unless a single message has more."""
    if len(items) > 1 and _has_many_keys(items):
        middle = len(items) // 2
        yield from _divide(items[:middle])
        yield from _divide(items[middle:])
    else:
        yield items


def _has_unique_id(sending: Sending) -> bool:
    return find_property(sending.properties.encode(), UNIQUE_ID) is not None
