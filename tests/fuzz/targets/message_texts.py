"""Texts that peers send about messages: ids, tags, recall handles, trace records, compressed bodies.

Input: a byte for the flags of a compressed body, then the text.
"""

from contextlib import suppress

from skyroute.client.trace.records import TraceError, decode_trace
from skyroute.message.compression import unpack
from skyroute.message.errors import CompressionError, MessageError
from skyroute.message.host import encode_host
from skyroute.message.message_id import decode_offset_id, decode_unique_id, encode_offset_id
from skyroute.message.names import check_file_name, check_group, check_topic
from skyroute.message.tags import java_hash, parse_tag_expression, tag_code
from skyroute.wire.calls.send_back import decode_recall_handle, encode_recall_handle
from skyroute.wire.errors import WireError

UNPACKED_BYTES_MAX = 1 << 16


def check(data: bytes) -> None:
    text = data[1:].decode("utf-8", "replace")
    with suppress(MessageError):
        host, position = decode_offset_id(text)
        if 0 <= host.port <= 0xFFFF:
            assert encode_offset_id(encode_host(host.ip, host.port), position) == text.upper()
    with suppress(MessageError):
        decode_unique_id(text)
    with suppress(MessageError):
        expression = parse_tag_expression(text)
        for tag in expression.tags:
            assert expression.wants(tag)
            assert expression.may_want(tag_code(tag))
            assert -(1 << 31) <= java_hash(tag) < 1 << 31
    with suppress(TraceError):
        decode_trace(data[1:])
    with suppress(WireError, MessageError):
        handle = decode_recall_handle(text)
        assert decode_recall_handle(encode_recall_handle(handle)) == handle
    for check_name in (check_topic, check_group, check_file_name):
        with suppress(MessageError):
            check_name(text)
    with suppress(CompressionError):
        assert len(unpack(data[1:], 1 | (data[0] & 7) << 8 if data else 1, UNPACKED_BYTES_MAX)) <= UNPACKED_BYTES_MAX
