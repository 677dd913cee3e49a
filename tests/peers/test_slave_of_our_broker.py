"""An Apache slave of our broker: both register, the slave finds the port for slaves, and Apache's tool sees it."""

from __future__ import annotations

from pathlib import Path

from skyroute.wire.calls.replication import decode_replication_status
from skyroute.wire.codes import RequestCode
from tests.support.apache import ApacheBroker, ApacheNameServer, run_java
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection
from tests.support.waiting import wait_until


def test_an_apache_slave_follows_our_master(lib: Path, tmp_path: Path) -> None:
    with (
        ApacheNameServer("name server", tmp_path / "ns") as server,
        SkyrouteBroker("pair", tmp_path / "master", [server.address]) as master,
        ApacheBroker("pair", tmp_path / "slave", [server.address], broker_id=1) as slave,
        RawConnection(server.address) as connection,
        RawConnection(master.address) as line,
    ):
        group = connection.call(RequestCode.GET_BROKER_CLUSTER_INFO).value["brokerAddrTable"]["pair"]
        assert group["brokerAddrs"] == {"0": master.address, "1": slave.address}

        def slaves() -> int:
            return len(decode_replication_status(line.call(RequestCode.GET_BROKER_HA_STATUS).body).slaves)

        wait_until(lambda: slaves() == 1, "the slave reports", timeout_s=60)
        tool = "org.apache.rocketmq.tools.command.MQAdminStartup"
        shown = run_java(lib, tmp_path / "tool", tool, "haStatus", "-n", server.address, "-b", master.address)
        assert "#SlaveNum\t1" in shown
        assert "OK" in shown
        shown = run_java(lib, tmp_path / "tool", tool, "haStatus", "-n", server.address, "-b", slave.address)
        assert f"#MasterAddr\t{master.ha_address}" in shown
        assert slave.is_running
