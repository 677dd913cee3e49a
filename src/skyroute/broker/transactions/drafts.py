"""Builds the messages of transactions: half messages, their copies, and op messages."""

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from skyroute.broker.store.draft import Appended, Draft
from skyroute.message import property_names as names
from skyroute.message.errors import PropertyError
from skyroute.message.flags import TransactionState, with_transaction
from skyroute.message.message import StoredMessage
from skyroute.message.message_id import encode_offset_id
from skyroute.message.properties import add_properties, delete_property, encode_properties, find_property
from skyroute.message.record import encode_record
from skyroute.message.reserved_topics import HALF_DONE_TOPIC, HALF_GIVEN_UP_TOPIC, HALF_TOPIC
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.transaction import TransactionCheck
from skyroute.wire.codes import ResponseCode

HALF_QUEUE_ID: Final = 0
"""Apache's brokers have all half messages in one queue, too."""
_OP_TAG: Final = "d"
_OP_PROPERTIES: Final = encode_properties({names.TAGS: _OP_TAG})
_BROKER_PROPERTIES: Final = (names.TRANSACTION_CHECK_TIMES, names.TRANSACTION_PREPARED_QUEUE_OFFSET)


def half_of(draft: Draft) -> Draft:
    """Return the half message of a message. Properties keep its real topic and queue.

    Raises:
        RefusedError: the properties are too long.
    """
    raw = draft.raw_properties
    for name in _BROKER_PROPERTIES:
        raw = delete_property(raw, name)
    added = {names.REAL_TOPIC: draft.topic, names.REAL_QUEUE_ID: str(draft.queue_id)}
    unique_id = find_property(raw, names.UNIQUE_ID)
    if unique_id is not None:
        added[names.TRANSACTION_ID] = unique_id
    return Draft(
        HALF_TOPIC,
        HALF_QUEUE_ID,
        draft.body,
        _with(raw, added),
        draft.born_at_ms,
        draft.raw_born_host,
        draft.raw_store_host,
        with_transaction(draft.sys_flag, TransactionState.NONE),
        draft.flag,
        draft.reconsume_times,
    )


def committed(half: StoredMessage) -> Draft | None:
    """Return the message of a half message; None if the half has no valid real topic and queue."""
    topic = find_property(half.raw_properties, names.REAL_TOPIC)
    queue_id = number_of(half, names.REAL_QUEUE_ID)
    if topic is None or queue_id is None or queue_id < 0:
        return None
    draft = _copy(half, topic, queue_id, half.raw_properties)
    return Draft(
        *(draft.topic, draft.queue_id, draft.body, draft.raw_properties, draft.born_at_ms),
        *(draft.raw_born_host, draft.raw_store_host),
        sys_flag=with_transaction(half.sys_flag, TransactionState.COMMITTED),
        flag=draft.flag,
        reconsume_times=draft.reconsume_times,
        prepared_position=half.log_position,
    )


def prepared_again(half: StoredMessage) -> Draft | None:
    """Return the message of a half message, to be prepared by another broker; None if its real queue is invalid."""
    draft = committed(half)
    if draft is None:
        return None
    raw = draft.raw_properties
    for name in (*_BROKER_PROPERTIES, names.TRANSACTION_PREPARED):
        raw = delete_property(raw, name)
    return msgspec.structs.replace(
        draft,
        raw_properties=_with(raw, {names.TRANSACTION_PREPARED: "true"}),
        sys_flag=with_transaction(half.sys_flag, TransactionState.PREPARED),
        prepared_position=0,
    )


def next_check(half: StoredMessage, times: int) -> Draft:
    """Return the copy of a half message for its check number `times`.

    Raises:
        RefusedError: the properties are too long.
    """
    raw = delete_property(half.raw_properties, names.TRANSACTION_CHECK_TIMES)
    return _copy(half, HALF_TOPIC, HALF_QUEUE_ID, _with(raw, {names.TRANSACTION_CHECK_TIMES: str(times)}))


def moved_copy(half: StoredMessage) -> Draft:
    """Return the copy of a half message that is moved to the end of its queue without a check.

    Raises:
        RefusedError: the properties are too long.
    """
    raw = half.raw_properties
    if find_property(raw, names.TRANSACTION_PREPARED_QUEUE_OFFSET) is None:
        raw = _with(raw, {names.TRANSACTION_PREPARED_QUEUE_OFFSET: str(half.queue_offset)})
    return _copy(half, HALF_TOPIC, HALF_QUEUE_ID, raw)


def given_up(half: StoredMessage) -> Draft:
    """Return the copy of a half message whose checks are exhausted, for operators."""
    return _copy(half, HALF_GIVEN_UP_TOPIC, 0, half.raw_properties)


def op_message(offsets: Collection[int], raw_store_host: bytes, now_ms: int) -> Draft:
    """Return the op message for ended half messages."""
    body = "".join([f"{offset}," for offset in offsets]).encode()
    return Draft(HALF_DONE_TOPIC, HALF_QUEUE_ID, body, _OP_PROPERTIES, now_ms, raw_store_host, raw_store_host)


def offsets_of(op_message: StoredMessage) -> Iterator[int]:
    """Give the offsets of half messages in an op message; none for other messages."""
    if find_property(op_message.raw_properties, names.TAGS) == _OP_TAG:
        for text in op_message.stored_body.split(b","):
            if text.isdigit():
                yield int(text)


def check_request(half: StoredMessage, appended: Appended, draft: Draft, broker_name: str) -> TransactionCheck:
    """Return the check for the producer; `draft` and `appended` are of the copy that its response ends."""
    unique_id = find_property(draft.raw_properties, names.UNIQUE_ID)
    record = encode_record(
        StoredMessage(
            topic=find_property(draft.raw_properties, names.REAL_TOPIC) or half.topic,
            queue_id=number_of(half, names.REAL_QUEUE_ID) or 0,
            queue_offset=appended.queue_offset,
            log_position=appended.log_position,
            stored_body=half.stored_body,
            raw_properties=draft.raw_properties,
            sys_flag=half.sys_flag,
            flag=half.flag,
            born_at_ms=half.born_at_ms,
            raw_born_host=half.raw_born_host,
            stored_at_ms=appended.stored_at_ms,
            raw_store_host=half.raw_store_host,
            reconsume_times=half.reconsume_times,
            prepared_position=half.prepared_position,
            body_crc=half.body_crc,
            record_bytes=appended.record_bytes,
        )
    )
    return TransactionCheck(
        half_offset=appended.queue_offset,
        log_position=appended.log_position,
        record=record,
        message_id=unique_id,
        transaction_id=unique_id,
        offset_message_id=encode_offset_id(half.raw_store_host, appended.log_position),
        topic=HALF_TOPIC,
        broker_name=broker_name,
    )


def number_of(half: StoredMessage, name: str) -> int | None:
    """Return a numeric property; None if it is absent or not a number."""
    text = find_property(half.raw_properties, name)
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _copy(half: StoredMessage, topic: str, queue_id: int, raw_properties: bytes) -> Draft:
    return Draft(
        topic,
        queue_id,
        half.stored_body,
        # The checksum of a record does not fit its copy.
        delete_property(raw_properties, names.RECORD_CRC),
        half.born_at_ms,
        half.raw_born_host,
        half.raw_store_host,
        half.sys_flag,
        half.flag,
        half.reconsume_times,
    )


def _with(raw: bytes, more: dict[str, str]) -> bytes:
    try:
        return add_properties(raw, more)
    except PropertyError as error:
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
