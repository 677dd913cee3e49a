"""Start, stop, kill and restart of a broker, and the data that survives each."""

import asyncio
import json
import shutil
import socket
import ssl
from pathlib import Path

import pytest
import trustme

from skyroute.broker.broker import Broker
from skyroute.broker.store.errors import StoreDamagedError, StoreLockedError
from skyroute.errors import SkyrouteError
from skyroute.files.errors import StorageError
from skyroute.remoting.errors import BindError
from skyroute.remoting.tls_settings import TlsClientSettings, TlsMode, TlsSettings
from skyroute.wire.codes import ResponseCode
from tests.network.broker.calls import SUBSCRIPTION, SUSPEND, found_bodies, heartbeat, place, pull, send
from tests.network.broker.clusters import Cluster
from tests.network.certificates import Files, client_of
from tests.support.connections import AsyncConnection, connection_to
from tests.support.disks import BlockingDisk, FillingDisk, FullDisk, NoSyncDisk
from tests.support.raw import ClosedError
from tests.support.waiting import eventually

STOP_S = 4.0
"""Time limit of a stop that waits for no client, also on a busy machine."""


def free_pair() -> int:
    """A free port whose fast port (two below) is free as well."""
    while True:
        with socket.socket() as upper, socket.socket() as lower:
            upper.bind(("127.0.0.1", 0))
            port: int = upper.getsockname()[1]
            try:
                lower.bind(("127.0.0.1", port - 2))
            except OSError:
                continue
            return port


# ---------------------------------------------------------------------------------------------------- what outlives it


@pytest.mark.parametrize("by_force", [False, True])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_acknowledged_messages_survive_a_broker_restart(
    empty_cluster: Cluster, flush: str, by_force: bool
) -> None:
    cluster = empty_cluster
    await cluster.start(flush_disk_type=flush)
    line = await cluster.line()
    assert (await line.call(send("Made", b"1", queue_id=3))).code == ResponseCode.SUCCESS
    assert (await line.call(send("Made", b"later", properties={"DELAY": "2"}))).code == ResponseCode.SUCCESS
    assert (
        await line.call(send("Made", b"at its time", properties={"TIMER_DELAY_SEC": "5"}))
    ).code == ResponseCode.SUCCESS
    group = {"groupName": "g", "retryMaxTimes": 7, "consumeEnable": True}
    assert (await line.call(200, body=json.dumps(group).encode())).code == ResponseCode.SUCCESS
    order = {"topic": "Made", "group": "g", "timestamp": "-1", "isForce": "true"}
    assert (await line.call(222, order)).code == ResponseCode.SUCCESS  # a reset is saved before the response
    await (cluster.kill() if by_force else cluster.stop())
    broker = await cluster.start(flush_disk_type=flush)
    components = broker.components
    assert components.topics.get("Made") is not None
    assert cluster.has_route("Made")
    kept = components.groups.get("g")
    assert kept is not None
    assert kept.retry_times_max == 7
    assert components.offsets.of("g", "Made") == {0: 0, 1: 0, 2: 0, 3: 1}
    assert cluster.stored("Made", 3) == [b"1"]
    cluster.clock.advance(6)
    await (cluster.kill() if by_force else cluster.stop())
    await cluster.start(flush_disk_type=flush)
    await eventually(lambda: sorted(cluster.stored("Made", 0)) == [b"at its time", b"later"])
    assert cluster.stored("Made", 3) == [b"1"]


async def test_committed_offsets_survive_a_stop(cluster: Cluster) -> None:
    await cluster.add_topic("T")
    line = await cluster.line()
    await line.call(heartbeat())
    for offset in range(1, 4):
        update = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": str(offset)}
        assert (await line.call(15, update)).code == ResponseCode.SUCCESS
    await cluster.stop()
    await cluster.start()
    assert cluster.broker.components.offsets.get("g", "T", 0) == 3


async def test_a_killed_broker_assigns_no_queue_offset_twice(cluster: Cluster) -> None:
    await cluster.add_topic("T")
    for start in range(0, 9, 3):
        line = await cluster.line()
        for number in range(start, start + 3):
            answer = await line.call(send(body=b"%d" % number))
            assert (answer.code, answer.fields["queueOffset"]) == (ResponseCode.SUCCESS, str(number))
        await cluster.kill()
        await cluster.start()
    assert cluster.stored() == [b"%d" % number for number in range(9)]


async def test_messages_of_a_topic_deleted_before_a_crash_stay_deleted(cluster: Cluster) -> None:
    line = await cluster.line()
    await line.call(send("Made"))
    assert (await line.call(215, {"topic": "Made"})).code == ResponseCode.SUCCESS
    await cluster.kill()
    await cluster.start()
    assert "Made" not in cluster.broker.components.store.topics()


# ----------------------------------------------------------------------------------------------- what stands in its way


async def test_a_port_in_use_is_reported_and_the_store_is_not_opened(empty_cluster: Cluster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BindError, match=f"Failed to bind to 127.0.0.1:{port}: Address already in use"):
            await empty_cluster.start(listen_port=port)
    assert not (empty_cluster.folder / "broker-a").exists()


async def test_a_store_opens_in_one_broker_at_a_time(cluster: Cluster) -> None:
    with pytest.raises(StoreLockedError, match="is in use by another broker"):
        await cluster.start()
    line = await cluster.line()
    assert (await line.call(send("Made"))).code == ResponseCode.SUCCESS
    await cluster.stop()
    await cluster.start()


@pytest.mark.parametrize("name", ["topics", "subscriptionGroup", "consumerOffset", "delayOffset"])
@pytest.mark.parametrize("damage", [b"{not json", b"[]", b'{"offsetTable":[1],"topicConfigTable":7}'])
async def test_a_damaged_file_is_named_in_the_error_and_not_changed(
    empty_cluster: Cluster, name: str, damage: bytes
) -> None:
    cluster = empty_cluster
    await cluster.start()
    await cluster.stop()
    folder = cluster.folder / "broker-a" / "config"
    for path in (folder / f"{name}.json", folder / f"{name}.json.bak"):
        path.write_bytes(damage)
    with pytest.raises(StoreDamagedError):
        await cluster.start()
    assert (folder / f"{name}.json.bak").read_bytes() == damage
    for path in (folder / f"{name}.json", folder / f"{name}.json.bak"):
        path.unlink(missing_ok=True)
    await cluster.start()  # the failed start released the lock and the port


async def test_a_damaged_file_is_restored_from_its_backup(cluster: Cluster) -> None:
    await cluster.add_topic("First")
    await cluster.add_topic("Second")
    await cluster.stop()
    (cluster.folder / "broker-a" / "config" / "topics.json").write_bytes(b'{"topicConf')
    await cluster.start()
    assert cluster.broker.components.topics.get("First") is not None


@pytest.mark.parametrize("by_force", [False, True])
@pytest.mark.parametrize("damage", ["missing", "backup", "restored"])
async def test_topics_missing_in_the_table_keep_their_messages(
    empty_cluster: Cluster, damage: str, by_force: bool
) -> None:
    cluster = empty_cluster
    await cluster.start()
    line = await cluster.line()
    assert (await line.call(send("First", b"1", queue_id=3))).code == ResponseCode.SUCCESS
    assert (await line.call(send("Second", b"2", queue_id=1))).code == ResponseCode.SUCCESS
    cluster.broker.components.store.flush()
    await (cluster.kill() if by_force else cluster.stop())
    table = cluster.folder / "broker-a" / "config" / "topics.json"
    backup = table.with_name("topics.json.bak")
    whole = table.read_bytes()
    table.unlink()
    if damage == "missing":
        backup.unlink()
    if damage == "restored":  # an old copy of it
        backup.rename(table)
    await cluster.start()
    components = cluster.broker.components
    assert components.store.max_offset("First", 3) == components.store.max_offset("Second", 1) == 1
    second = components.topics.get("Second")
    if damage == "restored":
        assert second is None
    else:
        assert second is not None
        assert second.write_queues == second.read_queues == 2
    await cluster.stop()
    table.write_bytes(whole)
    await cluster.start()
    line = await cluster.line()
    assert found_bodies(await line.call(pull("Second", queue_id=1))) == [b"2"]
    assert found_bodies(await line.call(pull("First", queue_id=3))) == [b"1"]


async def test_a_topic_deleted_before_a_crash_stays_deleted(empty_cluster: Cluster) -> None:
    cluster = empty_cluster
    await cluster.start()
    line = await cluster.line()
    assert (await line.call(send("Gone", b"1"))).code == ResponseCode.SUCCESS
    assert (await line.call(215, {"topic": "Gone"})).code == ResponseCode.SUCCESS
    await cluster.kill()
    await cluster.start()
    assert cluster.broker.components.store.topics() == set()


async def test_damage_of_the_log_shows_in_runtime_info_and_metrics(empty_cluster: Cluster) -> None:
    cluster = empty_cluster
    await cluster.start()
    line = await cluster.line()
    for number in range(3):
        assert (await line.call(send("Made", b"%d" % number * 50))).code == ResponseCode.SUCCESS
    await cluster.stop()
    store = cluster.folder / "broker-a"
    (log,) = (store / "commitlog").iterdir()
    content = bytearray(log.read_bytes())
    content[content.index(b"1" * 50)] ^= 1
    log.write_bytes(content)
    shutil.rmtree(store / "index")  # so that the next start reads the whole log
    await cluster.start()
    state = await (await cluster.admin()).broker_state(cluster.broker.address)
    damage = cluster.broker.components.store.damage
    assert (damage.count, damage.cuts) == (1, ())
    assert state["commitLogDamagedRanges"] == "1"
    assert state["commitLogDamagedBytes"] == str(damage.bytes)
    assert state["commitLogCutBytes"] == "0"
    line = await cluster.line()
    assert found_bodies(await line.call(pull("Made"))) == [b"0" * 50, b"2" * 50]


async def test_file_sizes_that_differ_from_the_store_are_refused_and_the_store_is_closed(cluster: Cluster) -> None:
    await (await cluster.line()).call(send("Made"))
    await cluster.stop()
    with pytest.raises(StorageError):
        await cluster.start(commit_log_file_bytes=4096)
    await cluster.start()
    assert cluster.stored("Made") == [b"body"]


async def test_missing_certificates_are_reported_and_the_store_is_closed(empty_cluster: Cluster) -> None:
    tls = TlsSettings(
        mode=TlsMode.DISABLED,
        test_mode=False,
        client=TlsClientSettings(enabled=True, trust_cert_path="nowhere.pem", auth_server=True),
    )
    with pytest.raises(SkyrouteError, match=r"nowhere\.pem"):
        await empty_cluster.start(tls=tls)
    await empty_cluster.start()


async def test_new_certificates_are_loaded_without_a_restart(empty_cluster: Cluster, tmp_path: Path) -> None:
    first, second = trustme.CA(), trustme.CA()
    files = Files(tmp_path / "tls", first)
    await empty_cluster.start(tls=files.settings())

    async def serves(authority: trustme.CA) -> bool:
        try:
            async with connection_to(empty_cluster.broker.address, tls=client_of(authority)) as line:
                return (await line.call(heartbeat())).code == ResponseCode.SUCCESS
        except ssl.SSLError:
            return False

    assert [await serves(first), await serves(second)] == [True, False]
    files.renew(second)
    await eventually(lambda: serves(second))


# ------------------------------------------------------------------------------------------------------- a second port


async def test_the_fast_port_accepts_sends_and_refuses_pulls(empty_cluster: Cluster) -> None:
    port = free_pair()
    await empty_cluster.start(listen_port=port)
    line = await empty_cluster.line(address=f"127.0.0.1:{port - 2}")
    assert (await line.call(send("Made"))).code == ResponseCode.SUCCESS
    for code in (11, 361):
        answer = await line.call(pull("Made", code=code))
        assert (answer.code, answer.remark) == (
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {code} not supported",
        )
    assert (await line.call(heartbeat())).code == ResponseCode.SUCCESS
    line.abort()
    await eventually(lambda: empty_cluster.broker.components.clients.consumers("g") is None)
    await empty_cluster.stop()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port - 2)


async def test_a_broker_without_the_fast_port_serves_on_its_main_port(
    empty_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_pair()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port - 2))
        taken.listen()
        await empty_cluster.start(listen_port=port)
    assert f"fast port not opened port={port - 2}" in caplog.text
    assert (await (await empty_cluster.line()).call(send("Made"))).code == ResponseCode.SUCCESS


# ----------------------------------------------------------------------------------------------------------- its end


async def test_a_stop_does_not_wait_for_suspended_pulls(cluster: Cluster) -> None:
    await cluster.add_topic("T")
    lines = [await cluster.line() for _ in range(3)]
    for line in lines:
        await line.send(pull(flag=SUSPEND | SUBSCRIPTION))
    await eventually(lambda: len(cluster.broker.components.long_polling) == 3)
    async with asyncio.timeout(STOP_S):
        await cluster.stop()
    for line in lines:
        with pytest.raises(ClosedError):
            await line.receive()


async def test_messages_accepted_before_a_stop_are_stored(cluster: Cluster) -> None:
    await cluster.add_topic("T")
    line = await cluster.line()
    sent = [await line.send(send(body=b"%d" % number)) for number in range(200)]
    assert (await line.answer(sent[0])).code == ResponseCode.SUCCESS
    async with asyncio.timeout(STOP_S):
        await cluster.stop()
    answered = await _answered(line)
    await cluster.start()
    stored = cluster.stored()
    assert stored == [b"%d" % number for number in range(len(stored))]
    assert len(stored) > answered


async def _answered(line: AsyncConnection) -> int:
    await line.until_closed()
    return sum(1 for stray in line.strays if stray.is_reply and stray.code == ResponseCode.SUCCESS)


async def test_sends_that_wait_for_a_flush_get_a_response_before_a_stop_ends(empty_cluster: Cluster) -> None:
    cluster, disk = empty_cluster, BlockingDisk()
    broker = await cluster.start(disk=disk, flush_disk_type="SYNC_FLUSH")
    await cluster.add_topic("T")
    line = await cluster.line()
    disk.block()
    sent = await line.send(send(body=b"1"))
    await eventually(lambda: broker.components.store.max_position > 0)
    stopping = asyncio.ensure_future(cluster.stop())
    await eventually(lambda: not cluster.has_route("T"))
    disk.unblock()
    async with asyncio.timeout(STOP_S):
        await stopping
    assert (await line.answer(sent)).code == ResponseCode.SUCCESS
    await cluster.start()
    assert cluster.stored() == [b"1"]


async def test_a_broker_can_be_stopped_after_a_kill_and_twice(cluster: Cluster) -> None:
    broker = cluster.broker
    await cluster.kill()
    await broker.stop()
    await broker.kill()
    await cluster.start()
    broker = cluster.broker
    await cluster.stop()
    await broker.stop()
    await broker.kill()
    assert repr(broker) == "<Broker broker-a not running>"


async def test_a_broker_that_never_started_can_be_stopped(empty_cluster: Cluster) -> None:
    broker = Broker(empty_cluster.config())
    assert repr(broker) == "<Broker broker-a not running>"
    await broker.stop()
    await broker.kill()


async def test_a_restarted_broker_keeps_its_routes_and_a_stopped_one_loses_them(cluster: Cluster) -> None:
    await cluster.add_topic("T")
    await cluster.kill()
    again = await cluster.start()
    assert cluster.has_route("T")
    await cluster.stop(again)
    assert not cluster.has_route("T")


class SlowJson(NoSyncDisk):
    """Blocks the first replacement of a table until the test releases it."""

    def __init__(self) -> None:
        self.stuck = BlockingDisk()
        self.replaced: list[str] = []

    def replace(self, source: Path, target: Path) -> None:
        if target.name == "consumerOffset.json":
            self.stuck.sync(0)
            self.replaced.append(source.read_text())
        super().replace(source, target)


@pytest.mark.parametrize("by_force", [False, True])
async def test_a_late_write_of_a_table_does_not_overwrite_a_newer_one(empty_cluster: Cluster, by_force: bool) -> None:
    cluster, disk = empty_cluster, SlowJson()
    broker = await cluster.start(disk=disk)
    offsets = broker.components.offsets
    disk.stuck.block()
    offsets.commit("g", "T", 0, 1)
    saving = asyncio.ensure_future(offsets.table_file.save())
    await eventually((cluster.folder / "broker-a" / "config" / "consumerOffset.json.tmp").exists)
    offsets.commit("g", "T", 0, 2)
    ending = asyncio.ensure_future(cluster.kill() if by_force else cluster.stop())
    await eventually(lambda: broker._components is None)
    disk.stuck.unblock()
    await ending
    await saving
    contents = [text.partition('"offsetTable":')[2] for text in disk.replaced]
    assert contents == ['{"T@g":{"0":1}}}', '{"T@g":{"0":2}}}'][: 1 if by_force else 2]
    again = await cluster.start()
    assert again.components.offsets.get("g", "T", 0) == (1 if by_force else 2)


async def test_a_table_that_cannot_be_saved_does_not_stop_the_others(cluster: Cluster) -> None:
    class NoTopics(NoSyncDisk):
        def replace(self, source: Path, target: Path) -> None:
            if target.name == "topics.json":
                raise StorageError("not this one")
            super().replace(source, target)

    await cluster.stop()
    broker = await cluster.start(disk=NoTopics())
    broker.components.topics.table_file.touch()
    broker.components.offsets.commit("g", "T", 0, 2)
    cluster.brokers.remove(broker)
    with pytest.raises(StorageError, match="not this one"):
        await broker.stop()
    again = await cluster.start()
    assert again.components.offsets.get("g", "T", 0) == 2


# ---------------------------------------------------------------------------------------------------------- a full disk


@pytest.mark.usefixtures("expects_errors")
async def test_a_full_disk_refuses_sends_and_serves_everything_else(
    empty_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, disk = empty_cluster, FillingDisk()
    await cluster.start(disk=disk)
    await cluster.add_topic("T")
    line = await cluster.line()
    await line.call(send(body=b"1"))
    disk.used = 0.95
    cluster.broker.components.retention.clean()
    for request in (send(), send(code=10), send(properties={"DELAY": "1"}), send("%RETRY%g")):
        answer = await line.call(request)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (answer.remark or "").startswith("service not available now.")
        assert "disk is full [0.95]" in (answer.remark or "")
    assert (await line.call(heartbeat())).code == ResponseCode.SUCCESS
    answer = await line.call(pull())
    assert (found_bodies(answer), place(answer)) == ([b"1"], [1, 0, 1, 0])
    disk.used = 0.5
    cluster.broker.components.retention.clean()
    assert (await line.call(send(body=b"2"))).code == ResponseCode.SUCCESS
    assert "disk full, messages are refused used_percent=95" in caplog.text
    assert "disk has room again" in caplog.text


async def test_a_full_disk_refuses_messages_until_space_is_freed(empty_cluster: Cluster) -> None:
    cluster, disk = empty_cluster, FullDisk()
    await cluster.start(disk=disk, commit_log_file_bytes=1 << 16)
    await cluster.add_topic("T")
    line = await cluster.line()
    taken = 0
    disk.is_full = True
    codes: list[int] = []
    while 14 not in codes:
        codes.append((await line.call(send(body=bytes(9_000)))).code)
        taken += codes[-1] == 0
        assert len(codes) < 20
    assert set(codes[:-1]) <= {0}
    assert len(await _pulled(line)) == taken
    disk.is_full = False
    assert (await line.call(send(body=b"room"))).code == ResponseCode.SUCCESS
    assert (await _pulled(line))[-1] == b"room"


async def _pulled(line: AsyncConnection) -> list[bytes]:
    return found_bodies(await line.call(pull(count=100, maxMsgBytes=str(1 << 22))))


# ------------------------------------------------------------------------------------------------------------ settings


async def test_live_settings_change_at_once_and_start_only_settings_are_refused(cluster: Cluster) -> None:
    line = await cluster.line()
    late = send("T", properties={"TIMER_DELAY_SEC": "20"})
    await cluster.add_topic("T")
    changes = b"timerMaxDelaySec=10\nsyncFlushTimeout=7\nmaxMessageSize=100\n"
    refused = await line.call(25, body=changes + b"regionId=elsewhere\n")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "regionId=elsewhere is refused, it stays DefaultRegion" in (refused.remark or "")
    assert (await line.call(late)).code == ResponseCode.SUCCESS, "a refused update changes nothing"
    assert (await line.call(25, body=changes)).code == ResponseCode.SUCCESS
    assert (await line.call(late)).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await line.call(send("T", bytes(101)))).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await line.call(send("T"))).fields["MSG_REGION"] == "DefaultRegion"
    assert cluster.broker.components.flushing._timeout_s() == 0.007
    assert (await line.call(25, body=b"timerMaxDelaySec=30\n")).code == ResponseCode.SUCCESS
    assert (await line.call(late)).code == ResponseCode.SUCCESS
