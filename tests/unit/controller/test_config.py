"""The settings of a controller, in Apache's words."""

from dataclasses import fields
from pathlib import Path

import pytest

from skyroute.controller.config import ControllerConfig, EmbeddedControllerConfig
from skyroute.settings.config import ServerConfig
from skyroute.settings.controller_keys import CONTROLLER_KEYS
from skyroute.settings.errors import ConfigError

APACHES_SAMPLE = """\
controllerDLegerGroup = group1
controllerDLegerPeers = n0-127.0.0.1:9878
controllerDLegerSelfId = n0
controllerStorePath = /tmp/rmqstore/controller
enableElectUncleanMaster = false
notifyBrokerRoleChanged = true
scanNotActiveBrokerInterval = 3000
mappedFileSize = 1048576
jRaftServerId = localhost:9880
"""


def test_apaches_sample_is_read(tmp_path: Path) -> None:
    path = tmp_path / "controller.conf"
    path.write_text(APACHES_SAMPLE)
    config = ControllerConfig.load(str(path))
    assert (config.port, config.advertised_address, config.group) == (9878, "127.0.0.1:9878", "group1")
    assert config.state_file == Path("/tmp/rmqstore/controller/controller-state.json")
    assert config.scan_interval_s == 3.0
    assert config.inert == {"mappedFileSize": "1048576", "jRaftServerId": "localhost:9880"}


def test_without_peers_the_bound_address_is_advertised() -> None:
    config = ControllerConfig.load(options={"bindAddress": "10.0.0.7"})
    assert (config.port, config.advertised_address) == (9878, "10.0.0.7:9878")
    everywhere = ControllerConfig.load(options={"listenPort": "9999"}).advertised_address
    assert everywhere.endswith(":9999")
    assert not everywhere.startswith("0.0.0.0")


def test_the_id_may_come_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "controller.conf"
    path.write_text("controllerDLegerPeers=n1-10.0.0.1:9978;\n")
    assert ControllerConfig.load(str(path), options={"controllerDLegerSelfId": "n1"}).port == 9978
    with pytest.raises(ConfigError, match="controllerDLegerSelfId=n0 is not in"):
        _ = ControllerConfig.load(str(path)).port


def test_a_name_server_knows_the_names_of_a_controllers_settings() -> None:
    known = {each.metadata["setting"] for each in fields(EmbeddedControllerConfig) if "setting" in each.metadata}
    common = {each.metadata["setting"].key for each in fields(ServerConfig) if "setting" in each.metadata}
    own = {setting.key for setting in known} - common
    inert = ControllerConfig.INERT.keys() - ServerConfig.INERT.keys()
    assert {"configBlackList", *own, *inert} == CONTROLLER_KEYS


def test_an_embedded_controller_leaves_the_settings_of_the_name_server(caplog: pytest.LogCaptureFixture) -> None:
    options = {"listenPort": "9876", "metricsPort": "9901", "kvConfigPath": "/x", "controllerListenPort": "9999"}
    assert EmbeddedControllerConfig.load(options=options).port == 9999
    assert caplog.records == []


def test_several_controllers_need_etcd() -> None:
    peers = {"controllerDLegerPeers": "n0-a:1;n1-b:2"}
    with pytest.raises(ConfigError, match=r"names 2 controllers: .* set etcdEndpoints"):
        _ = ControllerConfig.load(options=peers).port
    config = ControllerConfig.load(options=peers | {"etcdEndpoints": "http://e:2379, f:2379"})
    assert (config.port, config.all_peers) == (1, {"n0": "a:1", "n1": "b:2"})
    assert config.etcd_members == ["e:2379", "f:2379"]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("controllerDLegerPeers", ";".join(f"n{number}-a:{number}" for number in range(1, 102)), "more than 100"),
        ("etcdEndpoints", "127.0.0.1", "expected host:port"),
        ("etcdLeaseSeconds", "1", "from 2 to 60"),
        ("controllerDLegerPeers", "127.0.0.1:9878", "has no id"),
        ("controllerDLegerPeers", "n0-127.0.0.1", "expected n0-host:port"),
        ("enableElectUncleanMaster", "maybe", "true or false"),
    ],
)
def test_what_a_controller_cannot_do_is_refused(key: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        ControllerConfig.load(options={key: value})
