"""Records: every decoded record encodes to its own bytes, and all decoders of records agree.

Input: records one after the other, as in a response to a pull.
"""

from typing import Final

from skyroute.message.batch import decode_batch
from skyroute.message.errors import BatchError, CompressionError, RecordError
from skyroute.message.layout import MAGIC_V1, V1_TOPIC_BYTES_MAX
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.record import decode_record, decode_records, decode_run, encode_record, seal_holds

QUEUE: Final = QueueRef("T", "broker-a", 3)


def check(data: bytes) -> None:
    run = decode_run(data)
    assert run.failure is None or isinstance(run.failure, RecordError)
    assert (run.failure is None) == (run.stop == len(data))
    at = 0
    for message in run.messages:
        record = data[at : at + message.record_bytes]
        assert decode_record(memoryview(data), at) == decode_record(data, at) == message
        check_encoding(message, record)
        check_content(message)
        seal_holds(record)
        at += message.record_bytes
    assert at == run.stop
    checked = decode_run(data, check_crc=True)
    assert checked.messages == run.messages[: len(checked.messages)]
    try:
        pulled = decode_records(data, queue=QUEUE)
    except RecordError:
        assert run.failure is not None
    else:
        assert [each.queue_offset for each in pulled] == [each.queue_offset for each in run.messages]
        assert {each.queue_id for each in pulled} <= {QUEUE.queue_id}


def check_encoding(message: StoredMessage, record: bytes) -> None:
    encoded = encode_record(message)
    # Bytes of a topic that are not UTF-8 are replaced, and a long topic has version 2.
    is_plain = message.topic.encode() in record and "\ufffd" not in message.topic
    has_own_version = int.from_bytes(record[4:8], "big") == MAGIC_V1 or len(message.topic) > V1_TOPIC_BYTES_MAX
    if is_plain and has_own_version and len(message.topic.encode()) <= V1_TOPIC_BYTES_MAX:
        assert encoded == record
    again = decode_record(encoded)
    assert (again.stored_body, again.raw_properties) == (message.stored_body, message.raw_properties)
    try:
        sealed = encode_record(message, seal=True)
    except RecordError:
        return  # no room for the checksum
    assert seal_holds(sealed) is True


def check_content(message: StoredMessage) -> None:
    """Read everything that a handler may read of a message."""
    assert isinstance(message.properties, dict)
    assert message.born_host.ip
    assert message.store_host.ip
    assert message.offset_id
    assert isinstance(message.keys, tuple | list)
    try:
        body = message.body
        if message.is_wrapped_batch:
            decode_batch(body)
    except (CompressionError, BatchError):
        pass
