"""Masters that lie: a slave refuses them with the reason, and its log stays as it is."""

import asyncio
from contextlib import suppress
from struct import Struct

import pytest

from skyroute.broker.broker import Broker
from skyroute.broker.replication import slave as slave_module
from skyroute.broker.replication.master_line import HEARTBEATS_MAX
from skyroute.wire.codes import RequestCode
from skyroute.wire.ha import TRANSFER_BYTES_MAX, encode_transfer_head
from tests.network.broker.clusters import Cluster
from tests.network.broker.replicas import caught_up, checksum, fill, slave_of, start_master, start_slave, store_of
from tests.support.fake_broker import Reply, fake_cluster
from tests.support.raw import Request
from tests.support.waiting import eventually

_HEAD = Struct(">qi")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slaves connect again at once."""
    monkeypatch.setattr(slave_module, "RETRY_S", 0.05)


async def start_filled_slave(cluster: Cluster) -> Broker:
    """Start a slave with some messages, whose master is gone."""
    master = await start_master(cluster)
    await cluster.add_topic("T", 2)
    await fill(await cluster.line(address=master.address), 20)
    slave = await start_slave(cluster)
    await caught_up(master, slave)
    await eventually(lambda: slave.components.topics.get("T") is not None)
    await cluster.stop(slave)
    await cluster.stop(master)
    return slave


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ("huge", "a transfer has 4194293 bytes"),
        ("negative", "a transfer has -1 bytes"),
        ("ahead", "this slave's log ends at"),
        ("regression", "this slave's log ends at"),
        ("far", "this slave's log ends at"),
        ("below zero", "at position -8"),
        ("heartbeats", "heartbeats at once"),
    ],
)
async def test_a_slave_refuses_a_lying_master_and_keeps_its_log(
    empty_cluster: Cluster, caplog: pytest.LogCaptureFixture, lie: str, reason: str
) -> None:
    slave = await start_filled_slave(empty_cluster)
    sessions = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sessions
        sessions += 1
        end = int.from_bytes(await reader.readexactly(8), "big")
        writer.write(
            {
                "huge": _HEAD.pack(end, TRANSFER_BYTES_MAX + 1),
                "negative": _HEAD.pack(end, -1),
                "ahead": encode_transfer_head(end + 4096, 5) + b"xxxxx",
                "regression": encode_transfer_head(0, 5) + b"xxxxx",
                "far": encode_transfer_head((1 << 63) - 1, 5) + b"xxxxx",
                "below zero": _HEAD.pack(-8, 5) + b"xxxxx",
                "heartbeats": encode_transfer_head(end, 0) * (20 * HEARTBEATS_MAX),
            }[lie]
        )
        with suppress(ConnectionResetError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        slave = await start_slave(empty_cluster, ha_master_address=f"127.0.0.1:{port}")
        store = store_of(slave)
        end = store.max_position
        before = checksum(store, 0, end)
        await eventually(lambda: sessions >= 2, "the slave tries again")
        assert reason in caplog.text
        assert store.max_position == end
        assert checksum(store, 0, end) == before
    finally:
        server.close()
        await empty_cluster.stop(slave)


async def test_bytes_that_are_no_records_do_not_stop_a_slave(empty_cluster: Cluster) -> None:
    slave = await start_filled_slave(empty_cluster)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = int.from_bytes(await reader.readexactly(8), "big")
        writer.write(encode_transfer_head(end, 4000) + b"\xda\xa3\x20\xa7" * 1000)
        with suppress(ConnectionResetError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        slave = await start_slave(empty_cluster, ha_master_address=f"127.0.0.1:{port}", slave_read_enabled=True)
        end = store_of(slave).whole_end
        await eventually(lambda: store_of(slave).max_position == end + 4000)
        assert slave_of(slave).is_connected
        assert store_of(slave).max_offset("T", 0) == 10
    finally:
        server.close()
        await empty_cluster.stop(slave)


async def test_tables_of_a_lying_master_leave_those_of_the_slave_as_they_are(
    empty_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    slave = await start_filled_slave(empty_cluster)
    async with fake_cluster(topics={"T": 1}) as fake:
        for code in (
            *(RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG),
            *(RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET),
            *(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, RequestCode.GET_TIMER_METRICS),
        ):
            fake.on(code, lambda *_: Reply(body=b"[1]"))
        slave = await start_slave(empty_cluster)
        slave_of(slave).set_master(fake.broker().address, None)
        sync = slave.components.metadata_sync
        assert sync is not None
        for what in ("topics", "groups", "offsets", "delay offsets", "request modes", "timer metrics"):
            await eventually(lambda what=what: f"not synchronized what={what} " in caplog.text, what)  # type: ignore[misc]
        assert slave.components.topics.get("T") is not None
        await empty_cluster.stop(slave)


async def test_a_slave_gives_the_timer_metrics_of_its_master(empty_cluster: Cluster) -> None:
    master = await start_master(empty_cluster)
    slave = await start_slave(empty_cluster)
    sync = slave.components.metadata_sync
    assert sync is not None
    await eventually(lambda: sync.timer_metrics is not None)
    query = Request(RequestCode.GET_TIMER_METRICS, {})
    theirs = await (await empty_cluster.line(address=master.address)).call(query)
    assert (
        (await (await empty_cluster.line(address=slave.address)).call(query)).body == theirs.body == sync.timer_metrics
    )
