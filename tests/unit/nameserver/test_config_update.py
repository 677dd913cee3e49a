from pathlib import Path

import pytest

from skyroute.nameserver.config import NameServerConfig
from skyroute.settings.config import UPDATE_CHARS_MAX, UpdatedConfig
from skyroute.settings.errors import BlackListedError, ConfigError, FileWriteError, MalformedPropertiesError
from skyroute.settings.properties import parse_properties, read_properties

FILE = "# of the operator\nlistenPort=1111\nextra=1\ntls.server.keyPassword=geheim\nconnectTimeoutMillis=5\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "namesrv.properties"
    path.write_text(FILE, encoding="ascii")
    return path


@pytest.fixture
def config(path: Path) -> NameServerConfig:
    return NameServerConfig.load(str(path), options={"brokersMax": "5"})


def changed(*keys: str, restart: tuple[str, ...] = ()) -> UpdatedConfig:
    return UpdatedConfig(frozenset(keys), frozenset(restart))


def test_a_flag_takes_effect_at_once_and_survives_a_restart(config: NameServerConfig, path: Path) -> None:
    assert config.apply_update("supportActingMaster=true") == changed("supportActingMaster")
    assert config.support_acting_master
    assert parse_properties(config.render())["supportActingMaster"] == "true"
    assert NameServerConfig.load(str(path)).support_acting_master


def test_a_port_waits_for_a_restart(config: NameServerConfig) -> None:
    assert config.apply_update("listenPort=2222") == changed("listenPort", restart=("listenPort",))


def test_the_file_keeps_what_the_operator_set_and_gains_what_was_updated(config: NameServerConfig, path: Path) -> None:
    config.apply_update("listenPort = 2222 \nextra=zwei ä\nwaitSecondsForService=9\nserverWorkerThreads=3")
    assert read_properties(path) == {
        "listenPort": "2222",
        "extra": "zwei ä",
        "tls.server.keyPassword": "geheim",
        "connectTimeoutMillis": "5",
        "waitSecondsForService": "9",
        "serverWorkerThreads": "3",
    }
    assert path.with_name("namesrv.properties.bak").read_text(encoding="ascii") == FILE
    restarted = NameServerConfig.load(str(path), options={"brokersMax": "5"})
    assert restarted.render() == config.render()


def test_without_a_file_the_updates_make_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "namesrv.properties"
    NameServerConfig(config_store_path=str(path)).apply_update("enableTopicList=false")
    assert read_properties(path) == {"enableTopicList": "false"}


def test_an_unchanged_value_is_no_change(config: NameServerConfig) -> None:
    assert config.apply_update("enableTopicList=true\nextra=1") == changed()


@pytest.mark.parametrize("text", ["", "# nothing", "unknown=1\nuseTLS=true\nclientWorkerThreads=1"])
def test_what_is_not_listed_is_ignored(config: NameServerConfig, path: Path, text: str) -> None:
    before = config.render()
    assert config.apply_update(text) == changed()
    assert config.render() == before
    assert path.read_text(encoding="ascii") == FILE


def test_client_settings_and_extras_of_the_file_can_be_updated(config: NameServerConfig) -> None:
    assert config.apply_update("extra=2\nconnectTimeoutMillis=6") == changed(
        "extra", "connectTimeoutMillis", restart=("connectTimeoutMillis",)
    )
    assert config.extras == {"extra": "2"}
    assert config.connect_timeout_millis == 6


def test_a_property_of_the_java_machine_updates_what_it_stands_for(config: NameServerConfig) -> None:
    config.apply_update("com.rocketmq.remoting.frameMaxLength=4096")
    assert config.frame_max_length == 4096


@pytest.mark.parametrize(
    "key",
    [
        "configBlackList",
        "configStorePath",
        "kvConfigPath",
        "rocketmqHome",
        "rocketmq.home.dir",
        "trustedProxies",
        "tls.server.mode",
        "tls.config.file",
        "tls.unknown",
    ],
)
def test_one_black_listed_key_spoils_the_whole_update(config: NameServerConfig, path: Path, key: str) -> None:
    before = config.render()
    with pytest.raises(BlackListedError):
        config.apply_update(f"enableTopicList=false\n{key}=/tmp/x")
    assert config.render() == before
    assert path.read_text(encoding="ascii") == FILE


def test_the_operator_adds_to_the_black_list(path: Path) -> None:
    config = NameServerConfig.load(str(path), options={"configBlackList": "listenPort; bindAddress;"})
    with pytest.raises(BlackListedError) as caught:
        config.apply_update("bindAddress=::\nlistenPort=1\nenableTopicList=false")
    assert caught.value.keys == {"bindAddress", "listenPort"}
    with pytest.raises(BlackListedError):
        config.apply_update("kvConfigPath=/x")


def test_escapes_do_not_smuggle_a_key_past_the_black_list(config: NameServerConfig) -> None:
    with pytest.raises(BlackListedError):
        config.apply_update("kv\\u0043onfig\\Path=/tmp/x")


@pytest.mark.parametrize(
    "text",
    [
        "listenPort=99999",
        "enableTopicList=no",
        "enableControllerInNamesrv=true",
        "serverWorkerThreads=x",
        "writeBufferHighWaterMark=1\nwriteBufferLowWaterMark=2",
    ],
)
def test_one_wrong_value_spoils_the_whole_update(config: NameServerConfig, path: Path, text: str) -> None:
    before = config.render()
    with pytest.raises(ConfigError, match="the update"):
        config.apply_update(f"orderMessageEnable=true\n{text}")
    assert config.render() == before
    assert path.read_text(encoding="ascii") == FILE


def test_a_malformed_update_is_refused(config: NameServerConfig) -> None:
    with pytest.raises(MalformedPropertiesError):
        config.apply_update("enableTopicList=\\u00")


def test_an_update_has_a_bound(config: NameServerConfig) -> None:
    config.apply_update("extra=" + "x" * (UPDATE_CHARS_MAX - 6))
    with pytest.raises(ConfigError, match="at most"):
        config.apply_update("extra=" + "x" * (UPDATE_CHARS_MAX - 5))


def test_an_update_that_cannot_be_written_is_not_applied(config: NameServerConfig, path: Path) -> None:
    before = config.render()
    obstacle = path.with_name("namesrv.properties.tmp")
    obstacle.mkdir()
    with pytest.raises(FileWriteError, match="cannot write"):
        config.apply_update("enableTopicList=false\nextra=2\nserverWorkerThreads=1")
    assert config.render() == before
    assert path.read_text(encoding="ascii") == FILE
    obstacle.rmdir()
    config.apply_update("orderMessageEnable=true")
    assert "enableTopicList" not in read_properties(path)
