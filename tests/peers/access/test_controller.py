"""Apache's brokers and mqadmin at our controller, all with access control."""

from __future__ import annotations

from pathlib import Path

from tests.peers.access.conftest import ROOT, SETTINGS
from tests.peers.test_mqadmin import MqAdmin
from tests.support.apache import SkyrouteNameServer
from tests.support.controlled_brokers import JOIN_S, Load, SkyrouteController, broker, read_all
from tests.support.raw import RawConnection
from tests.support.waiting import wait_until

NO_PERMISSION = 16


def test_brokers_that_sign_fail_over_and_strangers_elect_nobody(
    lib: Path, tmp_path: Path, mqadmin: MqAdmin, unsigned_mqadmin: MqAdmin
) -> None:
    controller = SkyrouteController("controller", tmp_path / "controller").guard(ROOT, SETTINGS)
    with (
        SkyrouteNameServer("name server", tmp_path / "ns", config=SETTINGS) as server,
        controller,
        broker(tmp_path / "one", server.address, controller.address, SETTINGS) as first,
        broker(tmp_path / "two", server.address, controller.address, SETTINGS),
    ):
        wait_until(lambda: controller.group() == (1, 1, [1, 2]), "both in the sync state set", timeout_s=JOIN_S)
        elect = ("electMaster", "-a", controller.address, "-c", "PeerCluster", "-bn", "pair", "-b", "2")
        assert "username cannot be null" in unsigned_mqadmin.run(*elect)
        with RawConnection(controller.address) as line:
            for code in (1001, 1002, 1003, 1004, 1011, 1013):
                assert line.call(code, {"brokerName": "pair"}).code == NO_PERMISSION
        assert "#MasterBrokerId\t1\n" in mqadmin.run("getSyncStateSet", "-a", controller.address, "-b", "pair")
        load = Load(server.address, ROOT)
        load.start()
        try:
            load.until(300)
            first.kill()
            wait_until(lambda: controller.group()[:2] == (2, 2), "a new master", timeout_s=5.0)
            load.until(len(load.acknowledged) + 300)
            first.start()
            wait_until(lambda: controller.group() == (2, 2, [1, 2]), "the old master follows", timeout_s=JOIN_S)
        finally:
            load.ended.set()
            load.join()
        assert set(load.acknowledged) <= read_all(server.address, ROOT)
        assert "#MasterEpoch\t3\n" in mqadmin.run(*elect[:-1], "1")
