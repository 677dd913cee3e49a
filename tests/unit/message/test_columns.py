"""Columns equal the fields of decoded messages."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.columns import COLUMNS, ColumnReader
from skyroute.message.errors import RecordError
from skyroute.message.message import StoredMessage
from skyroute.message.record import decode_records, decode_run, encode_record
from tests.unit.message.samples import golden, stored, stored_messages


def column(messages: list[StoredMessage], name: str) -> list[Any]:
    if name == "keys":
        return [message.find_property("KEYS") for message in messages]
    return [getattr(message, name) for message in messages]


@given(st.lists(stored_messages(), max_size=4), st.lists(st.sampled_from(COLUMNS), max_size=5))
def test_a_column_is_the_field_of_every_message(messages: list[StoredMessage], columns: list[str]) -> None:
    buffer = b"".join(encode_record(message.replace(sys_flag=message.sys_flag & ~1)) for message in messages)
    found = decode_records(buffer)
    assert ColumnReader(columns).read(buffer) == [column(found, name) for name in columns]


def test_compressed_bodies_are_decompressed() -> None:
    (bodies, stored_bodies) = ColumnReader(["body", "stored_body"]).read(
        golden("record-zlib") + encode_record(stored())
    )
    assert bodies == [b"0123456789abcdef" * 64, b"hello"]
    assert stored_bodies[0] != bodies[0]


def test_an_unknown_column_is_named() -> None:
    with pytest.raises(ValueError, match="unknown columns: colour, size"):
        ColumnReader(["body", "colour", "size"])


def test_a_buffer_cut_anywhere_is_refused() -> None:
    reader = ColumnReader(["topic", "tag"])
    buffer = golden("records-three")
    for length in set(range(len(buffer))) - {0, 191, 191 + 203}:
        with pytest.raises(RecordError):
            reader.read(buffer[:length])


@given(st.binary(max_size=300), st.integers(0, 191))
def test_columns_and_records_refuse_the_same_bytes(noise: bytes, keep: int) -> None:
    buffer = golden("record-ipv4")[:keep] + noise
    failure = decode_run(buffer).failure
    if failure is None:
        assert ColumnReader(["body"]).read(buffer)
    else:
        with pytest.raises(type(failure)) as caught:
            ColumnReader(["body"]).read(buffer)
        assert str(caught.value) == str(failure)


def test_a_wrong_magic_or_size_is_refused() -> None:
    reader = ColumnReader(["log_position"])
    for at in (0, 3, 4, 87):
        damaged = bytearray(golden("record-ipv4"))
        damaged[at] ^= 0x40
        with pytest.raises(RecordError):
            reader.read(damaged)


def test_long_topics_are_read() -> None:
    assert ColumnReader(["topic"]).read(encode_record(stored(topic="t" * 200))) == [["t" * 200]]
