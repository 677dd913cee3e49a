"""Records: held against Apache's bytes, round trips, and what recovery of a log asks for."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.errors import ChecksumError, RecordError, SegmentEndError, TruncatedRecordError
from skyroute.message.flags import TransactionState
from skyroute.message.host import Host, encode_host
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.record import (
    body_crc,
    decode_record,
    decode_records,
    decode_run,
    encode_record,
    record_bytes,
    seal_holds,
    segment_end,
)
from tests.unit.message.samples import FACTS, golden, stored, stored_messages

BORN_6 = encode_host("2001:db8::1", 54321)
STORE_6 = encode_host("fe80::1", 10911)
SEGMENT_BYTES = 2048

APACHE = {
    "record-ipv4": stored(),
    "record-born-ipv6": stored(raw_born_host=BORN_6, sys_flag=0x10, record_bytes=203),
    "record-store-ipv6": stored(raw_store_host=STORE_6, sys_flag=0x20, record_bytes=203),
    "record-both-ipv6": stored(raw_born_host=BORN_6, raw_store_host=STORE_6, sys_flag=0x30, record_bytes=215),
    "record-bare": stored(stored_body=b"", raw_properties=b"", body_crc=0, record_bytes=100),
    "record-ipv4-4.9.7": stored(raw_properties=stored().raw_properties[:-1], record_bytes=190),
}


@pytest.mark.parametrize("name", APACHE)
def test_records_of_apache_are_decoded(name: str) -> None:
    assert decode_records(golden(name), check_crc=True) == [APACHE[name]]


@pytest.mark.parametrize("name", APACHE)
def test_records_are_encoded_as_by_apache(name: str) -> None:
    assert encode_record(APACHE[name].replace(sys_flag=0, record_bytes=0)) == golden(name)


def test_records_follow_each_other() -> None:
    messages = decode_records(golden("records-three"))
    assert [message.queue_offset for message in messages] == [42, 43, 44]
    assert [message.born_host for message in messages] == [
        Host("10.0.0.1", 54321),
        Host("2001:db8::1", 54321),
        Host("10.0.0.1", 54321),
    ]
    assert b"".join(map(encode_record, messages)) == golden("records-three")
    assert decode_records(b"") == []


def test_messages_bear_the_queue_they_were_pulled_from() -> None:
    (message,) = decode_records(golden("record-ipv4"), queue=QueueRef("TopicTest", "broker-a", 9))
    assert message.queue == QueueRef("TopicTest", "broker-a", 9)


def test_the_view_of_a_message() -> None:
    (message,) = decode_records(golden("record-ipv4"))
    assert message.body == b"hello"
    assert message.tag == "TagA"
    assert message.keys == ("k1", "k2")
    assert message.unique_id == message.message_id == "7F000001ABCD18B4AAC2000000000001"
    assert message.offset_id == "0A00000200002A9F00000000075BCD15"
    assert message.user_properties == {"color": "红色"}
    assert message.properties["WAIT"] == "true"
    assert message.sharding_key is None
    assert message.transaction is TransactionState.NONE
    assert message.store_host == Host("10.0.0.2", 10911)
    assert message.stored_at.isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert message.born_at.isoformat() == "2023-11-14T22:13:20+00:00"
    assert "queue_offset=42" in repr(message)
    assert "hello" not in repr(message)


def test_cached_properties_do_not_affect_equality() -> None:
    looked_at, other = stored(), stored()
    assert looked_at.properties["TAGS"] == "TagA"
    assert looked_at == other
    assert hash(looked_at) == hash(other)
    assert pickle.loads(pickle.dumps(looked_at)) == other
    assert looked_at.with_properties({"TAGS": "other"}).tag == "other"
    assert looked_at != stored(flag=8)
    assert looked_at != "something else"


def test_an_impossible_time_is_refused_with_a_record_error() -> None:
    with pytest.raises(RecordError, match="not a valid time"):
        stored(stored_at_ms=1 << 62).stored_at.isoformat()


def segments(name: str) -> list[bytes]:
    log = golden(name)
    return [log[at : at + SEGMENT_BYTES] for at in range(0, len(log), SEGMENT_BYTES)]


@pytest.mark.parametrize("name", ["commit-log", "commit-log-sealed"])
def test_a_commit_log_of_apache_is_read(name: str) -> None:
    first, second = segments(name)[:2]
    run = decode_run(first, check_crc=True)
    assert isinstance(run.failure, SegmentEndError)
    assert first[run.stop : run.stop + 8] == segment_end(SEGMENT_BYTES - run.stop)
    messages = run.messages + decode_run(second, check_crc=True).messages
    assert [message.tag for message in messages] == [f"Tag{number}" for number in range(9)]
    assert [message.flag for message in messages] == list(range(9))
    assert [message.body for message in messages] == [b"body-%d" % n * (1 + 6 * n) for n in range(9)]
    assert messages[4].topic == "%RETRY%" + "g" * 140
    if name == "commit-log":
        assert [["PUT_OK", m.offset_id, m.log_position, m.record_bytes, m.queue_offset] for m in messages] == FACTS[
            "commit_log_results"
        ]


@pytest.mark.parametrize("name", ["commit-log", "commit-log-sealed"])
def test_our_commit_log_is_apaches_byte_for_byte(name: str) -> None:
    for segment in segments(name)[:2]:
        run = decode_run(segment)
        sealed = name == "commit-log-sealed"
        records = [encode_record(message, seal=sealed) for message in run.messages]
        assert b"".join(records) == segment[: run.stop]
        assert {seal_holds(record) for record in records} == ({True} if sealed else {None})


def test_a_broken_seal_is_seen() -> None:
    record = bytearray(encode_record(stored(), seal=True))
    record[20] ^= 1
    assert seal_holds(bytes(record)) is False


def test_a_seal_replaces_one_that_was_there_and_closes_the_last_pair() -> None:
    once = encode_record(stored(raw_properties=b"a\x011"), seal=True)
    again = encode_record(decode_record(once), seal=True)
    assert once == again
    assert decode_record(once).properties.keys() == {"a", "__CRC32#"}


def test_a_run_of_a_foreign_buffer_after_the_last_record() -> None:
    run = decode_run(golden("records-three") + bytes(100))
    assert len(run.messages) == 3
    assert run.stop == len(golden("records-three"))
    assert run.failure is not None
    assert run.failure.at == run.stop


def test_a_run_can_be_taken_in_pieces() -> None:
    buffer = golden("records-three")
    first = decode_run(buffer, count_max=2)
    rest = decode_run(buffer, first.stop)
    assert first.failure is rest.failure is None
    assert first.messages + rest.messages == decode_records(buffer)


def test_one_record_of_a_view_is_read() -> None:
    buffer = golden("records-three")
    second = decode_records(buffer)[1]
    assert decode_record(memoryview(buffer), 191) == decode_record(buffer, 191) == second
    assert decode_records(memoryview(buffer)) == decode_records(bytearray(buffer)) == decode_records(buffer)
    for empty in (b"", memoryview(b""), memoryview(b"123456")):
        with pytest.raises(TruncatedRecordError):
            decode_record(empty)


def test_a_changed_body_is_detected_on_request() -> None:
    damaged = golden("record-ipv4").replace(b"hello", b"hallo")
    assert decode_records(damaged)[0].body == b"hallo"
    with pytest.raises(ChecksumError):
        decode_records(damaged, check_crc=True)


def test_a_topic_that_is_not_utf8_does_not_lose_the_message() -> None:
    damaged = golden("record-ipv4").replace(b"TopicTest", b"Topic\xff\xfest").replace(b"TagA", b"\xff\xff\xff\xff")
    (message,) = decode_records(damaged)
    assert message.topic.startswith("Topic\ufffd")
    assert message.tag == "\ufffd" * 4


@pytest.mark.parametrize("name", [*APACHE, "records-three", "record-inner-batch"])
def test_a_buffer_cut_anywhere_is_truncated_and_nothing_else(name: str) -> None:
    buffer = golden(name)
    whole = {decode_run(buffer, count_max=count).stop for count in range(4)}
    for length in range(len(buffer)):
        if length not in whole:
            with pytest.raises(TruncatedRecordError):
                decode_records(buffer[:length])


@pytest.mark.parametrize(
    ("at", "new", "text"),
    [
        (0, b"\0\0\0\0", "at least 91"),
        (0, b"\xff\xff\xff\xff", "at least 91"),
        (0, b"\0\0\0\xbe", "its fields take"),
        (4, b"\0\0\0\0", "magic"),
        (36, b"\0\0\0\x30", "body length|its header takes|ends after|fields take"),
        (84, b"\xff\xff\xff\xff", "a body length of -1"),
        (84, b"\x7f\xff\xff\xff", "a body length of"),
        (93, b"\xff", "its topic ends after"),
        (103, b"\xff\xff", "a properties length of 65535"),
        (103, b"\0\0", "its fields take"),
    ],
)
def test_a_record_that_does_not_add_up_is_refused(at: int, new: bytes, text: str) -> None:
    record = bytearray(golden("record-ipv4"))
    record[at : at + len(new)] = new
    with pytest.raises(RecordError, match=text) as caught:
        decode_records(record)
    assert not isinstance(caught.value, TruncatedRecordError)


@given(stored_messages())
def test_any_message_is_decoded_as_encoded(message: StoredMessage) -> None:
    record = encode_record(message)
    (back,) = decode_records(record, check_crc=True)
    assert back == message.replace(sys_flag=back.sys_flag, record_bytes=len(record))
    assert back.sys_flag & ~0x30 == message.sys_flag & ~0x30
    assert (
        record_bytes(
            topic_bytes=len(message.topic.encode()),
            body_bytes=len(message.stored_body),
            properties_bytes=len(message.raw_properties),
            ipv6_hosts=(back.sys_flag & 0x30).bit_count(),
        )
        == back.record_bytes
    )


@given(stored_messages())
def test_any_sealed_record_is_whole(message: StoredMessage) -> None:
    assert seal_holds(encode_record(message, seal=True))


@pytest.mark.parametrize(
    "changes",
    [
        {"queue_id": 1 << 31},
        {"queue_offset": 1 << 63},
        {"raw_born_host": b"1234567"},
        {"raw_store_host": b"123456789"},
        {"topic": "t" * 32768},
        {"topic": "\ud800"},
        {"raw_properties": b"x" * 32768},
    ],
)
def test_what_does_not_fit_a_record_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(RecordError):
        encode_record(stored(**changes))


def test_a_topic_takes_version_2_only_where_it_must() -> None:
    short, long = encode_record(stored(topic="t" * 127)), encode_record(stored(topic="t" * 128))
    assert short[4:8] == bytes.fromhex("DAA320A7")
    assert long[4:8] == bytes.fromhex("DAA320AB")
    assert len(long) == len(short) + 2


@pytest.mark.parametrize("body", FACTS["crcs"])
def test_the_checksum_is_apaches(body: str) -> None:
    assert body_crc(body.encode()) == FACTS["crcs"][body]


@given(st.binary(max_size=300), st.integers(0, 200))
def test_any_bytes_are_records_or_refused(noise: bytes, keep: int) -> None:
    for buffer in (noise, golden("record-ipv4")[:keep] + noise, golden("record-both-ipv6")[:keep] + noise):
        run = decode_run(buffer)
        assert run.failure is not None or run.stop == len(buffer)
        for message in run.messages:
            assert message.properties is not None


@given(st.sampled_from([*APACHE, "records-three"]), st.integers(0, 600), st.integers(0, 255))
def test_a_record_with_one_byte_changed_is_read_or_refused(name: str, at: int, value: int) -> None:
    buffer = bytearray(golden(name))
    buffer[at % len(buffer)] = value
    run = decode_run(buffer)
    assert run.failure is None or isinstance(run.failure, RecordError)
