"""Where a server listens: ports, families of addresses, and what it says of an address it cannot have."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server import NameServer
from skyroute.remoting.errors import BindError
from tests.network.cluster import MASTER, register, topics
from tests.support.connections import connection_to
from tests.support.raw import split_address
from tests.support.servers import own_files, running


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


LOOPBACKS = ["127.0.0.1", *(["::1"] if _has_ipv6() else [])]


@pytest.mark.parametrize("host", LOOPBACKS)
async def test_port_zero_lets_the_system_choose_a_port(
    tmp_path: Path, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, bind_address=host) as here:
        shown = f"[{host}]" if ":" in host else host
        name, port = split_address(here.address)
        assert (name, port) == (shown, here.server.config.listen_port)
        assert port > 0
        async with connection_to(here.address) as line:
            await register(line, MASTER)
            assert await topics(line) == ["TopicA", "TopicB"]
            await line.call(205, {"brokerName": "broker-a"})
            own_port = line.local_address.rpartition(":")[2]
            assert f"peer={shown}:{own_port}" in caplog.text


async def test_all_addresses_of_the_machine_can_be_served(tmp_path: Path) -> None:
    async with running(tmp_path, bind_address="0.0.0.0") as here, connection_to(here.address) as line:
        assert await topics(line) == []


async def test_several_servers_can_live_in_one_process(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    async with running(tmp_path / "one") as one, running(tmp_path / "two") as two:
        assert one.address != two.address
        async with connection_to(one.address) as to_one, connection_to(two.address) as to_two:
            await register(to_one, MASTER)
            assert [await topics(to_one), await topics(to_two)] == [["TopicA", "TopicB"], []]


def unstarted(folder: Path, host: str, port: int) -> NameServer:
    return NameServer(NameServerConfig(listen_port=port, bind_address=host, **own_files(folder)))


async def test_a_port_in_use_is_reported_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BindError) as caught:
            await unstarted(tmp_path, "127.0.0.1", port).start()
    text = str(caught.value)
    assert "\n" not in text
    assert f"127.0.0.1:{port}" in text
    assert "in use" in text


@pytest.mark.parametrize("host", ["192.0.2.1", "300.300.300.300"])
async def test_an_address_of_another_machine_is_reported_in_one_line(tmp_path: Path, host: str) -> None:
    with pytest.raises(BindError) as caught:
        await unstarted(tmp_path, host, 0).start()
    assert "\n" not in str(caught.value)
    assert host in str(caught.value)


async def test_after_a_failed_start_the_server_can_be_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = unstarted(tmp_path, "127.0.0.1", port)
        with pytest.raises(BindError):
            await server.start()
        await server.stop()
    await server.start()
    async with connection_to(server.address) as line:
        assert await topics(line) == []
    await server.stop()


async def test_the_server_has_a_repr(tmp_path: Path) -> None:
    server = unstarted(tmp_path, "127.0.0.1", 0)
    assert repr(server).startswith("<NameServer not started")
    await server.start()
    assert repr(server).startswith(f"<NameServer {server.address} ")
    assert repr(server._server) == "<Server connections=0 buffered=0 unsent=0>"
    await server.stop()


@pytest.mark.parametrize("buffers", [0, 32 * 1024])
async def test_socket_buffer_sizes_are_passed_on(tmp_path: Path, buffers: int) -> None:
    sized = running(tmp_path, send_buffer_bytes=buffers, receive_buffer_bytes=buffers)
    async with sized as here, connection_to(here.address) as line:
        await topics(line)
        (connection,) = here.remoting._connections.values()
        accepted = connection._transport.get_extra_info("socket")
        if buffers:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * buffers  # Linux doubles it
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
