"""The life of a connection: how long it may be silent, what ends it, and which brokers end with it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from skyroute.wire.codes import ResponseCode
from tests.network.cluster import MASTER, NOWHERE, OTHER, SLAVE, addresses, register, topics, world
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Request, encode
from tests.support.servers import Running, running
from tests.support.waiting import eventually

FRAME = encode(MASTER.request, 1)


# Silence


async def test_an_idle_connection_is_closed_after_the_idle_limit(nameserver: Running, line: AsyncConnection) -> None:
    await eventually(lambda: nameserver.connections == 1)
    nameserver.pass_time(120)
    assert await topics(line) == []
    nameserver.pass_time(121)
    await line.until_closed()
    await eventually(lambda: nameserver.connections == 0)


@pytest.mark.parametrize("one_way", [False, True])
async def test_every_request_resets_the_idle_time(nameserver: Running, line: AsyncConnection, one_way: bool) -> None:
    for _ in range(3):
        nameserver.pass_time(100)
        if one_way:
            await line.send_oneway(9999)
        assert (await line.call(206)).code == ResponseCode.SUCCESS
    nameserver.pass_time(121)
    await line.until_closed()


async def test_an_idle_connection_is_closed_without_a_warning(
    nameserver: Running, line: AsyncConnection, caplog: pytest.LogCaptureFixture
) -> None:
    await line.call(206)
    nameserver.pass_time(121)
    await line.until_closed()
    assert f"connection closed peer={line.local_address} reason=idle" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_without_an_idle_limit_a_connection_stays_open(tmp_path: Path) -> None:
    async with running(tmp_path, idle_timeout_s=0) as here, connection_to(here.address) as line:
        await line.call(206)
        here.pass_time(10_000)
        assert (await line.call(206)).code == ResponseCode.SUCCESS


async def test_bytes_of_an_incomplete_frame_do_not_reset_the_idle_time(
    nameserver: Running, line: AsyncConnection
) -> None:
    await line.call(206)
    (connection,) = nameserver.remoting._connections.values()
    buffered = connection._decoder
    for at in range(12):
        await line.write(FRAME[at : at + 1])
        await eventually(lambda at=at: len(buffered.buffer) == at + 1)  # type: ignore[misc]  # a lambda with a default
        assert nameserver.buffered_bytes > at
        nameserver.pass_time(10)
    assert nameserver.connections == 1
    nameserver.pass_time(1)
    await line.until_closed()
    await eventually(lambda: nameserver.buffered_bytes == 0)


async def test_an_incomplete_first_request_is_closed_after_the_opening_limit(
    nameserver: Running, line: AsyncConnection
) -> None:
    nameserver.pass_time(60)  # counted from its first byte on
    await line.write(FRAME[:5])
    await eventually(lambda: nameserver.buffered_bytes == 5)
    nameserver.pass_time(10)
    assert nameserver.connections == 1
    nameserver.pass_time(1)
    await line.until_closed()


async def test_a_first_request_within_the_opening_limit_gets_its_response(
    nameserver: Running, line: AsyncConnection
) -> None:
    await line.write(FRAME[:5])
    await eventually(lambda: nameserver.buffered_bytes == 5)
    nameserver.pass_time(9)
    await line.write(FRAME[5:])
    assert (await line.receive()).code == ResponseCode.SUCCESS
    nameserver.pass_time(100)
    assert (await line.call(206)).code == ResponseCode.SUCCESS


async def test_a_late_sweep_closes_no_connection_before_reading(nameserver: Running, line: AsyncConnection) -> None:
    """This process stood still: what peers said meanwhile waits in their sockets, and is read before the next one."""
    await line.call(206)
    async with connection_to(nameserver.address) as silent:
        await silent.call(206)
        nameserver.pass_time(1)
        nameserver.clock.advance(300)
        nameserver.sweep()
        assert (await line.call(206)).code == ResponseCode.SUCCESS
        nameserver.pass_time(1)
        await silent.until_closed()
        assert (await line.call(206)).code == ResponseCode.SUCCESS


# The end of a connection is the end of its brokers


@pytest.mark.parametrize("end", ["close", "abort"])
async def test_a_broker_is_removed_as_soon_as_its_connection_ends(
    nameserver: Running, line: AsyncConnection, end: str
) -> None:
    async with connection_to(nameserver.address) as broker:
        await register(broker, MASTER)
        assert await addresses(line) == {"broker-a": {"0": "10.0.0.1:10911"}}
        if end == "abort":
            broker.abort()
    await eventually(lambda: is_gone(line))
    assert await world(line) == NOWHERE
    assert (await line.call(304)).value == {"topicList": []}


async def is_gone(line: AsyncConnection, topic: str = "TopicA") -> bool:
    return await addresses(line, topic) == {}


async def test_a_broker_is_removed_when_its_idle_connection_is_closed(
    nameserver: Running, line: AsyncConnection
) -> None:
    await line.call(206)
    async with connection_to(nameserver.address) as broker:
        await register(broker, MASTER.but(heartbeat_ms=1_000_000))
        nameserver.pass_time(60)
        await line.call(206)
        nameserver.pass_time(61)
        await broker.until_closed()
        assert await is_gone(line)


async def test_all_brokers_of_a_container_are_removed_with_their_connection(
    nameserver: Running, line: AsyncConnection
) -> None:
    await register(line, SLAVE)
    async with connection_to(nameserver.address) as container:
        await register(container, MASTER, OTHER)
        assert set(await addresses(line)) == {"broker-a", "broker-b"}
    await eventually(lambda: is_gone(line, "TopicC"))
    assert await addresses(line) == {"broker-a": {"1": "10.0.0.2:10911"}}


async def test_the_end_of_an_old_connection_does_not_remove_a_broker_that_registered_again(nameserver: Running) -> None:
    async with connection_to(nameserver.address) as new:
        async with connection_to(nameserver.address) as old:
            await register(old, MASTER)
            await register(new, MASTER)
        await eventually(lambda: nameserver.connections == 1)
        assert await addresses(new) == {"broker-a": {"0": "10.0.0.1:10911"}}


async def test_brokers_are_removed_when_their_connection_is_closed_for_malformed_bytes(
    nameserver: Running, line: AsyncConnection, caplog: pytest.LogCaptureFixture
) -> None:
    async with connection_to(nameserver.address) as broker:
        await register(broker, MASTER)
        await broker.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await broker.until_closed()
        assert broker.strays == []
    await eventually(lambda: is_gone(line))
    assert f"connection closed peer={broker.local_address} reason=" in caplog.text


@pytest.mark.parametrize(
    "bad",
    [
        b"\x00\x00\x00\x00" + bytes(12),  # a frame of no bytes
        b"\x00\x00\x00\x08\x00\x00\x00\x05" + bytes(8),  # a header longer than its frame
        b"\x00\x00\x00\x08\x07\x00\x00\x04{}{}" + bytes(4),  # a header form that does not exist
        b"\x00\x00\x00\x08\x00\x00\x00\x04[1]x" + bytes(4),  # no header
        b"\x00\x00\x00\x08\x01\x00\x00\x04abcd" + bytes(4),  # no binary header
    ],
)
async def test_requests_before_malformed_bytes_get_responses_and_later_ones_do_not(
    line: AsyncConnection, bad: bytes
) -> None:
    await line.write(encode(MASTER.request, 1) + encode(Request(206), 2) + bad + encode(Request(206), 3))
    await line.until_closed()
    assert [answer.opaque for answer in line.strays] == [1, 2]


async def test_connections_above_the_limit_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path, connections_max=2) as here, connection_to(here.address) as line:
        async with connection_to(here.address) as second:
            assert [await topics(line), await topics(second)] == [[], []]
            for _ in range(5):
                async with connection_to(here.address) as third:
                    await third.until_closed()
            assert await topics(second) == []
        await eventually(lambda: here.connections == 1)
        async with connection_to(here.address) as again:
            assert await topics(again) == []
    warned = [record for record in caplog.records if "turned away" in record.getMessage()]
    assert len(warned) == 3  # the 1st, the 2nd and the 4th
