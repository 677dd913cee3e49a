"""Ids and addresses."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.errors import HostError, MessageError, MessageIdError
from skyroute.message.host import Host, decode_host, encode_host
from skyroute.message.message_id import (
    OffsetId,
    UniqueId,
    created_at,
    decode_offset_id,
    decode_unique_id,
    encode_offset_id,
    encode_offset_ids,
    encode_unique_id,
    month_start,
    unique_id_prefix,
)
from skyroute.message.positions import LogPosition
from tests.unit.message.samples import FACTS, HOSTS, INT64


@pytest.mark.parametrize("ip", ["127.0.0.1", "2001:db8::1"])
@pytest.mark.parametrize("positions", [[], [7], [0, 255, 1 << 40, (1 << 63) - 1]])
def test_offset_ids_of_a_batch_are_those_of_its_messages(ip: str, positions: list[int]) -> None:
    raw_host = encode_host(ip, 10911)
    assert encode_offset_ids(raw_host, positions) == ",".join(encode_offset_id(raw_host, each) for each in positions)


@pytest.mark.parametrize(("ip", "port", "position", "text"), FACTS["offset_ids"])
def test_an_offset_id_is_apaches(ip: str, port: int, position: int, text: str) -> None:
    assert encode_offset_id(encode_host(ip, port), position) == text
    assert decode_offset_id(text) == decode_offset_id(text.lower()) == OffsetId(Host(ip, port), LogPosition(position))


@given(HOSTS, INT64)
def test_offset_ids_are_decoded_as_encoded(raw_host: bytes, position: int) -> None:
    assert decode_offset_id(encode_offset_id(raw_host, position)) == (decode_host(raw_host), position)


def test_a_unique_id_is_apaches() -> None:
    fact: dict[str, Any] = FACTS["unique_id"]
    read = decode_unique_id(fact["id"])
    assert read.pid == fact["pid"]
    assert read.process_hash == fact["loader"]
    assert encode_host(read.ip, 0) == encode_host(fact["ip"], 0)
    prefix = unique_id_prefix(fact["ip"], fact["pid"], fact["loader"])
    assert encode_unique_id(prefix, read.into_month_ms, read.counter) == fact["id"]
    assert decode_unique_id(fact["next"]).counter == read.counter + 2


@given(
    st.ip_addresses().map(str), st.integers(0, 0xFFFF), st.integers(-(1 << 31), (1 << 31) - 1),
    st.integers(0, (1 << 32) - 1), st.integers(0, 0xFFFF),
)  # fmt: skip
def test_unique_ids_are_decoded_as_encoded(
    ip: str, pid: int, process_hash: int, into_month_ms: int, counter: int
) -> None:
    text = encode_unique_id(unique_id_prefix(ip, pid, process_hash), into_month_ms, counter)
    assert len(text) == (56 if ":" in ip else 32)
    assert decode_unique_id(text)[1:] == (pid, process_hash, into_month_ms, counter)


def test_a_clock_that_steps_back_over_the_month_does_not_wrap() -> None:
    assert encode_unique_id("", -999_999, 0) == "000000000000"
    assert encode_unique_id("", -1_000_000, 0) != "000000000000"
    assert encode_unique_id("", 0, 0x1FFFF) == "00000000FFFF"


def test_the_time_of_an_id() -> None:
    zone = timezone(timedelta(hours=8))
    now = datetime(2026, 3, 10, 12, tzinfo=zone)
    assert month_start(now) == datetime(2026, 3, 1, tzinfo=zone)

    def made(since: timedelta) -> datetime:
        return created_at(UniqueId("1.2.3.4", 1, 1, since // timedelta(milliseconds=1), 0), now)

    assert made(timedelta(days=9)) == datetime(2026, 3, 10, tzinfo=zone)
    assert made(timedelta(days=9, hours=12)) == now
    assert made(timedelta(days=20)) == datetime(2026, 2, 21, tzinfo=zone)
    assert created_at(UniqueId("1.2.3.4", 1, 1, 0, 0), datetime(2026, 1, 1, tzinfo=UTC)).month == 1


@pytest.mark.parametrize(
    "text", ["", "0A", "x" * 32, "0" * 31, "0" * 33, " " * 32, "0 " * 16, "0" * 54 + " 0", "٣" * 32]
)
def test_invalid_ids_are_refused(text: str) -> None:
    with pytest.raises(MessageIdError):
        decode_offset_id(text)
    with pytest.raises(MessageIdError):
        decode_unique_id(text)


@given(st.text(max_size=60))
def test_any_text_is_an_id_or_refused(text: str) -> None:
    for decode in (decode_offset_id, decode_unique_id):
        with suppress(MessageError):
            assert decode(text) is not None


def test_hosts() -> None:
    assert str(decode_host(encode_host("10.0.0.1", 80))) == "10.0.0.1:80"
    assert str(decode_host(encode_host("fe80::1", 80))) == "[fe80::1]:80"
    assert decode_host(bytes(4) + b"\xff\xff\xff\xff") == Host("0.0.0.0", -1)


@pytest.mark.parametrize(
    ("ip", "port"), [("", 1), ("localhost", 1), ("1.2.3", 1), ("::g", 1), ("1.2.3.4", 65536), ("1.2.3.4", -1)]
)
def test_invalid_hosts_are_refused(ip: str, port: int) -> None:
    with pytest.raises(HostError):
        encode_host(ip, port)
    with pytest.raises(HostError):
        decode_host(b"1234567")
