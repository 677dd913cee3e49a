"""Enemies at the replication port: senders and real slaves do not notice them."""

import asyncio
import os
import random
import resource
import socket
from contextlib import ExitStack, suppress

import pytest

from skyroute.broker.broker import Broker
from skyroute.broker.replication import slave as slave_module
from skyroute.broker.replication.master import SLAVES_MAX, STRANGERS_MAX
from skyroute.wire.codes import ResponseCode
from skyroute.wire.ha import TRANSFER_HEAD_BYTES, encode_report
from tests.network.broker.calls import send
from tests.network.broker.clusters import Cluster
from tests.network.broker.replicas import FILE_BYTES, caught_up, connect_raw, fill, start_master, start_slave, store_of
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slaves connect again at once."""
    monkeypatch.setattr(slave_module, "RETRY_S", 0.05)


@pytest.fixture
async def master(empty_cluster: Cluster) -> Broker:
    broker = await start_master(empty_cluster)
    await empty_cluster.add_topic("T", 2)
    return broker


async def closed_by_peer(sock: socket.socket) -> bool:
    def read() -> bool:
        try:
            while sock.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True

    return await asyncio.to_thread(read)


@pytest.mark.parametrize(
    "report",
    [encode_report(1 << 62), encode_report((1 << 63) - 1), encode_report(-5), random.Random(3).randbytes(64)],
    ids=["far", "farthest", "negative", "random"],
)
async def test_an_absurd_report_closes_the_connection(
    master: Broker, report: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with connect_raw(master) as sock:
        sock.sendall(report)
        assert await closed_by_peer(sock)
    assert sum(record.getMessage().startswith("slave lost") for record in caplog.records) == 1


async def test_an_acknowledgement_of_bytes_that_were_not_sent_closes_the_connection(
    empty_cluster: Cluster, master: Broker
) -> None:
    await fill(await empty_cluster.line(address=master.address), 3)
    with connect_raw(master) as sock:
        sock.sendall(encode_report(0))
        await asyncio.to_thread(sock.recv, TRANSFER_HEAD_BYTES)
        sock.sendall(encode_report(store_of(master).max_position + 1))
        assert await closed_by_peer(sock)


async def test_a_send_is_not_acknowledged_by_a_claim_to_have_what_was_never_sent(empty_cluster: Cluster) -> None:
    master = await start_master(empty_cluster, broker_role="SYNC_MASTER", in_sync_replicas=2, slave_timeout_s=0.5)
    await empty_cluster.add_topic("T", 2)
    line = await empty_cluster.line(address=master.address)
    answer = asyncio.create_task(line.call(send()))
    await eventually(lambda: store_of(master).max_position > 0)
    with connect_raw(master) as sock:
        sock.sendall(encode_report(store_of(master).max_position))
        await eventually(lambda: len(master.components.ha_master.slaves()) == 1)
        assert (await answer).code == ResponseCode.FLUSH_SLAVE_TIMEOUT


async def test_a_slave_that_connects_again_acknowledges_what_it_got_before(empty_cluster: Cluster) -> None:
    master = await start_master(empty_cluster, broker_role="SYNC_MASTER", in_sync_replicas=2, slave_timeout_s=30)
    await empty_cluster.add_topic("T", 2)
    line = await empty_cluster.line(address=master.address)
    with connect_raw(master) as sock:
        sock.sendall(encode_report(0))
        await eventually(lambda: len(master.components.ha_master.slaves()) == 1)
        answer = asyncio.create_task(line.call(send()))
        await eventually(lambda: store_of(master).max_position > 0)
        end = store_of(master).max_position
        got = 0
        while got < end + TRANSFER_HEAD_BYTES:
            got += len(await asyncio.to_thread(sock.recv, 1 << 16))
    with connect_raw(master) as sock:
        sock.sendall(encode_report(end))
        assert (await answer).code == ResponseCode.SUCCESS


async def test_idle_connections_keep_no_slave_out_and_senders_do_not_notice(
    empty_cluster: Cluster, master: Broker
) -> None:
    with ExitStack() as stack:
        socks = [stack.enter_context(await asyncio.to_thread(connect_raw, master)) for _ in range(2 * STRANGERS_MAX)]
        line = await empty_cluster.line(address=master.address)
        await fill(line, 3)
        assert await closed_by_peer(socks[0])
        slave = await start_slave(empty_cluster)
        await fill(line, 3)
        await caught_up(master, slave)


async def test_a_connection_that_trickles_and_never_reports_is_closed(empty_cluster: Cluster) -> None:
    master = await start_master(empty_cluster, ha_silence_s=0.3)
    with connect_raw(master) as sock:
        loop = asyncio.get_running_loop()
        reader = asyncio.ensure_future(closed_by_peer(sock))
        started = loop.time()
        while not reader.done():
            try:
                sock.send(b"\0")
            except OSError:
                break
            assert loop.time() - started < 10
            await asyncio.wait([reader], timeout=0.25)  # eight bytes would be a report: it takes too long for them
        assert await reader
        assert not master.components.ha_master.slaves()


async def test_slaves_of_one_host_leave_places_for_another(empty_cluster: Cluster, master: Broker) -> None:
    ha_master = master.components.ha_master
    with ExitStack() as stack:
        socks = [
            stack.enter_context(await asyncio.to_thread(connect_raw, master, "127.0.0.9")) for _ in range(SLAVES_MAX)
        ]
        for sock in socks:
            sock.sendall(encode_report(0))
        await eventually(lambda: len(ha_master.slaves()) == SLAVES_MAX)
        slave = await start_slave(empty_cluster)
        await fill(await empty_cluster.line(address=master.address), 3)
        await caught_up(master, slave)
        with connect_raw(master, "127.0.0.9") as one_more:
            one_more.sendall(encode_report(0))
            assert await closed_by_peer(one_more)
        assert slave.components.ha_slave is not None
        assert slave.components.ha_slave.is_connected


@pytest.mark.parametrize("reports", [False, True], ids=["silent", "reporting"])
async def test_a_peer_that_stops_reading_is_closed_and_costs_no_memory(
    empty_cluster: Cluster, *, reports: bool
) -> None:
    master = await start_master(empty_cluster, ha_silence_s=0.5, ha_heartbeat_s=0.5)
    await empty_cluster.add_topic("T", 2)
    line = await empty_cluster.line(address=master.address)
    with connect_raw(master) as sock:
        sock.setblocking(False)
        sock.send(encode_report(0))
        await eventually(lambda: len(master.components.ha_master.slaves()) == 1)
        await fill(line, 200, size=32_000)

        def is_closed() -> bool:
            if reports:
                with suppress(OSError):
                    sock.send(encode_report(0))
            return not master.components.ha_master.slaves()

        await eventually(is_closed)


async def test_a_slave_whose_records_have_expired_is_told_so(
    empty_cluster: Cluster, master: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(await empty_cluster.line(address=master.address), 200)
    master.config.ha_flow_control, master.config.ha_bytes_per_s = True, 1
    with connect_raw(master) as sock:
        sock.sendall(encode_report(1))
        await eventually(lambda: len(master.components.ha_master.slaves()) == 1)
        store_of(master).delete_expired(1 << 60, is_due=True, disk_used=0.1)
        assert store_of(master).min_position > FILE_BYTES
        assert await closed_by_peer(sock)
    assert "has no record at" in caplog.text


@pytest.mark.usefixtures("expects_errors")  # of asyncio, once in a second
async def test_no_free_descriptor_delays_slaves_and_nothing_else(empty_cluster: Cluster, master: Broker) -> None:
    line = await empty_cluster.line(address=master.address)
    await fill(line, 2)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as sock:
        newest = os.dup(0)
        os.close(newest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (newest, limits[1]))
        try:
            sock.connect(("127.0.0.1", master.components.ha_master.port))
            await fill(line, 20)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    slave = await start_slave(empty_cluster)
    await caught_up(master, slave)
