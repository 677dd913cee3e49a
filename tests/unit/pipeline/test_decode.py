"""Columns decoded from many records equal the fields of messages decoded one by one."""

import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.flags import COMPRESSED, Compression, with_compression
from skyroute.message.message import StoredMessage
from skyroute.message.positions import LogPosition, QueueOffset
from skyroute.message.record import decode_records, encode_record
from skyroute.pipeline.source.decode import COLUMN_DECODERS, Records, find_records

IPV4, IPV6 = bytes(range(1, 5)) + (10911).to_bytes(4, "big"), bytes(range(1, 17)) + (10911).to_bytes(4, "big")
INT32, INT64 = st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1)
HOSTS = st.sampled_from([IPV4, IPV4, IPV4, IPV6, b"\xff" * 8, bytes(20)])
NAMES = st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"TAGZ", b"a", b"", "ä".encode(), b"\xff\xfe", b"TAGS\x02"])
VALUES = st.sampled_from([b"paid", b"", b"a\x01b", "grün".encode(), b"\xff", b"k1 k2", b"7F0000010A0B"])
PROPERTIES = st.one_of(
    st.lists(st.tuples(NAMES, VALUES), max_size=6).map(lambda ps: b"".join(n + b"\x01" + v + b"\x02" for n, v in ps)),
    st.lists(st.tuples(NAMES, VALUES), max_size=3).map(lambda ps: b"\x02".join(n + b"\x01" + v for n, v in ps)),
    st.text("\x00\x01\x02aT", max_size=12).map(str.encode),
    st.binary(max_size=40),
)


@st.composite
def messages(draw: st.DrawFn) -> StoredMessage:
    return StoredMessage(
        draw(st.sampled_from(["Orders", "T" * 127, "T" * 128, "Größe"])),
        draw(INT32),
        QueueOffset(draw(INT64)),
        LogPosition(draw(INT64)),
        draw(st.binary(max_size=60)),
        draw(PROPERTIES),
        0,
        draw(INT32),
        draw(INT64),
        draw(HOSTS),
        draw(INT64),
        draw(HOSTS),
        draw(INT32),
        LogPosition(draw(INT64)),
        draw(INT32),
        0,
    )


def columns(wire: bytes) -> dict[str, list[Any]]:
    records = Records(memoryview(bytearray(wire)), find_records(wire)[0])
    return {name: read(records).to_pylist() for name, read in COLUMN_DECODERS.items()}


@given(st.lists(messages(), max_size=12))
def test_columns_equal_message_fields(sent: list[StoredMessage]) -> None:
    wire = b"".join(map(encode_record, sent))
    expected = decode_records(wire)
    found = columns(wire)
    assert found["body"] == [message.body for message in expected]
    assert found["commit_log_offset"] == [message.log_position for message in expected]
    assert found["flag"] == [message.flag for message in expected]
    assert found["reconsume_times"] == [message.reconsume_times for message in expected]
    assert found["born_host"] == [str(message.born_host) for message in expected]
    assert found["message_id"] == [message.message_id for message in expected]
    assert found["tags"] == [message.tag for message in expected]
    assert found["keys"] == [message.find_property("KEYS") for message in expected]
    assert [dict(pairs) for pairs in found["properties"]] == [dict(message.properties) for message in expected]


@pytest.mark.parametrize("last", [b"007", b"1000"])
def test_values_of_one_length_and_of_several_are_found(last: bytes) -> None:
    numbers = [b"%03d" % number for number in range(300)] + [last]
    sent = [
        plain(stored_body=b"b" + each, raw_properties=b"KEYS\x01k%b\x02TAGS\x01t%b" % (each, each)) for each in numbers
    ]
    found = columns(b"".join(map(encode_record, sent)))
    assert found["body"] == [b"b" + each for each in numbers]
    assert found["keys"] == [f"k{each.decode()}" for each in numbers]
    assert found["tags"] == [f"t{each.decode()}" for each in numbers]


def test_a_missing_separator_does_not_shift_properties_to_the_next_message() -> None:
    sent = [plain(raw_properties=raw) for raw in (b"a\x01b", b"\x02TAGS\x01red", b"", b"\x02")]
    found = columns(b"".join(map(encode_record, sent)))
    assert [dict(pairs) for pairs in found["properties"]] == [{"a": "b"}, {"TAGS": "red"}, {}, {}]


@given(st.integers(0, 1 << 42))
def test_milliseconds_become_timestamps(when_ms: int) -> None:
    wire = encode_record(plain(born_at_ms=when_ms, stored_at_ms=when_ms + 1))
    found = columns(wire)
    assert found["born_timestamp"][0].timestamp() == pytest.approx(when_ms / 1000)
    assert found["store_timestamp"][0].timestamp() == pytest.approx((when_ms + 1) / 1000)


def test_a_timestamp_out_of_range_is_null() -> None:
    assert columns(encode_record(plain(born_at_ms=(1 << 63) - 1)))["born_timestamp"] == [None]


def plain(**changes: Any) -> StoredMessage:
    message = StoredMessage(
        "Orders", 0, QueueOffset(7), LogPosition(99), b"one", b"", 0, 0, 0, IPV4, 0, IPV4, 0, LogPosition(0), 0, 0
    )
    return message.replace(**changes)


@given(st.lists(messages(), min_size=1, max_size=5), st.data())
def test_records_before_a_damaged_one_are_kept(sent: list[StoredMessage], data: st.DataObject) -> None:
    records = list(map(encode_record, sent))
    wire = bytearray(b"".join(records))
    at = data.draw(st.integers(0, len(wire) - 1))
    wire[at] = data.draw(st.integers(0, 255))
    found = Records(bytes(wire), find_records(wire)[0])
    whole, end = 0, 0
    for record in records:
        if end + len(record) > at:
            break
        whole, end = whole + 1, end + len(record)
    assert len(found) >= whole
    assert found.bodies().to_pylist()[:whole] == [message.stored_body for message in sent[:whole]]
    # Every column of the remaining records can be decoded.
    for read in COLUMN_DECODERS.values():
        assert len(read(found)) == len(found)


@given(st.binary(max_size=400))
def test_random_bytes_are_not_records(noise: bytes) -> None:
    assert len(Records(noise, find_records(noise)[0])) in (0, 1)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 40, 5_000])
def test_runs_of_records_of_equal_length_are_found(count: int) -> None:
    lengths = [5 if place % 97 else 6 for place in range(count)]
    sent = [plain(queue_offset=QueueOffset(n), stored_body=b"x" * length) for n, length in enumerate(lengths)]
    wire = b"".join(map(encode_record, sent))
    starts, stop = find_records(wire)
    assert stop == len(wire)
    assert Records(wire, starts).numbers("queue_offset").tolist() == list(range(count))


def test_compressed_records_are_special() -> None:
    packed = plain(stored_body=zlib.compress(b"one"), sys_flag=with_compression(0, Compression.ZLIB))
    assert packed.sys_flag & COMPRESSED
    wire = encode_record(plain()) + encode_record(packed) + encode_record(plain())
    assert Records(wire, find_records(wire)[0]).special.tolist() == [1]
