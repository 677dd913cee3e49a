import asyncio
import logging
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from skyroute.broker.config import BrokerConfig
from skyroute.broker.store.settings import StoreSettings
from skyroute.errors import SkyrouteError
from skyroute.nameserver.config import NameServerConfig
from skyroute.settings.errors import BlackListedError, ConfigError
from skyroute.settings.properties import parse_properties, read_properties

BROKER_CONF = """
# as Apache ships it
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""


def load(text: str, folder: Path, **options: str) -> BrokerConfig:
    path = folder / "broker.conf"
    path.write_text(text)
    return BrokerConfig.load(str(path), options=options)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_defaults_are_those_of_apache_with_a_few_exceptions(caplog: pytest.LogCaptureFixture) -> None:
    config = BrokerConfig.load()
    assert (config.bind_address, config.listen_port) == ("0.0.0.0", 10911)
    assert (config.cluster_name, config.broker_name) == ("DefaultCluster", socket.gethostname())
    assert config.store_folder == Path.home() / "store"
    assert config.settings_path == Path.home() / "store" / "config" / "broker.properties"
    assert config.store_settings() == StoreSettings()
    assert config.message_bytes_max == 4 * 1024 * 1024
    assert config.delete_hours == {4}
    assert config.bounded_registration_interval_s == 30.0
    assert config.name_servers == ()
    assert caplog.records == []
    # Different from Apache: SQL92 filters are enabled, and a pull returns more than 32 messages.
    assert config.property_filter_enabled
    assert config.pull_messages_max == 1024
    assert config.pull_bytes_max == 4 * 1024 * 1024


def test_the_broker_conf_of_apache_loads_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load(BROKER_CONF, tmp_path)
    assert (config.broker_name, config.store_settings().reserved_ms) == ("broker-a", 48 * 3_600_000)
    assert caplog.records == []


def test_name_servers_come_from_the_environment_the_file_or_the_command_line(tmp_path: Path) -> None:
    environment = {"NAMESRV_ADDR": "one:9876"}
    assert BrokerConfig.load(environment=environment).name_servers == ("one:9876",)
    path = tmp_path / "broker.conf"
    path.write_text("namesrvAddr = two:9876 ; three:9876;;two:9876\n")
    assert BrokerConfig.load(str(path), environment=environment).name_servers == ("two:9876", "three:9876")
    options = {"namesrvAddr": "four:9876"}
    assert BrokerConfig.load(str(path), options=options, environment=environment).name_servers == ("four:9876",)


def test_store_settings_follow_from_the_options() -> None:
    config = BrokerConfig.load(
        options={
            "mappedFileSizeCommitLog": "1048576",
            "mappedFileSizeConsumeQueue": "2001",
            "maxHashSlotNum": "10",
            "maxIndexNum": "40",
            "messageIndexEnable": "false",
            "indexInOwnProcess": "false",
            "flushDiskType": "sync_flush",
            "messageDelayLevel": "1s 2m 3h 4d",
            "fileReservedTime": "1",
            "diskMaxUsedSpaceRatio": "50",
            "diskSpaceCleanForciblyRatio": "60",
            "diskSpaceWarningLevelRatio": "70",
            "deleteFileBatchMax": "3",
        }
    )
    assert config.sync_flush
    assert config.store_settings() == StoreSettings(
        log_segment_bytes=1048576,
        queue_segment_units=101,
        index_slots=10,
        index_entries=40,
        index_enabled=False,
        index_process=False,
        delays_ms=(1_000, 120_000, 10_800_000, 345_600_000),
        sync_flush=True,
        reserved_ms=3_600_000,
        disk_used_max=0.5,
        disk_used_urgent=0.6,
        disk_used_refuse=0.7,
        expired_segments_max=3,
    )


def test_without_forced_deletion_a_full_disk_deletes_expired_messages_only() -> None:
    config = BrokerConfig(forced_deletion_enabled=False)
    assert config.store_settings().disk_used_urgent == 1.0


def test_files_have_rocketmqs_units_and_fields_have_ours() -> None:
    given = {"channelExpiredTimeout": "15500", "fileReservedTime": "48", "diskMaxUsedSpaceRatio": "57"}
    config = BrokerConfig.load(options=given)
    assert (config.client_expiry_s, config.retention_ms, config.disk_used_max) == (15.5, 48 * 3_600_000, 0.57)
    listed = parse_properties(config.render())
    assert {key: listed[key] for key in given} == given


def test_the_largest_number_of_milliseconds_is_listed_as_it_was_given() -> None:
    largest = str(2**63 - 1)
    config = BrokerConfig.load(options={"transactionCheckInterval": largest})
    assert parse_properties(config.render())["transactionCheckInterval"] == largest


@pytest.mark.parametrize("kind", [BrokerConfig, NameServerConfig])
def test_settings_are_logged_and_possible_secrets_are_hidden(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: type[BrokerConfig] | type[NameServerConfig]
) -> None:
    path = tmp_path / "file.properties"
    path.write_text("listenPort=10000\ntls.server.keyPassword=hidden1\nsome.plugin=hidden2\nserverWorkerThreads=7\n")
    config = kind.load(str(path))
    with caplog.at_level(logging.INFO):
        config.log_settings()
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.INFO]
    assert {"setting listenPort=10000", "setting serverWorkerThreads=7"} <= set(lines)
    assert {"setting tls.server.keyPassword=******", "setting some.plugin=******"} <= set(lines)
    assert not any("hidden" in line for line in lines)
    assert not any(line.startswith("setting serverSelectorThreads=") for line in lines)  # no effect, and not set


@pytest.mark.parametrize(("wanted_s", "used_s"), [(0.001, 10), (10, 10), (20, 20), (60, 60), (99.999, 60)])
def test_the_registration_interval_is_bounded(wanted_s: float, used_s: float) -> None:
    assert BrokerConfig(registration_interval_s=wanted_s).bounded_registration_interval_s == used_s


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("brokerRole=SLAVE", "brokerId=0 from {path} does not fit brokerRole (expected 1 or more for a slave)"),
        ("brokerId=1", "brokerId=1 from {path} does not fit brokerRole (expected 0 for a master"),
        ("brokerId=-1", "brokerId=-1 from {path} does not fit brokerRole"),
        ("enableControllerMode=true", "enableControllerMode=true from {path} needs controllerAddr"),
        (
            "enableDLegerCommitLog=true",
            "enableDLegerCommitLog=true from {path} is not supported: this broker has no DLedger",
        ),
        (
            "storeType=defaultRocksDB",
            "storeType=defaultRocksDB from {path} is not supported: this broker reads and writes only",
        ),
        ("authenticationProvider=x.Own", "authenticationProvider='x.Own' from {path} is wrong"),
        ("authenticationWhitelist=a", "authenticationWhitelist='a' from {path} is wrong: it must be request codes"),
        ("brokerSourceAddresses=10.0", "brokerSourceAddresses='10.0' from {path} is wrong"),
        ("auditedDecisions=some", "it must be none or refused or changes or all"),
        ("enableLmq=true", "enableLmq=true from {path} is not supported: this broker has no light message queues"),
        ("fetchNamesrvAddrByAddressServer=true", "list them in namesrvAddr"),
        ("messageStorePlugIn=x.Y", "messageStorePlugIn=x.Y from {path} is not supported"),
        ("readOnlyCommitLogStorePaths=/a,/b", "the commit log is in one folder, below storePathRootDir"),
        ("storePathCommitLog=/fast/commitlog", "the commit log is below storePathRootDir, in "),
        ("messageDelayLevel=1s 5 minutes", "messageDelayLevel='1s 5 minutes' from {path} is wrong: '5' is not a time"),
        ("messageDelayLevel=" + "1s " * 101, "it must be from 1 to 100 times such as 30s, 5m, 2h or 1d"),
        ("deleteWhen=24", "deleteWhen='24' from {path} is wrong: it must be hours of the day such as 04 or 04;16"),
        ("deleteWhen=;", "it must be hours of the day"),
        ("timerPrecisionMs=1", "it must be a whole number from 100 to"),
        ("flushDiskType=NEVER", "it must be ASYNC_FLUSH or SYNC_FLUSH"),
        ("listenPort=70000", "listenPort='70000' from {path} is wrong: it must be a whole number from 0 to 65535"),
        ("brokerName=", "brokerName='' from {path} is wrong: it must be text on one line, not empty"),
        ("sendMessageThreadPoolNums=many", "sendMessageThreadPoolNums='many' from {path} is wrong"),
    ],
)
def test_an_unsupported_or_wrong_value_is_refused_in_one_line(tmp_path: Path, line: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(line, tmp_path)
    assert complaint.format(path=tmp_path / "broker.conf") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "brokerRole=SYNC_MASTER",
        "aclEnable=false",
        "authenticationProvider=org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
        "enableControllerMode=false",
        "enableControllerMode=true\ncontrollerAddr=10.0.0.1:9878\nbrokerId=-1\nbrokerRole=SLAVE\nminInSyncReplicas=2",
        "storeType=default",
        "storePathRootDir=/data\nstorePathCommitLog=/data/commitlog",
        "inSyncReplicas=1",
    ],
)
def test_values_that_need_no_unsupported_feature_are_accepted(
    tmp_path: Path, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    load(line, tmp_path)
    assert caplog.records == []


def test_settings_without_effect_are_accepted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load("transientStorePoolEnable=true\nsendMessageThreadPoolNums=8\n", tmp_path)
    listed = parse_properties(config.render())
    assert (listed["transientStorePoolEnable"], listed["sendMessageThreadPoolNums"]) == ("true", "8")
    assert warnings(caplog) == ["settings without effect keys=sendMessageThreadPoolNums,transientStorePoolEnable"]


def test_the_remote_list_has_all_settings_by_their_rocketmq_names() -> None:
    lines = BrokerConfig(broker_name="broker-a", advertised_host="10.0.0.1").render().splitlines()
    assert lines == sorted(lines)
    assert {
        *("brokerName=broker-a", "brokerIP1=10.0.0.1", "listenPort=10911", "maxMessageSize=4194304"),
        *("popPollingSize=1024", "haMaxGapNotInSync=268435456", "connectTimeoutMillis=3000", "enableLmq=false"),
        *("flushDiskType=ASYNC_FLUSH", "brokerRole=ASYNC_MASTER", "enableDLegerCommitLog=false"),
    } <= set(lines)
    assert len(lines) > 400


def update(config: BrokerConfig | NameServerConfig, text: str) -> frozenset[str]:
    return frozenset(asyncio.run(config.apply_update(text)))


def test_an_update_takes_effect_and_is_saved_in_the_store(tmp_path: Path) -> None:
    config = BrokerConfig(store_path=str(tmp_path))
    assert update(config, "brokerPermission=4\nlistenPort=10911\n") == {"brokerPermission"}
    assert config.broker_permission == 4
    stored = {"brokerPermission": "4", "listenPort": "10911"}
    assert read_properties(tmp_path / "config" / "broker.properties") == stored


def test_an_update_is_saved_in_the_file_of_the_start(tmp_path: Path) -> None:
    config = load(BROKER_CONF, tmp_path, storePathRootDir=str(tmp_path / "store"))
    update(config, "maxMessageSize=1")
    assert read_properties(tmp_path / "broker.conf")["maxMessageSize"] == "1"


@pytest.mark.parametrize(
    "text",
    [
        "mappedFileSizeCommitLog=4096",
        "storePathRootDir=/elsewhere",
        "brokerName=another",
        "bindAddress=192.0.2.1",
        "flushDiskType=SYNC_FLUSH",
        "timerPrecisionMs=100",
        "metricsPort=1",
        "indexInOwnProcess=false",
        "startAcceptSendRequestTimeStamp=9223372036854775807",
        "storeType=defaultRocksDB",
        "brokerRole=SLAVE",
        "deleteWhen=never",
    ],
)
def test_an_update_that_would_break_the_next_start_is_refused(tmp_path: Path, text: str) -> None:
    config = load(BROKER_CONF, tmp_path, storePathRootDir=str(tmp_path / "store"))
    before = (tmp_path / "broker.conf").read_bytes()
    with pytest.raises(SkyrouteError, match=text.partition("=")[0]):
        update(config, f"maxMessageSize=77\n{text}")
    assert config.message_bytes_max != 77
    assert (tmp_path / "broker.conf").read_bytes() == before


VALUES = ("", "0", "1", "-1", "7", "65536", "2147483647", "9223372036854775807", "true", "false", "x", "05", "1s 2s")


@pytest.mark.parametrize("kind", [BrokerConfig, NameServerConfig])
def test_the_next_start_loads_every_accepted_update(
    tmp_path: Path, kind: type[BrokerConfig] | type[NameServerConfig]
) -> None:
    path = tmp_path / "file.properties"
    path.write_text("brokerClusterName=C\n")
    taken = 0
    config = kind.load(str(path))
    for key in {line.partition("=")[0] for line in config.render().splitlines()} - kind.INERT.keys():
        for value in VALUES:
            with suppress(SkyrouteError):
                taken += key in update(config, f"{key}={value}")
        assert kind.load(str(path)).render() == config.render(), key
    assert taken > 20


@pytest.mark.parametrize("key", ["storePathRootDir", "brokerConfigPath", "rocketmqHome", "tls.server.mode"])
def test_paths_and_tls_cannot_be_changed_remotely(tmp_path: Path, key: str) -> None:
    config = BrokerConfig(store_path=str(tmp_path), settings_file=str(tmp_path / "b.conf"))
    with pytest.raises(BlackListedError):
        update(config, f"{key}=/tmp/x")


@pytest.mark.parametrize(
    "text", ["brokerRole=SLAVE", "deleteWhen=25", "messageDelayLevel=x", "storeType=defaultRocksDB"]
)
def test_an_update_to_an_unsupported_value_is_refused(tmp_path: Path, text: str) -> None:
    config = BrokerConfig(store_path=str(tmp_path))
    before = config.render()
    with pytest.raises(ConfigError, match="the update"):
        update(config, f"brokerPermission=4\n{text}")
    assert config.render() == before
