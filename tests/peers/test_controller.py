"""Apache's brokers in controller mode on our controller: join, fail over under load, return; mqadmin."""

from __future__ import annotations

from pathlib import Path

from tests.peers.test_mqadmin import MqAdmin
from tests.support.apache import SkyrouteNameServer
from tests.support.controlled_brokers import JOIN_S, Load, SkyrouteController, broker, read_all
from tests.support.raw import RawConnection
from tests.support.waiting import wait_until


def test_no_acknowledged_message_is_lost_when_the_master_is_killed(lib: Path, tmp_path: Path) -> None:
    with (
        SkyrouteNameServer("name server", tmp_path / "ns") as server,
        SkyrouteController("controller", tmp_path / "controller") as controller,
        broker(tmp_path / "one", server.address, controller.address) as first,
        broker(tmp_path / "two", server.address, controller.address),
    ):
        wait_until(lambda: controller.group() == (1, 1, [1, 2]), "both in the sync state set", timeout_s=JOIN_S)
        load = Load(server.address)
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
        assert set(load.acknowledged) <= read_all(server.address)


def operate_with_mqadmin(
    lib: Path, java_classes: Path, folder: Path, server: SkyrouteNameServer, controller: SkyrouteController
) -> None:
    """Run every command of mqadmin about controllers; broker 2 becomes master of epoch 2."""
    (folder / "mqadmin").mkdir()
    admin = MqAdmin(lib, java_classes, folder / "mqadmin")
    address = controller.address
    try:
        admin.run("getControllerMetaData", "-a", address)  # the first command also prints how logging was set up
        said = admin.run("getControllerMetaData", "-a", address)
        assert said.split() == [
            *("#ControllerGroup", "skyroute-controller", "#ControllerLeaderId", "n0"),
            *("#ControllerLeaderAddress", address, "#Peer:", f"n0:{address}"),
        ]
        said = admin.run("getSyncStateSet", "-a", address, "-b", "pair")
        assert "#MasterBrokerId\t1\n" in said
        assert "#SyncStateSetNums\t2\n" in said
        assert said.count("InSyncReplica:") == 2
        said = admin.run("electMaster", "-a", address, "-c", "PeerCluster", "-bn", "pair", "-b", "2")
        assert "#MasterEpoch\t2\n" in said
        wait_until(lambda: controller.group() == (2, 2, [1, 2]), "the old master follows", timeout_s=JOIN_S)
        said = admin.run("electMaster", "-a", address, "-c", "PeerCluster", "-bn", "pair", "-b", "9")
        assert "2010" in said
        said = admin.run("getBrokerEpoch", "-n", server.address, "-b", "pair")
        assert said.count("#brokerName\tpair") == 2
        assert said.count("EpochEntry{epoch=") == 2  # without messages, epoch 2 begins where epoch 1 does
        said = admin.run("cleanBrokerMetadata", "-a", address, "-c", "PeerCluster", "-bn", "pair", "-b", "1")
        assert "2009" in said
        said = admin.run("updateControllerConfig", "-a", address, "-k", "electMasterMaxRetryCount", "-v", "5")
        assert "update controller config success!" in said
        said = admin.run("getControllerConfig", "-a", address)
        assert "electMasterMaxRetryCount" in said
        assert "=  5\n" in said
    finally:
        admin.close()


def test_mqadmin_operates_a_group_that_outlives_a_restart_of_the_controller(
    lib: Path, java_classes: Path, tmp_path: Path
) -> None:
    with (
        SkyrouteNameServer("name server", tmp_path / "ns") as server,
        SkyrouteController("controller", tmp_path / "controller") as controller,
        broker(tmp_path / "one", server.address, controller.address),
        broker(tmp_path / "two", server.address, controller.address) as second,
    ):
        wait_until(lambda: controller.group() == (1, 1, [1, 2]), "both in the sync state set", timeout_s=JOIN_S)
        operate_with_mqadmin(lib, java_classes, tmp_path, server, controller)
        controller.kill()
        controller.start()
        with RawConnection(controller.address) as line:
            wait_until(
                lambda: line.call(1006, body=b'["pair"]').text.count('"alive":true') == 2,
                "both brokers are heard again",
                timeout_s=JOIN_S,
            )
        assert controller.group() == (2, 2, [1, 2])
        controller.kill()
        second.kill()
        controller.start()
        wait_until(lambda: controller.group()[:2] == (1, 3), "the dead master is replaced", timeout_s=JOIN_S)
