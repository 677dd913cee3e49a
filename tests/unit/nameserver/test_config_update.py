import asyncio
from pathlib import Path

import pytest

from skyroute.files.errors import FileWriteError
from skyroute.nameserver.config import NameServerConfig
from skyroute.settings.config import UPDATE_CHARS_MAX
from skyroute.settings.errors import BlackListedError, ConfigError, MalformedPropertiesError, StartOnlyError
from skyroute.settings.properties import format_properties, parse_properties, read_properties
from skyroute.settings.secrets import HIDDEN
from tests.support.hang_guard import hang_guard

FILE = "# of the operator\nlistenPort=1111\nextra=1\ntls.server.keyPassword=geheim\nconnectTimeoutMillis=5\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "namesrv.properties"
    path.write_text(FILE, encoding="ascii")
    return path


@pytest.fixture
def config(path: Path) -> NameServerConfig:
    return NameServerConfig.load(str(path), options={"brokersMax": "5"})


def update(config: NameServerConfig, text: str) -> frozenset[str]:
    return frozenset(asyncio.run(config.apply_update(text)))


def changed(*keys: str) -> frozenset[str]:
    return frozenset(keys)


def test_a_flag_takes_effect_at_once_and_survives_a_restart(config: NameServerConfig, path: Path) -> None:
    assert update(config, "supportActingMaster=true") == changed("supportActingMaster")
    assert config.acting_master_enabled
    assert parse_properties(config.render())["supportActingMaster"] == "true"
    assert NameServerConfig.load(str(path)).acting_master_enabled


@pytest.mark.parametrize(
    ("key", "value", "now"),
    [
        ("needWaitForService", "true", "false"),
        ("waitSecondsForService", "2147483647", "45"),
        ("listenPort", "2222", "1111"),
        ("bindAddress", "10.9.9.9", "0.0.0.0"),
        ("scanNotActiveBrokerInterval", "9223372036854775807", "5000"),
        ("brokersMax", "1", "5"),
        ("connectTimeoutMillis", "6", "5"),
        ("com.rocketmq.remoting.frameMaxLength", "4096", "16777216"),
    ],
)
def test_what_is_only_for_the_start_is_refused_and_nothing_is_applied(
    config: NameServerConfig, path: Path, key: str, value: str, now: str
) -> None:
    before = config.render()
    with pytest.raises(StartOnlyError) as caught:
        update(config, f"orderMessageEnable=true\n{key}={value}")
    name = key.rpartition(".")[2]
    assert str(caught.value) == (
        f"{name}={value} is refused, it stays {now}: this setting takes effect only at the start;"
        " edit the file that the server is started with (-c), and restart it"
    )
    assert config.render() == before
    assert path.read_text(encoding="ascii") == FILE


def test_all_that_is_listed_can_be_sent_back(config: NameServerConfig, path: Path) -> None:
    """Tools read all settings, change one and send them all."""
    keys = {"configBlackList", "configStorePath", "kvConfigPath", "memoryPath"}
    lines = [line for line in config.render().splitlines() if line.partition("=")[0] not in keys]
    told = "\n".join(lines).replace("enableTopicList=true", "enableTopicList=false")
    assert update(config, told) == changed("enableTopicList")
    assert config.extras == {"extra": "1"}
    assert read_properties(path)["tls.server.keyPassword"] == "geheim"


def test_a_file_that_could_not_be_started_from_is_not_written(config: NameServerConfig, path: Path) -> None:
    edited = f"{FILE}brokersMax=none\n"
    path.write_text(edited, encoding="ascii")  # after the start
    with pytest.raises(ConfigError, match="brokersMax='none' from the update is wrong"):
        update(config, "enableTopicList=false")
    assert config.topic_list_enabled
    assert path.read_text(encoding="ascii") == edited


def test_an_update_keeps_what_was_written_to_the_file_after_the_start(config: NameServerConfig, path: Path) -> None:
    path.write_text(f"{FILE}brokersMax=7\n", encoding="ascii")
    update(config, "enableTopicList=false")
    assert (read_properties(path)["brokersMax"], read_properties(path)["enableTopicList"]) == ("7", "false")


def test_the_file_keeps_what_the_operator_set_and_gains_what_was_updated(config: NameServerConfig, path: Path) -> None:
    update(config, "listenPort = 1111 \nextra=zwei ä\nmassExpiryPercent=9\nserverWorkerThreads=3")
    assert read_properties(path) == {
        "listenPort": "1111",
        "extra": "zwei ä",
        "tls.server.keyPassword": "geheim",
        "connectTimeoutMillis": "5",
        "massExpiryPercent": "9",
        "serverWorkerThreads": "3",
    }
    assert path.with_name("namesrv.properties.bak").read_text(encoding="ascii") == FILE
    restarted = NameServerConfig.load(str(path), options={"brokersMax": "5"})
    assert restarted.render() == config.render()


async def test_updates_at_the_same_time_tell_what_each_replaced(with_secrets: NameServerConfig) -> None:
    told = [with_secrets.apply_update(text) for text in ("productEnvName=east", "productEnvName=west\naccessKey=neu")]
    assert await asyncio.gather(*told) == [
        {"productEnvName": ("center", "east")},
        {"accessKey": (HIDDEN, HIDDEN), "productEnvName": ("east", "west")},
    ]


def test_without_a_file_the_updates_make_one(tmp_path: Path) -> None:
    path = tmp_path / "new" / "namesrv.properties"
    update(NameServerConfig(settings_file=str(path)), "enableTopicList=false")
    assert read_properties(path) == {"enableTopicList": "false"}


def test_an_unchanged_value_is_no_change(config: NameServerConfig) -> None:
    assert update(config, "enableTopicList=true\nextra=1") == changed()


@pytest.mark.parametrize("text", ["", "# nothing", "unknown=1\nuseTLS=true\nclientWorkerThreads=1"])
def test_what_is_not_listed_is_ignored(config: NameServerConfig, path: Path, text: str) -> None:
    before = config.render()
    assert update(config, text) == changed()
    assert config.render() == before
    assert path.read_text(encoding="ascii") == FILE


def test_extras_of_the_file_can_be_updated(config: NameServerConfig) -> None:
    assert update(config, "extra=2\nconnectTimeoutMillis=5") == changed("extra")
    assert config.extras == {"extra": "2"}


@pytest.mark.parametrize(
    "key",
    [
        "configBlackList",
        "configStorePath",
        "kvConfigPath",
        "rocketmqHome",
        "rocketmq.home.dir",
        "tls.server.mode",
        "tls.config.file",
        "tls.unknown",
    ],
)
def test_one_black_listed_key_spoils_the_whole_update(config: NameServerConfig, path: Path, key: str) -> None:
    before = config.render()
    with pytest.raises(BlackListedError):
        update(config, f"enableTopicList=false\n{key}=/tmp/x")
    assert config.render() == before
    assert path.read_text(encoding="ascii") == FILE


def test_the_operator_adds_to_the_black_list(path: Path) -> None:
    config = NameServerConfig.load(str(path), options={"configBlackList": "listenPort; bindAddress;"})
    with pytest.raises(BlackListedError) as caught:
        update(config, "bindAddress=::\nlistenPort=1\nenableTopicList=false")
    assert caught.value.keys == {"bindAddress", "listenPort"}
    with pytest.raises(BlackListedError):
        update(config, "kvConfigPath=/x")


def test_escapes_do_not_smuggle_a_key_past_the_black_list(config: NameServerConfig) -> None:
    with pytest.raises(BlackListedError):
        update(config, "kv\\u0043onfig\\Path=/tmp/x")


@pytest.mark.parametrize(
    "text",
    [
        "listenPort=99999",
        "enableTopicList=no",
        "serverWorkerThreads=x",
        "writeBufferHighWaterMark=1\nwriteBufferLowWaterMark=2",
        "massExpiryPercent=101",
    ],
)
def test_one_wrong_value_spoils_the_whole_update(config: NameServerConfig, path: Path, text: str) -> None:
    before = config.render()
    with pytest.raises(ConfigError, match="the update"):
        update(config, f"orderMessageEnable=true\n{text}")
    assert config.render() == before
    assert path.read_text(encoding="ascii") == FILE


def test_a_malformed_update_is_refused(config: NameServerConfig) -> None:
    with pytest.raises(MalformedPropertiesError):
        update(config, "enableTopicList=\\u00")


def test_an_update_has_a_bound(config: NameServerConfig) -> None:
    update(config, "extra=" + "x" * (UPDATE_CHARS_MAX - 6))
    with pytest.raises(ConfigError, match="at most"):
        update(config, "extra=" + "x" * (UPDATE_CHARS_MAX - 5))


@pytest.mark.parametrize("part", ["\\a", "k\\\n", "a=b\n"])
def test_the_longest_update_takes_linear_time(config: NameServerConfig, part: str) -> None:
    before = config.render()
    with hang_guard():
        update(config, part * (UPDATE_CHARS_MAX // len(part)))
    assert config.render() == before  # unknown keys are ignored


def test_an_update_that_cannot_be_written_is_not_applied(config: NameServerConfig, path: Path) -> None:
    before = config.render()
    obstacle = path.with_name("namesrv.properties.tmp")
    obstacle.mkdir()
    with pytest.raises(FileWriteError, match="cannot write"):
        update(config, "enableTopicList=false\nextra=2\nserverWorkerThreads=1")
    assert config.render() == before
    assert path.read_text(encoding="ascii") == FILE
    obstacle.rmdir()
    update(config, "orderMessageEnable=true")
    assert "enableTopicList" not in read_properties(path)


SECRETS = {
    "innerClientAuthenticationCredentials": '{"accessKey":"me","secretKey":"geheim"}',
    "initAuthenticationUser": '{"username":"root","password":"geheim"}',
    "my.own.setting": "geheim",
    "accessKey": "geheim",
    "ssl.keystore.password": "geheim",
    "socksProxyConfig": '{"0.0.0.0/0":{"addr":"x:1","password":"geheim"}}',
}


@pytest.fixture
def with_secrets(path: Path) -> NameServerConfig:
    path.write_text(format_properties(SECRETS), encoding="ascii")
    return NameServerConfig.load(str(path))


def test_possible_secrets_are_hidden(with_secrets: NameServerConfig, caplog: pytest.LogCaptureFixture) -> None:
    told = parse_properties(with_secrets.render())
    assert {key: told[key] for key in SECRETS} == dict.fromkeys(SECRETS, HIDDEN)
    assert "geheim" not in with_secrets.render() + repr(with_secrets) + caplog.text
    shown = parse_properties(with_secrets.render_all())
    assert {key for key in SECRETS if shown[key] != HIDDEN} == {"my.own.setting"}


def test_a_hidden_value_that_is_sent_back_leaves_the_secret(with_secrets: NameServerConfig, path: Path) -> None:
    hidden = "\n".join(f"{key}={HIDDEN}" for key in SECRETS)
    assert update(with_secrets, f"{hidden}\norderMessageEnable=true") == changed("orderMessageEnable")
    assert read_properties(path) == SECRETS | {"orderMessageEnable": "true"}
    assert update(with_secrets, "accessKey=neu") == changed("accessKey")
    assert read_properties(path)["accessKey"] == "neu"
