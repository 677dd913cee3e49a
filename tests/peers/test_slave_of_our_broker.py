"""An Apache slave of our broker, which has no port for slaves and registers an empty HA address."""

from __future__ import annotations

from pathlib import Path

from skyroute.wire.codes import RequestCode
from tests.support.apache import ApacheBroker, ApacheNameServer
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection


def test_an_apache_slave_registers_beside_our_master(lib: Path, tmp_path: Path) -> None:
    with (
        ApacheNameServer("name server", tmp_path / "ns") as server,
        SkyrouteBroker("pair", tmp_path / "master", [server.address]) as master,
        ApacheBroker("pair", tmp_path / "slave", [server.address], broker_id=1) as slave,
        RawConnection(server.address) as connection,
    ):
        group = connection.call(RequestCode.GET_BROKER_CLUSTER_INFO).value["brokerAddrTable"]["pair"]
        assert group["brokerAddrs"] == {"0": master.address, "1": slave.address}
        assert slave.is_running
