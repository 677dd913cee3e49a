"""Enemies at the replication port of a group in controller mode: senders and real slaves do not notice them."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import create_connection, socket
from typing import Any

import pytest

from skyroute.broker.replication.log_sender import STRANGERS_MAX
from skyroute.wire.auto_switch import SlaveHello, encode_ack, encode_slave_hello
from skyroute.wire.codes import ResponseCode
from tests.network.broker.calls import send
from tests.support.connections import connection_to
from tests.support.replica_groups import ReplicaGroup, replica_group
from tests.support.waiting import eventually

TOPIC = {"topic": "T", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
OTHER = {"defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}


def connect_raw(group: ReplicaGroup, host: str = "127.0.0.1") -> socket:
    """Connect to the replication port of broker 1 from an address of this machine."""
    return create_connection(("127.0.0.1", group.mode(1).sender.port), 5, source_address=(host, 0))


async def closed_by_peer(sock: socket) -> bool:
    def read() -> bool:
        with suppress(ConnectionResetError):
            while sock.recv(1 << 16):
                pass
        return True

    return await asyncio.to_thread(read)


@pytest.mark.parametrize(
    "sent",
    [
        random.Random(3).randbytes(64),
        encode_ack(5),
        encode_slave_hello(SlaveHello(1)),
        encode_slave_hello(SlaveHello(7)) * 2,
        encode_slave_hello(SlaveHello(7)) + encode_ack((1 << 63) - 1),
        encode_slave_hello(SlaveHello(7)) + b"\0\0\0\2" + b"\xff" * 8,
        b"\0\0\0\1" + b"\xff" * 12,
    ],
    ids=["random", "no hello", "own id", "two hellos", "far", "negative", "negative id"],
)
async def test_a_peer_that_is_no_slave_is_closed(tmp_path: Path, sent: bytes) -> None:
    async with replica_group(tmp_path, 1) as group:
        with connect_raw(group) as sock:
            sock.sendall(sent)
            assert await closed_by_peer(sock)
        await eventually(lambda: group.mode(1).sender.slaves() == [])


async def test_a_send_is_not_acknowledged_by_a_claim_to_have_what_was_never_sent(tmp_path: Path) -> None:
    async with (
        replica_group(tmp_path, 1, all_ack_in_sync_set=False, in_sync_replicas=2, slave_timeout_s=1.0) as group,
        connection_to(group.brokers[1].address) as line,
    ):
        assert (await line.call(17, TOPIC | OTHER)).code == ResponseCode.SUCCESS
        answer = asyncio.create_task(line.call(send()))
        await eventually(lambda: group.log_end(1) > 0)
        end = group.log_end(1)
        with connect_raw(group) as sock:
            sock.sendall(encode_slave_hello(SlaveHello(2)) + encode_ack(end))
            await eventually(lambda: len(group.mode(1).sender.slaves()) == 1)
            assert (await answer).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            # What it gets from now on, it may acknowledge.
            answer = asyncio.create_task(line.call(send()))
            await eventually(lambda: group.log_end(1) > end)
            await asyncio.to_thread(sock.recv, 1 << 16)
            sock.sendall(encode_ack(group.log_end(1)))
            assert (await answer).code == ResponseCode.SUCCESS
        with connect_raw(group) as sock:
            sock.sendall(encode_slave_hello(SlaveHello(2)) + encode_ack(end))
            await eventually(lambda: len(group.mode(1).sender.slaves()) == 1)
            sock.sendall(encode_ack(group.log_end(1) + 1))
            assert await closed_by_peer(sock)


async def test_idle_connections_keep_no_slave_out(tmp_path: Path) -> None:
    async with replica_group(tmp_path, 1) as group:
        with ExitStack() as stack:
            socks = [stack.enter_context(await asyncio.to_thread(connect_raw, group)) for _ in range(2 * STRANGERS_MAX)]
            assert await closed_by_peer(socks[0])
            await group.start(2)
            await group.in_sync(1, 2)


async def test_slaves_of_one_host_leave_places_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyroute.broker.replication.log_sender.SLAVES_MAX", 4)
    async with replica_group(tmp_path, 1) as group:
        with ExitStack() as stack:
            for number in range(7, 11):
                sock = stack.enter_context(await asyncio.to_thread(connect_raw, group, "127.0.0.9"))
                sock.sendall(encode_slave_hello(SlaveHello(number)) + encode_ack(0))
            await eventually(lambda: len(group.mode(1).sender.slaves()) == 4)
            await group.start(2)
            await group.in_sync(1, 2)


async def test_a_slave_keeps_its_place_until_another_one_with_its_id_has_acknowledged(tmp_path: Path) -> None:
    """A slave of another cluster has no common epoch, so it never acknowledges, and connects again and again."""
    async with replica_group(tmp_path, 2) as group:
        slaves = group.mode(1).sender.slaves
        before = [address for address, _, _ in slaves()]
        with connect_raw(group) as sock:
            sock.sendall(encode_slave_hello(SlaveHello(2)))
            assert len(await asyncio.to_thread(sock.recv, 1 << 16)) >= 20
            assert [address for address, _, _ in slaves()] == before
            assert group.mode(2).is_connected
            sock.sendall(encode_ack(0))
            await eventually(lambda: [address for address, _, _ in slaves()] != before)
        await group.in_sync(1, 2)


async def test_a_peer_that_stops_reading_is_closed_although_it_acknowledges(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"all_ack_in_sync_set": False, "ha_silence_s": 1.0, "ha_heartbeat_s": 0.5}
    async with replica_group(tmp_path, 1, **settings) as group, connection_to(group.brokers[1].address) as line:
        assert (await line.call(17, TOPIC | OTHER)).code == ResponseCode.SUCCESS
        with connect_raw(group) as sock:
            sock.setblocking(False)
            sock.send(encode_slave_hello(SlaveHello(7)) + encode_ack(0))
            await eventually(lambda: len(group.mode(1).sender.slaves()) == 1)
            for _ in range(150):
                assert (await line.call(send(body=bytes(100_000)))).code == ResponseCode.SUCCESS

            def is_closed() -> bool:
                with suppress(OSError):
                    sock.send(encode_ack(0))
                return not group.mode(1).sender.slaves()

            await eventually(is_closed)


async def test_a_connection_that_trickles_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skyroute.broker.replication.log_sender.HELLO_S", 1.0)
    async with replica_group(tmp_path, 1) as group:
        with connect_raw(group) as sock:
            reader = asyncio.ensure_future(closed_by_peer(sock))
            for byte in encode_slave_hello(SlaveHello(7))[:15]:
                with suppress(OSError):
                    sock.send(bytes([byte]))
                await asyncio.wait([reader], timeout=0.3)
            assert reader.done()
