import logging
from pathlib import Path

import pytest

from skyroute.nameserver.config import NameServerConfig
from skyroute.remoting.tls_settings import ClientAuth, TlsClientSettings, TlsMode, TlsSettings
from skyroute.settings.errors import ConfigError
from skyroute.settings.properties import parse_properties


def split(names: str) -> list[str]:
    return names.split()


NAME_SERVER_KEYS = split("""
    rocketmqHome kvConfigPath configStorePath productEnvName clusterTest orderMessageEnable configBlackList
    returnOrderTopicConfigToBroker clientRequestThreadPoolNums defaultThreadPoolNums
    clientRequestThreadPoolQueueCapacity defaultThreadPoolQueueCapacity scanNotActiveBrokerInterval
    unRegisterBrokerQueueCapacity supportActingMaster enableAllTopicList enableTopicList notifyMinBrokerIdChanged
    enableControllerInNamesrv needWaitForService waitSecondsForService deleteTopicWithBrokerRegistration
""")
SERVER_KEYS = split("""
    bindAddress listenPort serverWorkerThreads serverCallbackExecutorThreads serverSelectorThreads
    serverOnewaySemaphoreValue serverAsyncSemaphoreValue serverChannelMaxIdleTimeSeconds serverSocketSndBufSize
    serverSocketRcvBufSize writeBufferHighWaterMark writeBufferLowWaterMark serverSocketBacklog
    serverPooledByteBufAllocatorEnable useEpollNativeSelector serverNettyWorkerGroupEnable
    enableShutdownGracefully shutdownWaitTimeSeconds
""")
CLIENT_KEYS = split("""
    clientWorkerThreads clientCallbackExecutorThreads clientOnewaySemaphoreValue clientAsyncSemaphoreValue
    connectTimeoutMillis channelNotActiveInterval clientChannelMaxIdleTimeSeconds clientSocketSndBufSize
    clientSocketRcvBufSize clientPooledByteBufAllocatorEnable clientCloseSocketIfTimeout useTLS
    disableCallbackExecutor disableNettyWorkerGroup socksProxyConfig maxReconnectIntervalTimeSeconds
    enableReconnectForGoAway enableTransparentRetry scanAvailableNameSrv
""")
OWN_KEYS = split("""
    frameMaxLength registrationMaxLength serverMaxConnections serverBufferedBytesMax prologueTimeoutSeconds
    brokersMax topicEntriesMax registrationBytesMax kvConfigMaxBytes
    memoryPath journalEnable journalSegmentBytes journalSegmentSeconds journalMaxBytes journalMaxAgeHours
    journalQueueMax journalQueueBytesMax warmRestartEnable warmRestartLeaseSeconds snapshotIntervalSeconds
    snapshotMaxAgeSeconds massExpiryPercent watchEnable metricsPort metricsHost trustedProxies
    addressConnectionsMax addressHandshakesMax addressRequestsPerSecond addressBytesPerSecond limitExemptAddresses
""")


def properties_file(tmp_path: Path, text: str, name: str = "namesrv.properties") -> str:
    path = tmp_path / name
    path.write_text(text, encoding="ascii")
    return str(path)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_the_defaults_are_javas(caplog: pytest.LogCaptureFixture) -> None:
    config = NameServerConfig.load()
    assert (config.bind_address, config.listen_port) == ("0.0.0.0", 9876)
    assert config.kv_config_path == str(Path.home() / "namesrv" / "kvConfig.json")
    assert config.settings_file == str(Path.home() / "namesrv" / "namesrv.properties")
    assert config.scan_interval_s == 5.0
    assert config.idle_timeout_s == 120.0
    assert config.wait_for_brokers_s == 45.0
    assert config.connect_timeout_s == 3.0
    assert config.shutdown_wait_s == 30.0
    assert config.prologue_timeout_s == 10.0
    assert config.frame_bytes_max == 16 * 1024 * 1024
    assert config.rocketmq_home is None
    assert config.tls == TlsSettings()
    assert caplog.records == []


def test_a_file_wins_over_defaults_and_the_command_line_over_the_file(tmp_path: Path) -> None:
    path = properties_file(tmp_path, "listenPort=1111\nclusterTest=TRUE \nwaitSecondsForService = 7\t\n")
    config = NameServerConfig.load(path, options={"listenPort": " 2222 "})
    assert (config.listen_port, config.cluster_test_mode, config.wait_for_brokers_s) == (2222, True, 7)


def test_the_settings_file_is_the_one_that_was_read(tmp_path: Path) -> None:
    path = properties_file(tmp_path, "configStorePath=/elsewhere")
    assert NameServerConfig.load(path, options={"configStorePath": "/there"}).settings_file == path
    assert NameServerConfig.load(options={"configStorePath": "/there"}).settings_file == "/there"


def test_the_home_directory_comes_from_many_places(tmp_path: Path) -> None:
    path = properties_file(tmp_path, "rocketmqHome=/from/file")
    environment = {"ROCKETMQ_HOME": "/from/environment"}
    assert NameServerConfig.load(environment=environment).rocketmq_home == "/from/environment"
    assert NameServerConfig.load(path, environment=environment).rocketmq_home == "/from/file"
    assert NameServerConfig.load(options={"rocketmq.home.dir": "/opt"}, environment=environment).rocketmq_home == "/opt"
    assert NameServerConfig.load(options={"rocketmqHome": ""}, environment=environment).rocketmq_home is None


def test_the_header_form_comes_from_a_property_or_the_environment(tmp_path: Path) -> None:
    environment = {"ROCKETMQ_SERIALIZE_TYPE": "rocketmq"}
    assert NameServerConfig.load(environment=environment).serialize_type == "ROCKETMQ"
    path = properties_file(tmp_path, "rocketmq.serialize.type=JSON")
    assert NameServerConfig.load(path, environment=environment).serialize_type == "JSON"
    with pytest.raises(ConfigError, match="from the environment is wrong"):
        NameServerConfig.load(environment={"ROCKETMQ_SERIALIZE_TYPE": "XML"})


def test_jvm_properties_are_the_defaults_of_settings(tmp_path: Path) -> None:
    path = properties_file(
        tmp_path,
        "com.rocketmq.remoting.frameMaxLength=33554432\n"
        "com.rocketmq.remoting.socket.sndbuf.size=65536\n"
        "serverSocketSndBufSize=4096\n"
        "com.rocketmq.remoting.client.connect.timeout=100\n",
    )
    config = NameServerConfig.load(path)
    assert config.frame_bytes_max == 33554432
    assert config.send_buffer_bytes == 4096
    assert config.inert == {"clientSocketSndBufSize": "65536"}
    assert config.connect_timeout_s == 0.1
    assert config.extras == {}


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("listenPort=port", "listenPort='port' from {path} is wrong: it must be a whole number from 0 to 65535"),
        ("listenPort=65536", "listenPort='65536' from {path} is wrong: it must be a whole number from 0 to 65535"),
        ("listenPort=-1", "listenPort='-1' from {path} is wrong: it must be a whole number from 0 to 65535"),
        ("listenPort=", "listenPort='' from {path} is wrong: it must be a whole number from 0 to 65535"),
        ("listenPort=9_876", "listenPort='9_876' from {path} is wrong: it must be a whole number from 0 to 65535"),
        ("clusterTest=yes", "clusterTest='yes' from {path} is wrong: it must be true or false"),
        ("serverWorkerThreads=many", "serverWorkerThreads='many' from {path} is wrong: it must be a whole number"),
        (
            "trustedProxies=10.0.0.1,lb-1",
            "trustedProxies='10.0.0.1,lb-1' from {path} is wrong: 'lb-1' does not appear to be an IPv4 or IPv6 network",
        ),
        ("useTLS=on", "useTLS='on' from {path} is wrong: it must be true or false"),
        (
            "rocketmq.serialize.type=XML",
            "'XML' from {path} is wrong: it must be JSON or ROCKETMQ",
        ),
        ("kvConfigPath=", "kvConfigPath='' from {path} is wrong: it must be text on one line, not empty"),
        (
            "kvConfigPath=a\\u0000b",
            "'a\\x00b' from {path} is wrong: it must be text on one line, not empty",
        ),
        ("bindAddress=a\\nb", "bindAddress='a\\nb' from {path} is wrong: it must be text on one line, not empty"),
        ("scanNotActiveBrokerInterval=0", "scanNotActiveBrokerInterval='0' from {path} is wrong"),
        ("tls.server.mode=strict", "from {path} is wrong: it must be disabled or permissive or enforcing"),
        ("tls.server.need.client.auth=want", "from {path} is wrong: it must be none or optional or require"),
        ("tls.test.mode.enable=1", "tls.test.mode.enable='1' from {path} is wrong: it must be true or false"),
        (
            "writeBufferLowWaterMark=9\nwriteBufferHighWaterMark=8",
            "writeBufferLowWaterMark=9 from {path} is wrong: it must not be above writeBufferHighWaterMark, which is 8",
        ),
        ("a=\\u12", "malformed \\uXXXX escape in '\\\\u12', in {path}"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_its_origin_and_what_is_allowed(
    tmp_path: Path, line: str, complaint: str
) -> None:
    path = properties_file(tmp_path, line)
    with pytest.raises(ConfigError) as caught:
        NameServerConfig.load(path)
    assert complaint.format(path=path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_long_wrong_value_is_cut() -> None:
    with pytest.raises(ConfigError) as caught:
        NameServerConfig.load(options={"listenPort": "9" * 100_000})
    assert len(str(caught.value)) < 300
    assert "from the command line" in str(caught.value)


def test_every_key_of_java_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    everything = parse_properties(NameServerConfig(rocketmq_home="/opt", use_tls=False).render_all())
    keys = {*NAME_SERVER_KEYS, *SERVER_KEYS, *CLIENT_KEYS, *OWN_KEYS}
    assert keys <= everything.keys()
    path = properties_file(tmp_path, "".join(f"{key}={everything[key]}\n" for key in keys))
    assert NameServerConfig.load(path).extras == {}
    assert not [line for line in warnings(caplog) if "unknown" in line]


def test_a_remote_client_sees_sorted_lines_without_the_client_side() -> None:
    lines = NameServerConfig(rocketmq_home="/opt").render().splitlines()
    assert lines == sorted(lines)
    assert {line.partition("=")[0] for line in lines} == {*NAME_SERVER_KEYS, *SERVER_KEYS, *OWN_KEYS}
    assert "listenPort=9876" in lines
    assert "clusterTest=false" in lines


def test_absent_values_are_not_listed() -> None:
    assert "rocketmqHome" not in NameServerConfig().render()


def test_client_settings_are_listed_where_somebody_set_them(tmp_path: Path) -> None:
    config = NameServerConfig.load(properties_file(tmp_path, "connectTimeoutMillis=5\nclientWorkerThreads=2"))
    listed = parse_properties(config.render())
    assert listed["connectTimeoutMillis"] == "5"
    assert listed["clientWorkerThreads"] == "2"
    assert CLIENT_KEYS[1] not in listed


def test_inert_settings_are_accepted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = properties_file(tmp_path, "serverWorkerThreads=4\ndefaultThreadPoolNums=99\nlistenPort=1")
    config = NameServerConfig.load(path)
    assert parse_properties(config.render())["defaultThreadPoolNums"] == "99"
    assert warnings(caplog) == ["settings without effect keys=defaultThreadPoolNums,serverWorkerThreads"]


def test_unknown_settings_are_kept_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = NameServerConfig.load(properties_file(tmp_path, "zebra = a b \napple=1"), options={"user.region": "x"})
    assert config.extras == {"zebra": "a b", "apple": "1", "user.region": "x"}
    assert {"zebra=a b", "apple=1", "user.region=x"} <= set(config.render_all().splitlines())
    assert {"zebra=******", "apple=******", "user.region=******"} <= set(config.render().splitlines())
    assert warnings(caplog) == ["unknown settings, kept without effect keys=apple,user.region,zebra"]


def test_a_misspelled_setting_is_logged_with_the_known_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    NameServerConfig.load(properties_file(tmp_path, "listenPorts=9876\nzebra=1"))
    assert warnings(caplog) == [
        "unknown settings, kept without effect keys=listenPorts,zebra",
        "setting may be misspelled key=listenPorts similar=listenPort",
    ]


def test_settings_of_an_embedded_controller_are_not_unknown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = properties_file(tmp_path, "enableControllerInNamesrv=true\ncontrollerDLegerSelfId=n0\nzebra=1")
    NameServerConfig.load(path)
    assert warnings(caplog) == ["unknown settings, kept without effect keys=zebra"]


def test_a_line_break_in_a_value_does_not_pass_for_a_setting(tmp_path: Path) -> None:
    config = NameServerConfig.load(properties_file(tmp_path, r"extra=a\nlistenPort=1"))
    assert r"extra=a\nlistenPort=1" in config.render_all().splitlines()
    assert parse_properties(config.render_all())["listenPort"] == "9876"


def test_tls_comes_from_the_file_and_the_command_line(tmp_path: Path) -> None:
    path = properties_file(
        tmp_path,
        "tls.server.mode=Enforcing\ntls.test.mode.enable=false\ntls.server.need.client.auth=REQUIRE\n"
        "tls.server.keyPath=/k\ntls.server.keyPassword=geheim\ntls.server.certPath=/c\ntls.server.authClient=true\n"
        "tls.server.trustCertPath=/t\ntls.client.keyPath=/ck\ntls.client.certPath=/cc\ntls.client.authServer=true\n",
    )
    config = NameServerConfig.load(
        path,
        options={"tls.client.trustCertPath": "/ct", "tls.client.keyPassword": "secret", "tls.server.keyPath": "/d"},
    )
    assert config.tls == TlsSettings(
        mode=TlsMode.ENFORCING,
        test_mode=False,
        need_client_auth=ClientAuth.REQUIRE,
        key_path="/d",
        key_password="geheim",
        cert_path="/c",
        auth_client=True,
        trust_cert_path="/t",
        client=TlsClientSettings(
            enabled=True,
            key_path="/ck",
            key_password="secret",
            cert_path="/cc",
            auth_server=True,
            trust_cert_path="/ct",
        ),
    )


def test_the_tls_file_wins_except_over_what_it_cannot_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tls_file = properties_file(
        tmp_path, "tls.server.keyPath=/from/tls\ntls.server.mode=disabled\ntls.enable=true\nother=1", "tls.properties"
    )
    config = NameServerConfig.load(options={"tls.config.file": tls_file, "tls.server.keyPath": "/from/options"})
    assert config.tls == TlsSettings(key_path="/from/tls")
    assert warnings(caplog) == [
        f"tls config file has keys without effect file={tls_file} keys=other,tls.enable,tls.server.mode"
    ]


def test_a_missing_tls_file_is_logged_and_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = NameServerConfig.load(options={"tls.config.file": str(tmp_path / "none")})
    assert config.tls == TlsSettings()
    assert warnings(caplog) == [f"tls config file is missing file={tmp_path / 'none'}"]


def test_a_tls_file_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        NameServerConfig.load(options={"tls.config.file": str(tmp_path)})


@pytest.mark.parametrize(
    ("options", "enabled"),
    [
        ({}, False),
        ({"tls.server.mode": "enforcing"}, True),
        ({"tls.server.mode": "enforcing", "tls.enable": "false"}, False),
        ({"tls.enable": "true"}, True),
        ({"tls.enable": "true", "useTLS": "false"}, False),
        ({"useTLS": "true"}, True),
    ],
)
def test_outbound_tls_follows_use_tls_then_tls_enable_then_the_mode(options: dict[str, str], *, enabled: bool) -> None:
    assert NameServerConfig.load(options=options).tls.client.enabled is enabled


def test_an_empty_tls_value_counts_as_absent() -> None:
    config = NameServerConfig.load(options={"tls.server.keyPath": "", "tls.server.mode": " "})
    assert config.tls == TlsSettings()


def test_passwords_are_never_shown(tmp_path: Path) -> None:
    path = properties_file(tmp_path, "tls.server.keyPassword=geheim\ntls.server.certPath=/c")
    config = NameServerConfig.load(path, options={"tls.client.keyPassword": "geheim"})
    assert "geheim" not in config.render() + config.render_all() + repr(config)
    assert "tls.server.certPath=/c" in config.render().splitlines()
    assert "tls.server.keyPassword=******" in config.render_all().splitlines()
