"""The settings of a broker."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final

from skyroute.broker.inert_settings import BROKER_INERT_SETTINGS
from skyroute.broker.store.files.segment import DESCRIPTORS, open_segments_allowed
from skyroute.broker.store.settings import StoreSettings
from skyroute.message.reserved_topics import TRACE_TOPIC
from skyroute.settings.config import ServerConfig, home_folder
from skyroute.settings.errors import ConfigError
from skyroute.settings.keys import HOUR_MS, HOURS, LONG_MAX, MS, PERCENT, InertSettings, Scope, Value, setting
from skyroute.wire.ha import TRANSFER_BYTES_MAX

DELAY_LEVELS_MAX: Final = 100
"""Each level has a queue."""
_INT_MAX: Final = (1 << 31) - 1
QUEUE_UNIT_BYTES: Final = 20
BATCH_UNIT_BYTES: Final = 46
_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_REGISTRATION_INTERVALS_S: Final = (10.0, 60.0)
_NO_LIGHT_QUEUES: Final = "this broker has no light message queues"

_UNSUPPORTED: Final[Mapping[str, str]] = {
    "enableDLegerCommitLog": "this broker has no DLedger; Apache RocketMQ's broker has it",
    "enableLmq": _NO_LIGHT_QUEUES,
    "enableMultiDispatch": _NO_LIGHT_QUEUES,
    "fetchNamesrvAddrByAddressServer": "name servers are not looked up at an address server; list them in namesrvAddr",
    "messageStorePlugIn": "this broker has no store plug-ins",
    "readOnlyCommitLogStorePaths": "the commit log is in one folder, below storePathRootDir",
}
"""Settings that are refused if they are true or not empty, with the reason."""


@dataclass(slots=True, kw_only=True)
class BrokerConfig(ServerConfig):
    """The settings of one broker."""

    ENVIRONMENT: ClassVar[Mapping[str, str]] = {**ServerConfig.ENVIRONMENT, "NAMESRV_ADDR": "namesrvAddr"}
    INERT: ClassVar[InertSettings] = BROKER_INERT_SETTINGS
    LISTED: ClassVar[frozenset[Scope]] = frozenset({Scope.BROKER, Scope.STORE, Scope.SERVER, Scope.CLIENT, Scope.OWN})
    FIXED: ClassVar[frozenset[str]] = ServerConfig.FIXED | {
        *("brokerConfigPath", "storePathRootDir", "storePathCommitLog"),
    }
    PATH_FIELD: ClassVar[str] = "settings_file"

    listen_port: int = setting("listenPort", Scope.SERVER, 10911, at_most=65535)
    config_black_list: str = setting("configBlackList", Scope.BROKER, "configBlackList;brokerConfigPath")
    settings_file: str | None = setting("brokerConfigPath", Scope.BROKER, None, kind=str)

    # Identity and addresses

    cluster_name: str = setting("brokerClusterName", Scope.BROKER, "DefaultCluster", may_be_empty=False)
    broker_name: str = setting("brokerName", Scope.BROKER, "", may_be_empty=False)
    broker_id: int = setting("brokerId", Scope.BROKER, 0, at_least=-1, at_most=LONG_MAX)
    advertised_host: str | None = setting("brokerIP1", Scope.BROKER, None, kind=str)
    """Host that clients connect to; None: found at the start."""
    advertised_ha_host: str | None = setting("brokerIP2", Scope.BROKER, None, kind=str)
    """Host that slaves connect to; None: `advertised_host`."""
    advertised_port: int = setting("advertisedPort", Scope.OWN, 0, at_most=65535)
    """Port that clients connect to; 0: `listen_port`."""
    ha_port: int = setting("haListenPort", Scope.STORE, 0, at_most=65535)
    """Port that slaves connect to; 0: `listen_port` + 1."""
    name_server_list: str = setting("namesrvAddr", Scope.BROKER, "")

    # Registration

    registration_interval_s: float = setting("registerNameServerPeriod", Scope.BROKER, 30.0, unit=MS, live=True)
    registration_timeout_s: float = setting(
        "registerBrokerTimeoutMills", Scope.BROKER, 24.0, unit=MS, at_least=1, live=True
    )
    force_registration: bool = setting("forceRegister", Scope.BROKER, True, live=True)
    compress_registration: bool = setting("compressedRegister", Scope.BROKER, False, live=True)
    register_single_topics: bool = setting("enableSingleTopicRegister", Scope.BROKER, False, live=True)
    """Announce a new topic with 217; an incremental 103 makes some name servers drop all other topics."""
    acting_master_enabled: bool = setting("enableSlaveActingMaster", Scope.BROKER, False)
    supports_old_name_servers: bool = setting("compatibleWithOldNameSrv", Scope.BROKER, True)
    heartbeat_interval_s: float = setting("brokerHeartbeatInterval", Scope.BROKER, 1.0, unit=MS, at_least=1000)
    lease_s: float = setting("brokerNotActiveTimeoutMillis", Scope.BROKER, 10.0, unit=MS, at_least=1, at_most=LONG_MAX)

    # Controller mode

    controller_mode_enabled: bool = setting("enableControllerMode", Scope.BROKER, False)
    """A controller gives this broker its id and its role."""
    controller_list: str = setting("controllerAddr", Scope.BROKER, "")
    role_check_interval_s: float = setting("syncBrokerMetadataPeriod", Scope.BROKER, 5.0, unit=MS, at_least=1)
    sync_set_check_interval_s: float = setting("checkSyncStateSetPeriod", Scope.BROKER, 5.0, unit=MS, at_least=1)
    controller_lease_s: float = setting("controllerHeartBeatTimeoutMills", Scope.BROKER, 10.0, unit=MS, at_least=1)
    """Time without a heartbeat after which the controller takes this broker for dead."""
    election_priority: int = setting("brokerElectionPriority", Scope.BROKER, _INT_MAX, at_most=_INT_MAX)
    """Of replicas with the same log, the one with the smallest number becomes master."""
    all_ack_in_sync_set: bool = setting("allAckInSyncStateSet", Scope.STORE, False)
    """A send waits for every member of the sync state set."""
    slave_lag_max_s: float = setting("haMaxTimeSlaveNotCatchup", Scope.STORE, 15.0, unit=MS, at_least=1)
    """A member of the sync state set that lags longer leaves it."""
    sync_from_last_file: bool = setting("syncFromLastFile", Scope.STORE, False)
    """An empty slave starts at the beginning of the master's last file."""
    is_learner: bool = setting("asyncLearner", Scope.STORE, False)
    """Follow the master without ever joining the sync state set."""
    epoch_path: str | None = setting("storePathEpochFile", Scope.STORE, None, kind=str)
    identity_path: str | None = setting("storePathBrokerIdentity", Scope.STORE, None, kind=str)

    # Topics and groups

    broker_permission: int = setting("brokerPermission", Scope.BROKER, 6, at_most=7, live=True)
    default_topic_queues: int = setting("defaultTopicQueueNums", Scope.BROKER, 8, at_least=1, at_most=65535, live=True)
    auto_create_topics: bool = setting("autoCreateTopicEnable", Scope.BROKER, True, live=True)
    auto_create_groups: bool = setting("autoCreateSubscriptionGroup", Scope.BROKER, True, live=True)
    auto_create_system_groups: bool = setting("enableCreateSysGroup", Scope.BROKER, True, live=True)
    cluster_topic_enabled: bool = setting("clusterTopicEnable", Scope.BROKER, True)
    broker_topic_enabled: bool = setting("brokerTopicEnable", Scope.BROKER, True)
    trace_topic_enabled: bool = setting("traceTopicEnable", Scope.BROKER, False)
    trace_topic: str = setting("msgTraceTopicName", Scope.BROKER, TRACE_TOPIC, may_be_empty=False)
    protect_system_topics: bool = setting("validateSystemTopicWhenUpdateTopic", Scope.BROKER, True, live=True)
    allow_mixed_message_type: bool = setting("enableMixedMessageType", Scope.BROKER, False, live=True)
    delete_retry_topics: bool = setting("clearRetryTopicWhenDeleteTopic", Scope.BROKER, True, live=True)

    # Send and pull

    message_bytes_max: int = setting("maxMessageSize", Scope.STORE, 4 * 1024 * 1024, at_least=1, live=True)
    accept_sends_from_ms: int = setting("startAcceptSendRequestTimeStamp", Scope.BROKER, 0, at_most=LONG_MAX)
    reject_transactions: bool = setting("rejectTransactionMessage", Scope.BROKER, False, live=True)
    region_id: str = setting("regionId", Scope.BROKER, "DefaultRegion")
    trace_on: bool = setting("traceOn", Scope.BROKER, True)
    store_replies: bool = setting("storeReplyMessageEnable", Scope.BROKER, True, live=True)
    property_filter_enabled: bool = setting("enablePropertyFilter", Scope.BROKER, True, live=True)
    filter_retry_topics: bool = setting("filterSupportRetry", Scope.BROKER, False, live=True)
    long_polling_enabled: bool = setting("longPollingEnable", Scope.BROKER, True, live=True)
    short_polling_ms: int = setting("shortPollingTimeMills", Scope.BROKER, 1000, at_most=LONG_MAX, live=True)
    lite_pull_enabled: bool = setting("litePullMessageEnable", Scope.BROKER, True, live=True)
    reject_pull_consumers: bool = setting("rejectPullConsumerEnable", Scope.BROKER, False, live=True)
    pull_messages_max: int = setting("maxTransferCountOnMessageInMemory", Scope.STORE, 1024, at_least=1, live=True)
    pull_bytes_max: int = setting(
        "maxTransferBytesOnMessageInMemory", Scope.STORE, 4 * 1024 * 1024, at_least=1, live=True
    )
    query_messages_max: int = setting("defaultQueryMaxNum", Scope.STORE, 32, at_least=1, live=True)
    notify_group_changes: bool = setting("notifyConsumerIdsChangedEnable", Scope.BROKER, True, live=True)
    client_expiry_s: float = setting(
        "channelExpiredTimeout", Scope.BROKER, 120.0, unit=MS, at_least=1, at_most=LONG_MAX, live=True
    )
    server_side_offset_reset: bool = setting("useServerSideResetOffset", Scope.BROKER, True, live=True)
    mapping_cleanup_interval_s: float = setting("staticTopicCleanInterval", Scope.OWN, 300.0, unit=MS, at_least=1)
    """Interval at which mappings of static topics are shortened."""
    offset_save_interval_s: float = setting("flushConsumerOffsetInterval", Scope.BROKER, 5.0, unit=MS, at_least=1)

    # POP

    retry_first_percent: int = setting("popFromRetryProbability", Scope.BROKER, 20, at_most=100, live=True)
    """Percentage of pops that read the retry topic before the topic; the others read it after the topic."""
    priority_retry_first_percent: int = setting(
        "popFromRetryProbabilityForPriority", Scope.BROKER, 0, at_most=100, live=True
    )
    """The same of the pops that begin with the highest priority."""
    highest_queue_first: bool = setting("priorityOrderAsc", Scope.BROKER, True, live=True)
    """In a priority topic, the queue with the highest number has the highest priority; if false, queue 0 has it."""
    separate_retry_queues: bool = setting("useSeparateRetryQueue", Scope.BROKER, False, live=True)
    """A POP retry topic has a queue for each queue of its topic; if false, one queue."""

    # Delays, timers and transactions

    delay_level_list: str = setting(
        "messageDelayLevel",
        Scope.STORE,
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        may_be_empty=False,
    )
    delay_save_interval_ms: int = setting("flushDelayOffsetInterval", Scope.STORE, 10_000, at_least=1, at_most=LONG_MAX)
    timers_enabled: bool = setting("timerWheelEnable", Scope.STORE, True)
    timer_delay_max_s: int = setting("timerMaxDelaySec", Scope.STORE, 3 * 24 * 3600, live=True)
    timer_precision_ms: int = setting("timerPrecisionMs", Scope.STORE, 1000, at_least=100)
    recall_enabled: bool = setting("recallMessageEnable", Scope.BROKER, False, live=True)
    recall_when_read_only: bool = setting("allowRecallWhenBrokerNotWriteable", Scope.BROKER, True, live=True)
    transaction_timeout_ms: int = setting("transactionTimeOut", Scope.BROKER, 6000, at_most=LONG_MAX, live=True)
    transaction_checks_max: int = setting("transactionCheckMax", Scope.BROKER, 15, live=True)
    transaction_check_interval_s: float = setting(
        "transactionCheckInterval", Scope.BROKER, 30.0, unit=MS, at_least=1, at_most=LONG_MAX, live=True
    )
    op_message_bytes_max: int = setting("transactionOpMsgMaxSize", Scope.BROKER, 4096, at_least=1)

    # The store

    store_path: str = setting("storePathRootDir", Scope.STORE, "", may_be_empty=False)
    commit_log_path: str | None = setting("storePathCommitLog", Scope.STORE, None, kind=str)
    read_only_commit_log_paths: str | None = setting("readOnlyCommitLogStorePaths", Scope.STORE, None, kind=str)
    store_type: str = setting(
        "storeType", Scope.STORE, "default", choices=("default", "defaultRocksDB", "combineConsumeQueue")
    )
    store_plugin: str = setting("messageStorePlugIn", Scope.BROKER, "")
    commit_log_file_bytes: int = setting("mappedFileSizeCommitLog", Scope.STORE, 1024 * 1024 * 1024, at_least=4096)
    consume_queue_file_bytes: int = setting(
        "mappedFileSizeConsumeQueue", Scope.STORE, 300_000 * QUEUE_UNIT_BYTES, at_least=QUEUE_UNIT_BYTES
    )
    batch_queue_file_bytes: int = setting(
        "mapperFileSizeBatchConsumeQueue", Scope.STORE, 300_000 * BATCH_UNIT_BYTES, at_least=BATCH_UNIT_BYTES
    )
    index_slots: int = setting("maxHashSlotNum", Scope.STORE, 5_000_000, at_least=1)
    index_entries: int = setting("maxIndexNum", Scope.STORE, 20_000_000, at_least=1)
    index_enabled: bool = setting("messageIndexEnable", Scope.STORE, True)
    index_in_own_process: bool = setting("indexInOwnProcess", Scope.OWN, True)
    """Under load, and with a second processor, a separate process writes the key index."""
    flush_disk_type: str = setting("flushDiskType", Scope.STORE, "ASYNC_FLUSH", choices=("ASYNC_FLUSH", "SYNC_FLUSH"))
    flush_interval_s: float = setting("flushIntervalCommitLog", Scope.STORE, 0.5, unit=MS, at_least=1)
    sync_flush_timeout_s: float = setting("syncFlushTimeout", Scope.STORE, 5.0, unit=MS, at_least=1, live=True)
    delete_hour_list: str = setting("deleteWhen", Scope.STORE, "04", may_be_empty=False, live=True)
    retention_ms: int = setting("fileReservedTime", Scope.STORE, 72 * HOUR_MS, unit=HOURS, live=True)
    disk_used_max: float = setting(
        "diskMaxUsedSpaceRatio", Scope.STORE, 0.75, unit=PERCENT, at_least=1, at_most=100, live=True
    )
    disk_used_urgent: float = setting(
        "diskSpaceCleanForciblyRatio", Scope.STORE, 0.85, unit=PERCENT, at_least=1, at_most=100
    )
    disk_used_refuse: float = setting(
        "diskSpaceWarningLevelRatio", Scope.STORE, 0.9, unit=PERCENT, at_least=1, at_most=100
    )
    forced_deletion_enabled: bool = setting("cleanFileForciblyEnable", Scope.STORE, True)
    expired_files_max: int = setting("deleteFileBatchMax", Scope.STORE, 10, at_least=1)
    retention_interval_s: float = setting("cleanResourceInterval", Scope.STORE, 10.0, unit=MS, at_least=1)

    # Metrics

    metrics_exporter_type: str = setting(
        "metricsExporterType", Scope.BROKER, "DISABLE", choices=("DISABLE", "OTLP_GRPC", "PROM", "LOG")
    )
    """Apache's setting for metrics; `metrics_port` takes precedence."""
    prometheus_port: int = setting("metricsPromExporterPort", Scope.BROKER, 5557, at_least=1, at_most=65535)
    prometheus_host: str = setting("metricsPromExporterHost", Scope.BROKER, "")

    # Replication

    broker_role: str = setting(
        "brokerRole", Scope.STORE, "ASYNC_MASTER", choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE")
    )
    in_sync_replicas: int = setting("inSyncReplicas", Scope.STORE, 1, at_least=1, live=True)
    """With SYNC_MASTER, number of brokers that have a message before the response; the master counts as one."""
    min_in_sync_replicas: int = setting("minInSyncReplicas", Scope.STORE, 1, at_least=1, live=True)
    """With SYNC_MASTER, sends are refused while fewer brokers are in sync; the master counts as one."""
    auto_in_sync_replicas: bool = setting("enableAutoInSyncReplicas", Scope.STORE, False, live=True)
    """Wait for fewer than `in_sync_replicas` if fewer are in sync."""
    slave_timeout_s: float = setting("slaveTimeout", Scope.STORE, 3.0, unit=MS, at_least=1, live=True)
    slave_read_enabled: bool = setting("slaveReadEnable", Scope.BROKER, False, live=True)
    memory_share: float = setting(
        "accessMessageInMemoryMaxRatio", Scope.STORE, 0.4, unit=PERCENT, at_most=100, live=True
    )
    """Share of the memory that holds the end of the log; consumers behind it are sent to a slave."""
    ha_master_address: str = setting("haMasterAddress", Scope.STORE, "")
    """Where a slave gets the log from; empty: the master's address from the name server."""
    ha_heartbeat_s: float = setting("haSendHeartbeatInterval", Scope.STORE, 5.0, unit=MS, at_least=1)
    ha_silence_s: float = setting("haHousekeepingInterval", Scope.STORE, 20.0, unit=MS, at_least=1)
    """A replication connection without a byte from the peer for this time is closed."""
    ha_transfer_bytes: int = setting(
        "haTransferBatchSize", Scope.STORE, 32 * 1024, at_least=1, at_most=TRANSFER_BYTES_MAX, live=True
    )
    ha_max_gap_bytes: int = setting("haMaxGapNotInSync", Scope.STORE, 256 * 1024 * 1024, at_least=1, live=True)
    """A slave that is less far behind is in sync."""
    ha_flow_control: bool = setting("haFlowControlEnable", Scope.STORE, False, live=True)
    ha_bytes_per_s: int = setting(
        "maxHaTransferByteInSecond", Scope.STORE, 100 * 1024 * 1024, at_least=1, at_most=LONG_MAX, live=True
    )

    # Refused unless they have the default: only Apache's broker supports them

    dledger_enabled: bool = setting("enableDLegerCommitLog", Scope.STORE, False)
    light_queues_enabled: bool = setting("enableLmq", Scope.STORE, False)
    multi_dispatch_enabled: bool = setting("enableMultiDispatch", Scope.STORE, False)
    address_server_enabled: bool = setting("fetchNamesrvAddrByAddressServer", Scope.BROKER, False)

    # For use

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Address of the metrics pages, from `metricsPort` or from Apache's `metricsExporterType=PROM`."""
        if self.metrics_port:
            return self.metrics_host, self.metrics_port
        if self.metrics_exporter_type == "PROM":
            return self.prometheus_host or self.bind_address, self.prometheus_port
        return None

    @property
    def settings_path(self) -> Path:
        """File to which remote updates are written: the file of the start, or one in the store."""
        return Path(self.settings_file or self.store_folder / "config" / "broker.properties")

    @property
    def files_held(self) -> int:
        """Number of files that the store keeps open."""
        return DESCRIPTORS * open_segments_allowed()

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Addresses of the name servers, `host:port` each."""
        return tuple(dict.fromkeys(filter(None, map(str.strip, re.split("[;,]", self.name_server_list)))))

    @property
    def controllers(self) -> tuple[str, ...]:
        """Addresses of the controllers, `host:port` each."""
        return tuple(dict.fromkeys(filter(None, map(str.strip, re.split("[;,]", self.controller_list)))))

    @property
    def epoch_file(self) -> Path:
        """File of the epochs of the log, in controller mode."""
        return Path(self.epoch_path) if self.epoch_path else self.store_folder / "epochFileCheckpoint"

    @property
    def identity_file(self) -> Path:
        """File of the id that the controller granted."""
        return Path(self.identity_path) if self.identity_path else self.store_folder / "brokerIdentity"

    @property
    def bounded_registration_interval_s(self) -> float:
        """Interval of registrations. Name servers evict a broker after two minutes without one."""
        least, most = _REGISTRATION_INTERVALS_S
        return min(max(self.registration_interval_s, least), most)

    @property
    def sync_flush(self) -> bool:
        """Whether the response to a send waits until the message is on the disk."""
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def is_slave(self) -> bool:
        """Whether this broker always follows a master."""
        return self.broker_role == "SLAVE" and not self.controller_mode_enabled

    @property
    def is_sync_master(self) -> bool:
        """Whether the response to a send may wait for slaves."""
        return self.broker_role == "SYNC_MASTER" and not self.controller_mode_enabled

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """Delay of each delay level; the first is level 1."""
        return _delays_ms(self.delay_level_list)

    @property
    def delete_hours(self) -> frozenset[int]:
        """Hours of the day at which expired messages are deleted."""
        return _hours(self.delete_hour_list)

    @property
    def store_folder(self) -> Path:
        """Folder of the store."""
        return Path(self.store_path)

    def store_settings(self) -> StoreSettings:
        """Return the settings of the store."""
        return StoreSettings(
            log_segment_bytes=self.commit_log_file_bytes,
            queue_segment_units=-(-self.consume_queue_file_bytes // QUEUE_UNIT_BYTES),
            batch_segment_units=self.batch_queue_file_bytes // BATCH_UNIT_BYTES,
            index_slots=self.index_slots,
            index_entries=self.index_entries,
            index_enabled=self.index_enabled,
            index_process=self.index_in_own_process,
            delays_ms=self.delays_ms,
            sync_flush=self.sync_flush,
            reserved_ms=self.retention_ms,
            disk_used_max=self.disk_used_max,
            disk_used_urgent=self.disk_used_urgent if self.forced_deletion_enabled else 1.0,
            disk_used_refuse=self.disk_used_refuse,
            expired_segments_max=self.expired_files_max,
        )

    def with_retention(self, settings: StoreSettings) -> StoreSettings:
        """Return a running store's settings with the current retention settings, which may change at run time."""
        return replace(
            settings,
            reserved_ms=self.retention_ms,
            disk_used_max=self.disk_used_max,
        )

    # Defaults of this machine, and unsupported values

    def _set_machine_defaults(self) -> None:
        self.broker_name = self.broker_name or socket.gethostname() or "DEFAULT_BROKER"
        self.store_path = self.store_path or str(home_folder() / "store")

    def _check_supported(self, parsed: Mapping[str, Value | None], origin: str) -> None:
        for key, reason in _UNSUPPORTED.items():
            if parsed.get(key):
                raise ConfigError(f"{key}={_text(parsed[key])} from {origin} is not supported: {reason}")
        if (exporter := parsed.get("metricsExporterType")) in ("OTLP_GRPC", "LOG"):
            raise ConfigError(
                f"metricsExporterType={exporter} from {origin} is not supported: "
                "this broker does not push metrics, Prometheus fetches them (expected PROM)"
            )
        is_controlled = _is_controlled(parsed, origin)
        is_slave = parsed.get("brokerRole", self.broker_role) == "SLAVE"
        broker_id = parsed.get("brokerId", self.broker_id)
        if not is_controlled and is_slave != bool(broker_id):
            expected = "1 or more for a slave" if is_slave else "0 for a master, or brokerRole=SLAVE"
            raise ConfigError(f"brokerId={broker_id} from {origin} does not fit brokerRole (expected {expected})")
        if parsed.get("storeType", "default") != "default":
            raise ConfigError(
                f"storeType={parsed['storeType']} from {origin} is not supported: "
                "this broker reads and writes only the file format of storeType=default"
            )
        for key, check in (("messageDelayLevel", _delays_ms), ("deleteWhen", _hours)):
            if key in parsed:
                try:
                    check(str(parsed[key]))
                except ValueError as error:
                    raise ConfigError(f"{key}={str(parsed[key])[:80]!r} from {origin} is wrong: {error}") from None
        commit_log = parsed.get("storePathCommitLog")
        root = Path(str(parsed.get("storePathRootDir", self.store_path)))
        if commit_log and Path(str(commit_log)).absolute() != (root / "commitlog").absolute():
            raise ConfigError(
                f"storePathCommitLog={commit_log} from {origin} is not supported: "
                f"the commit log is below storePathRootDir, in {root / 'commitlog'}"
            )


def _is_controlled(parsed: Mapping[str, Value | None], origin: str) -> bool:
    """Return whether a controller gives id and role."""
    if not parsed.get("enableControllerMode"):
        return False
    if not str(parsed.get("controllerAddr") or "").strip():
        raise ConfigError(
            f"enableControllerMode=true from {origin} needs controllerAddr (expected host:9878;host:9878)"
        )
    return True


def _text(value: Value | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)[:80]


def _delays_ms(text: str) -> tuple[int, ...]:
    words = text.split()
    if not 0 < len(words) <= DELAY_LEVELS_MAX:
        raise ValueError(f"it must be from 1 to {DELAY_LEVELS_MAX} times such as 30s, 5m, 2h or 1d")
    delays = []
    for word in words:
        if not re.fullmatch("[0-9]{1,9}[smhd]", word, re.ASCII):
            raise ValueError(f"{word[:20]!r} is not a time such as 30s, 5m, 2h or 1d")
        delays.append(int(word[:-1]) * _MS[word[-1]])
    return tuple(delays)


def _hours(text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(";") if word.strip()]
    if not words or not all(re.fullmatch("[0-9]{1,2}", word, re.ASCII) and int(word) < 24 for word in words):
        raise ValueError("it must be hours of the day such as 04 or 04;16")
    return frozenset(map(int, words))
