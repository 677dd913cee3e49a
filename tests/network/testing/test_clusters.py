import doctest
import socket
import subprocess
import sys
import threading
import time

import pytest

import skyroute.testing.clusters
from skyroute import Message
from skyroute.blocking import Admin, Producer
from skyroute.errors import SkyrouteError
from skyroute.settings.errors import ConfigError
from skyroute.testing import Cluster, cluster

pytest_plugins = ["pytester"]


def send(where: Cluster, body: bytes = b"one", *, timeout_s: float = 3.0) -> str:
    with Producer("billing", where.name_server_address, send_timeout_s=timeout_s, retries=0) as producer:
        return producer.send(Message("Orders", body)).queue.broker_name


def names_of_brokers(admin: Admin) -> list[str]:
    return [broker.name for broker in admin.brokers()]


def test_a_cluster_stores_messages_and_deletes_its_files_and_threads() -> None:
    threads = threading.active_count()
    with cluster() as c:
        folder = c.folder
        assert send(c) == "broker-0"
        assert folder.is_dir()
    assert not folder.exists()
    # The blocking client has a thread of its own.
    assert threading.active_count() <= threads + 1


def test_the_docstring_example_runs() -> None:
    assert doctest.testmod(skyroute.testing.clusters) == (0, 4)


def test_it_starts_in_less_than_300_ms() -> None:
    took = []
    for _ in range(3):
        begun_at = time.monotonic()
        with cluster(in_memory=True):
            took.append(time.monotonic() - begun_at)
    assert min(took) < 0.3


def test_several_brokers_and_name_servers() -> None:
    with cluster(brokers=3, name_servers=2, in_memory=True) as c:
        assert len(set(c.broker_addresses)) == 3
        assert len(c.name_server_addresses) == 2
        for address in c.name_server_addresses:
            with Admin(address) as admin:
                assert names_of_brokers(admin) == ["broker-0", "broker-1", "broker-2"]


def test_a_cluster_without_brokers() -> None:
    with cluster(brokers=0) as c, pytest.raises(SkyrouteError):
        send(c)


def test_settings_are_passed_to_the_brokers() -> None:
    with cluster(auto_create_topics=False, in_memory=True) as c, pytest.raises(SkyrouteError):
        send(c)


def test_an_unknown_setting_is_refused_and_leaves_no_files() -> None:
    threads = threading.active_count()
    with pytest.raises(TypeError, match="frobnicate"), cluster(frobnicate=1):
        pass
    with pytest.raises(ConfigError, match="brokerIP1"), cluster(advertised_host="0.0.0.0"):
        pass
    assert threading.active_count() == threads


@pytest.mark.parametrize(("brokers", "name_servers"), [(-1, 1), (1, 0)])
def test_a_cluster_needs_a_name_server(brokers: int, name_servers: int) -> None:
    with pytest.raises(ValueError, match="expected 0 or more, and 1 or more"):
        cluster(brokers=brokers, name_servers=name_servers)


def test_a_paused_broker_sends_no_response_until_it_is_resumed() -> None:
    with cluster(in_memory=True) as c:
        send(c)
        c.pause_broker()
        c.pause_broker()
        with pytest.raises(SkyrouteError):
            send(c, timeout_s=0.2)
        c.resume_broker()
        c.resume_broker()
        assert send(c) == "broker-0"


def test_a_cluster_with_a_paused_broker_stops() -> None:
    with cluster(in_memory=True) as c:
        c.pause_broker()
    assert not c.broker_addresses


def test_a_killed_broker_restarts_with_its_messages() -> None:
    with cluster(brokers=2, in_memory=True) as c:
        host, _, port = c.broker_addresses[1].rpartition(":")
        with Admin(c.name_server_address) as admin, Producer("billing", c.name_server_address) as producer:
            producer.send(Message("Orders", b"one"))
            c.kill_broker(1)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((host, int(port)))
            assert producer.send(Message("Orders", b"two")).queue.broker_name == "broker-0"
            c.restart_broker(1)
            assert c.broker_addresses[1] == f"{host}:{port}"
            assert names_of_brokers(admin) == ["broker-0", "broker-1"]


def test_a_stopped_broker_has_unregistered() -> None:
    with cluster(brokers=2, in_memory=True) as c, Admin(c.name_server_address) as admin:
        c.stop_broker(0)
        c.stop_broker(0)
        assert names_of_brokers(admin) == ["broker-1"]
        c.restart_broker(0)
        assert names_of_brokers(admin) == ["broker-0", "broker-1"]


async def test_a_cluster_is_an_async_context_manager() -> None:
    async with cluster(in_memory=True) as c, skyroute.Producer("billing", c.name_server_address) as producer:
        assert (await producer.send(Message("Orders", b"one"))).queue.broker_name == "broker-0"


# pytest


def test_the_pytest_fixture_starts_a_cluster(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        from skyroute import Message
        from skyroute.blocking import Producer

        def test_one(rocketmq):
            with Producer("billing", rocketmq.name_server_address) as producer:
                assert producer.send(Message("Orders", b"one")).queue_offset == 0

        def test_another_is_another(rocketmq):
            with Producer("billing", rocketmq.name_server_address) as producer:
                assert producer.send(Message("Orders", b"one")).queue_offset == 0
    """)
    result = pytester.runpytest_subprocess("-p", "skyroute.testing.plugin", "-p", "no:asyncio", "-W", "error")
    result.assert_outcomes(passed=2)


def test_the_pytest_plugin_imports_no_server() -> None:
    check = "import sys, pytest, skyroute.testing.plugin; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert not {"msgspec", "uvloop", "skyroute.broker", "skyroute.client"} & set(run.stdout.split())
