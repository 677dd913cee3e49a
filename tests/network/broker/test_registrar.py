import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from skyroute.broker.cluster.own_registration import COMPRESS_FROM_BYTES, IN_THREAD_FROM
from skyroute.broker.cluster.registrar import ANNOUNCED_MAX, Registrar
from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.topics import Topics
from skyroute.remoting.tls import client_context
from skyroute.remoting.tls_settings import TlsClientSettings
from skyroute.routing.topology import Permission
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from tests.network.cluster import addresses, permissions, topics
from tests.support.clock import ManualClock
from tests.support.connections import connection_to
from tests.support.raw import Command, Registration, Request, Topic, decode, encode
from tests.support.servers import Running, running
from tests.support.waiting import eventually

CLUSTER = "DefaultCluster"
BROKER = "broker-a"
ADDRESS = "10.0.0.1:10911"
REGISTER, GOODBYE, QUERY_VERSION, HEARTBEAT, REGISTER_TOPIC = 103, 104, 322, 904, 217
CLOSED_PORT = "127.0.0.1:1"


@dataclass(slots=True)
class Broker:
    """The registrar of a broker, with its topics and clock."""

    registrar: Registrar
    topics: Topics
    config: BrokerConfig
    clock: ManualClock

    async def create(self, *names: str) -> None:
        created = [self.topics.create(TopicConfig(name, 4, 4)) for name in names]
        await self.registrar.announce(created)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock, and start what is due."""
        self.registrar.tick(self.clock.advance(seconds))


@asynccontextmanager
async def broker_at(*name_servers: str, folder: Path, tls: Any = None, **settings: Any) -> AsyncIterator[Broker]:
    """A started registrar, stopped at the end."""
    config = BrokerConfig(broker_name=BROKER, store_path=str(folder / "store"), **settings)
    clock = ManualClock()
    table = Topics(JsonFile(folder / "topics.json"), config, lambda: int(clock.wall() * 1000))
    identity = Identity(CLUSTER, BROKER, 0, ADDRESS, raw_store_host=bytes(8))
    registrar = Registrar(name_servers, identity, table, config, clock, tls)
    await registrar.start()
    try:
        yield Broker(registrar, table, config, clock)
    finally:
        await registrar.stop()


class FakeNameServer:
    """Records requests; responds to none, or only to registrations as a 4.x name server does."""

    def __init__(self, *, accepts_registrations: bool) -> None:
        self.accepts_registrations = accepts_registrations
        self.received: list[Command] = []
        self.address = ""
        self._more = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                length = int.from_bytes(await reader.readexactly(4))
                command = decode(await reader.readexactly(length))
                self.received.append(command)
                self._more.set()
                if self.accepts_registrations and command.code in (REGISTER, REGISTER_TOPIC):
                    known = command.code == REGISTER
                    code = ResponseCode.SUCCESS if known else ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                    writer.write(encode(Request(code), command.opaque, flag=1))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def until_received(self, condition: Callable[[list[Command]], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition(self.received):
                self._more.clear()
                await self._more.wait()

    def disconnect(self) -> None:
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def fake_name_server(*, accepts_registrations: bool = False) -> AsyncIterator[FakeNameServer]:
    fake = FakeNameServer(accepts_registrations=accepts_registrations)
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    fake.address = f"{host}:{port}"
    try:
        yield fake
    finally:
        fake.disconnect()
        server.close()


async def until_registered(server: Running, topic: str = BROKER) -> None:
    """Wait until a name server has a route for one of the broker's topics."""
    async with asyncio.timeout(10), connection_to(server.address) as line:
        while not await addresses(line, topic):
            pass


async def test_a_started_broker_is_registered_with_all_its_topics(nameserver: Running, tmp_path: Path) -> None:
    async with broker_at(nameserver.address, folder=tmp_path) as broker, connection_to(nameserver.address) as line:
        assert await addresses(line, "TBW102") == {BROKER: {"0": ADDRESS}}
        assert await topics(line) == sorted(broker.topics.all())


async def test_a_stopping_broker_unregisters(nameserver: Running, tmp_path: Path) -> None:
    async with connection_to(nameserver.address) as line:
        async with broker_at(nameserver.address, folder=tmp_path):
            assert await topics(line) != []
        assert await topics(line) == []


async def test_a_new_topic_has_a_route_when_the_announcement_returns(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "one") as one,
        running(tmp_path / "two") as two,
        broker_at(one.address, two.address, folder=tmp_path) as broker,
    ):
        await broker.create("Orders")
        for server in (one, two):
            async with connection_to(server.address) as line:
                assert await addresses(line, "Orders") == {BROKER: {"0": ADDRESS}}


async def test_a_name_server_that_is_down_delays_no_other_and_is_registered_at_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path / "one") as one:
        async with running(tmp_path / "two") as two:
            port = two.server.config.listen_port
        # The port is closed from here on.
        async with broker_at(one.address, two.address, folder=tmp_path) as broker:
            assert "registration failed" in caplog.text
            await broker.create("Orders")
            async with running(tmp_path / "two", listen_port=port) as two:
                broker.pass_time(1.0)
                await until_registered(two, "Orders")


async def test_failed_registrations_are_retried_with_backoff_and_logged_once(
    nameserver: Running, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with broker_at(nameserver.address, CLOSED_PORT, folder=tmp_path) as broker:
        link = broker.registrar._name_servers[1]
        waits = []
        for _ in range(8):
            waits.append(link.due_at - broker.clock.monotonic())
            attempt = link.want()
            await attempt
        assert waits == [1, 2, 4, 8, 16, 30, 30, 30]
    assert caplog.text.count("registration failed") == 1


async def test_a_name_server_that_hangs_delays_announcements_briefly(nameserver: Running, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with (
        fake_name_server() as fake,
        broker_at(fake.address, nameserver.address, folder=tmp_path) as broker,
    ):
        await until_registered(nameserver)
        begun_at = loop.time()
        for number in range(20):
            await broker.create(f"Orders{number}")
        assert loop.time() - begun_at < 1.0
        async with connection_to(nameserver.address) as line:
            assert await addresses(line, "Orders19")


async def test_an_announcement_waits_once_for_a_name_server_that_begins_to_hang(
    nameserver: Running, tmp_path: Path
) -> None:
    loop = asyncio.get_running_loop()
    async with (
        fake_name_server(accepts_registrations=True) as fake,
        broker_at(fake.address, nameserver.address, folder=tmp_path) as broker,
    ):
        fake.accepts_registrations = False
        begun_at = loop.time()
        for number in range(20):
            await broker.create(f"Orders{number}")
        assert loop.time() - begun_at < 3.0


async def test_a_restarted_name_server_gets_a_full_registration(tmp_path: Path) -> None:
    async with running(tmp_path / "ns") as first:
        port = first.server.config.listen_port
        async with broker_at(first.address, folder=tmp_path) as broker:
            await broker.create("Orders")
            channel = broker.registrar._name_servers[0].channel
            assert channel is not None
            await first.server.stop()
            await channel.ended
            async with running(tmp_path / "ns", listen_port=port) as second:
                broker.pass_time(1.0)
                await until_registered(second, "Orders")


async def test_a_name_server_that_lost_the_broker_gets_a_full_registration(nameserver: Running, tmp_path: Path) -> None:
    async with broker_at(nameserver.address, folder=tmp_path) as broker:
        nameserver.server.table.unregister(CLUSTER, ADDRESS, BROKER, 0)
        await broker.create("Orders")
        async with connection_to(nameserver.address) as line:
            assert await topics(line) == sorted(broker.topics.all())


async def test_the_broker_registers_again_before_its_lease_ends(nameserver: Running, tmp_path: Path) -> None:
    async with broker_at(nameserver.address, folder=tmp_path) as broker:
        for _ in range(6):
            nameserver.pass_time(30.0)
            broker.pass_time(30.0)
            await broker.registrar.register()
        async with connection_to(nameserver.address) as line:
            assert await addresses(line, BROKER)


@pytest.mark.parametrize(("period_ms", "period_s"), [(30_000, 30), (1, 10), (900_000, 60)])
async def test_the_registration_is_repeated_after_ten_seconds_and_then_at_the_bounded_interval(
    tmp_path: Path, period_ms: int, period_s: int
) -> None:
    async with (
        fake_name_server(accepts_registrations=True) as fake,
        broker_at(fake.address, folder=tmp_path, registration_interval_s=period_ms / 1000) as broker,
    ):
        link = broker.registrar._name_servers[0]
        for count, wait_s in enumerate((10, period_s, period_s), 2):
            broker.pass_time(wait_s - 1)
            assert not link.all_wanted
            broker.pass_time(1)
            await eventually(lambda: not (link.all_wanted or link.busy))
            assert [command.code for command in fake.received] == [REGISTER] * count


async def test_a_new_topic_does_not_delay_the_next_full_registration(nameserver: Running, tmp_path: Path) -> None:
    async with broker_at(nameserver.address, folder=tmp_path) as broker:
        due_at = broker.registrar._name_servers[0].due_at
        broker.clock.advance(5.0)
        await broker.create("Orders")
        assert broker.registrar._name_servers[0].due_at == due_at


async def test_the_broker_registers_an_empty_ha_address(tmp_path: Path) -> None:
    async with fake_name_server(accepts_registrations=True) as server, broker_at(server.address, folder=tmp_path):
        assert server.received[0].fields["haServerAddr"] == ""


async def test_a_slave_of_a_broker_without_an_ha_address_gets_none(nameserver: Running, tmp_path: Path) -> None:
    slave = Registration(CLUSTER, BROKER, "10.0.0.2:10911", (Topic("TopicA"), Topic("TopicB")), broker_id=1)
    async with broker_at(nameserver.address, folder=tmp_path), connection_to(nameserver.address) as line:
        assert (await line.call(slave.request)).fields == {"masterAddr": ADDRESS}


@pytest.mark.parametrize("broker_permission", [6, 4])
async def test_a_registration_has_all_settings_of_a_topic(tmp_path: Path, broker_permission: int) -> None:
    orders = TopicConfig("Orders", 4, 2, 6, "MULTI_TAG", 1, ordered=True, attributes={"message.type": "FIFO"})
    async with (
        fake_name_server(accepts_registrations=True) as fake,
        broker_at(fake.address, folder=tmp_path, broker_permission=broker_permission) as broker,
    ):
        broker.topics.put(orders)
        await broker.registrar.announce([orders])
        await broker.registrar.register()
        for request in fake.received[1:3]:
            assert json.loads(request.body)["topicConfigSerializeWrapper"]["topicConfigTable"]["Orders"] == {
                **{"topicName": "Orders", "readQueueNums": 4, "writeQueueNums": 2, "perm": broker_permission},
                **{"topicFilterType": "MULTI_TAG", "topicSysFlag": 1, "order": True},
                "attributes": {"message.type": "FIFO"},
            }


@pytest.mark.parametrize(
    ("broker_permission", "seen"),
    [(Permission.READ, Permission.READ), (Permission.WRITE, Permission.WRITE), (6, 6), (7, 6)],
)
async def test_registered_topics_allow_no_more_than_the_broker(
    nameserver: Running, tmp_path: Path, broker_permission: int, seen: int
) -> None:
    async with broker_at(nameserver.address, folder=tmp_path, broker_permission=broker_permission) as broker:
        await broker.create("Orders")
        async with connection_to(nameserver.address) as line:
            assert await permissions(line, "Orders") == {BROKER: seen}
            assert await permissions(line, "SELF_TEST_TOPIC") == {BROKER: seen}
        assert broker.topics.all()["Orders"].permission == 6


async def test_a_changed_broker_permission_is_registered_at_once(nameserver: Running, tmp_path: Path) -> None:
    async with broker_at(nameserver.address, folder=tmp_path) as broker, connection_to(nameserver.address) as line:
        broker.config.broker_permission = 4
        broker.topics.renew()
        await broker.registrar.register()
        assert await permissions(line, "SELF_TEST_TOPIC") == {BROKER: 4}


async def test_topics_in_the_order_config_of_name_servers_become_ordered(nameserver: Running, tmp_path: Path) -> None:
    async with connection_to(nameserver.address) as line:
        fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "Orders", "value": f"{BROKER}:4"}
        assert (await line.call(100, fields)).code == ResponseCode.SUCCESS
        async with broker_at(nameserver.address, folder=tmp_path) as broker:
            await broker.create("Orders", "Others")
            await broker.registrar.register()
            assert broker.topics.all()["Orders"].ordered
            assert not broker.topics.all()["Others"].ordered


async def test_many_topics_are_registered_compressed(nameserver: Running, tmp_path: Path) -> None:
    names = [f"Topic-{number:05d}" for number in range(IN_THREAD_FROM)]
    async with broker_at(nameserver.address, folder=tmp_path) as broker, connection_to(nameserver.address) as line:
        assert len(names) > ANNOUNCED_MAX
        await broker.create(*names)
        await until_registered(nameserver, names[-1])
        assert await topics(line) == sorted(broker.topics.all())
        request = await broker.registrar.own.full()
        assert request.fields["compressed"] == "true"
        assert len(request.body) < COMPRESS_FROM_BYTES


@pytest.mark.parametrize("settings", [{"sys_flag": 1}, {"ordered": True}])
async def test_a_registration_with_fields_that_compression_loses_is_not_compressed(
    nameserver: Running, tmp_path: Path, settings: dict[str, Any]
) -> None:
    async with broker_at(nameserver.address, folder=tmp_path, compress_registration=True) as broker:
        assert (await broker.registrar.own.full()).fields["compressed"] == "true"
        broker.topics.put(TopicConfig("Unit", **settings))
        assert (await broker.registrar.own.full()).fields["compressed"] == "false"


async def test_without_force_the_broker_compares_versions_before_it_registers_again(
    nameserver: Running, tmp_path: Path
) -> None:
    async with broker_at(nameserver.address, folder=tmp_path, force_registration=False) as broker:
        before = broker.registrar.own._encoded
        broker.topics.put(TopicConfig("Orders"))
        await broker.registrar.register()
        assert broker.registrar.own._encoded != before
        await broker.registrar.register()
        async with connection_to(nameserver.address) as line:
            assert await addresses(line, "Orders")


@pytest.mark.parametrize(("compatible", "code"), [(True, QUERY_VERSION), (False, HEARTBEAT)])
async def test_heartbeats_are_sent_only_with_an_acting_master(tmp_path: Path, compatible: bool, code: int) -> None:
    settings = {"acting_master_enabled": True, "supports_old_name_servers": compatible}
    async with (
        fake_name_server(accepts_registrations=True) as fake,
        broker_at(fake.address, folder=tmp_path, **settings) as broker,
    ):
        first = fake.received[0]
        assert (first.code, first.fields["enableActingMaster"]) == (REGISTER, "true")
        assert first.fields["heartbeatTimeoutMillis"] == "10000"
        broker.pass_time(1.0)
        await fake.until_received(lambda received: len(received) == 2)
        assert (fake.received[1].code, fake.received[1].fields["brokerAddr"]) == (
            code,
            ADDRESS,
        )


async def test_an_unregistration_without_response_does_not_block_the_stop(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with fake_name_server(accepts_registrations=True) as fake:
        async with broker_at(fake.address, folder=tmp_path):
            begun_at = loop.time()
        await fake.until_received(lambda received: received[-1].code == GOODBYE)
        assert loop.time() - begun_at < 3.0


async def test_a_killed_broker_does_not_unregister(nameserver: Running, tmp_path: Path) -> None:
    async with fake_name_server() as fake:
        async with broker_at(nameserver.address, fake.address, folder=tmp_path) as broker:
            await broker.registrar.kill()
        assert [command.code for command in fake.received] == [REGISTER]


async def test_the_broker_registers_over_tls(tmp_path: Path) -> None:
    context = client_context(TlsClientSettings(enabled=True), test_mode=True)
    async with running(tmp_path / "ns") as server, broker_at(server.address, folder=tmp_path, tls=context):
        await until_registered(server)
        assert BROKER in server.server.table.topics


async def test_a_broker_without_name_servers_logs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with broker_at(folder=tmp_path) as broker:
        await broker.create("Orders")
        broker.pass_time(60.0)
    assert "no name server is known" in caplog.text


async def test_a_single_topic_registration_keeps_all_other_routes(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "ns", delete_missing_topics=True) as server,
        broker_at(server.address, folder=tmp_path, register_single_topics=True, broker_permission=4) as broker,
        connection_to(server.address) as line,
    ):
        before = await topics(line)
        await broker.create("Orders", "Payments")
        assert await topics(line) == sorted([*before, "Orders", "Payments"])
        assert await permissions(line, "Orders") == {BROKER: Permission.READ}
        await broker.registrar.register()
        assert await topics(line) == sorted(broker.topics.all())


async def test_a_name_server_that_does_not_know_single_topic_registrations_gets_all_topics(tmp_path: Path) -> None:
    async with (
        fake_name_server(accepts_registrations=True) as old,
        broker_at(old.address, folder=tmp_path, register_single_topics=True) as broker,
    ):
        await broker.create("Orders")
        assert [command.code for command in old.received] == [REGISTER, REGISTER_TOPIC, REGISTER]
        assert b'"Orders"' in old.received[-1].body
