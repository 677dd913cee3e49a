"""Every setting of a broker, under Java's names at the edges and under ours inside."""

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
from skyroute.settings.keys import LONG_MAX, InertSettings, Scope, Value, setting

DELAY_LEVELS_MAX: Final = 100
"""Every level is a queue, and has a timer of its own."""
QUEUE_UNIT_BYTES: Final = 20
BATCH_UNIT_BYTES: Final = 46
_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_HOUR_MS: Final = 3_600_000
_REGISTER_PERIODS_MS: Final = (10_000, 60_000)
_NOT_REPLICATED: Final = "this broker does not replicate; Apache RocketMQ's broker does"

_UNSERVED: Final[Mapping[str, str]] = {
    "enableControllerMode": "there is no work with a controller here; Apache RocketMQ's broker does that",
    "enableDLegerCommitLog": "there is no DLedger here; Apache RocketMQ's broker has it",
    "aclEnable": "this broker checks no access keys, and must not look as if it did",
    "authenticationEnabled": "this broker checks no access keys, and must not look as if it did",
    "authorizationEnabled": "this broker checks no access keys, and must not look as if it did",
    "enableLmq": "there are no light message queues here",
    "enableMultiDispatch": "there are no light message queues here",
    "fetchNamesrvAddrByAddressServer": "name servers are not looked up at an address server; list them in namesrvAddr",
    "messageStorePlugIn": "stores of other makes cannot be plugged in",
    "readOnlyCommitLogStorePaths": "the commit log lies in one folder, below storePathRootDir",
}
"""Settings that promise what is not done here, if they are true or not empty."""


@dataclass(slots=True, kw_only=True)
class BrokerConfig(ServerConfig):
    """The settings of one broker."""

    ENVIRONMENT: ClassVar[Mapping[str, str]] = {**ServerConfig.ENVIRONMENT, "NAMESRV_ADDR": "namesrvAddr"}
    INERT: ClassVar[InertSettings] = BROKER_INERT_SETTINGS
    LISTED: ClassVar[frozenset[Scope]] = frozenset({Scope.BROKER, Scope.STORE, Scope.SERVER, Scope.CLIENT, Scope.OWN})
    FIXED: ClassVar[frozenset[str]] = ServerConfig.FIXED | {
        *("brokerConfigPath", "storePathRootDir", "storePathCommitLog"),
    }
    PATH_FIELD: ClassVar[str] = "broker_config_path"

    listen_port: int = setting(Scope.SERVER, default=10911, at_most=65535)
    config_black_list: str = setting(Scope.BROKER, default="configBlackList;brokerConfigPath")
    broker_config_path: str | None = setting(Scope.BROKER, default=None, kind=str)

    # Who it is, and where it is found

    broker_cluster_name: str = setting(Scope.BROKER, default="DefaultCluster", may_be_empty=False)
    broker_name: str = setting(Scope.BROKER, default="", may_be_empty=False)
    broker_id: int = setting(Scope.BROKER, default=0, at_most=LONG_MAX)
    broker_ip1: str | None = setting(Scope.BROKER, default=None, kind=str)
    """The host that clients are told; None: found out at the start."""
    broker_ip2: str | None = setting(Scope.BROKER, default=None, kind=str)
    """The host that slaves are told; None: as clients."""
    advertised_port: int = setting(Scope.OWN, default=0, at_most=65535)
    """The port that clients are told; 0: the one we listen on."""
    ha_listen_port: int = setting(Scope.STORE, default=0, at_most=65535)
    """What slaves are told; 0: one above the other port. Nobody listens there."""
    namesrv_addr: str = setting(Scope.BROKER, default="")

    # Registration

    register_name_server_period: int = setting(Scope.BROKER, default=30_000, live=True)
    register_broker_timeout_mills: int = setting(Scope.BROKER, default=24_000, at_least=1, live=True)
    force_register: bool = setting(Scope.BROKER, default=True, live=True)
    compressed_register: bool = setting(Scope.BROKER, default=False, live=True)
    enable_slave_acting_master: bool = setting(Scope.BROKER, default=False)
    compatible_with_old_name_srv: bool = setting(Scope.BROKER, default=True)
    broker_heartbeat_interval: int = setting(Scope.BROKER, default=1000, at_least=1000)
    broker_not_active_timeout_millis: int = setting(Scope.BROKER, default=10_000, at_least=1, at_most=LONG_MAX)

    # Topics and groups

    broker_permission: int = setting(Scope.BROKER, default=6, at_most=7, live=True)
    default_topic_queue_nums: int = setting(Scope.BROKER, default=8, at_least=1, at_most=65535, live=True)
    auto_create_topic_enable: bool = setting(Scope.BROKER, default=True, live=True)
    auto_create_subscription_group: bool = setting(Scope.BROKER, default=True, live=True)
    enable_create_sys_group: bool = setting(Scope.BROKER, default=True, live=True)
    cluster_topic_enable: bool = setting(Scope.BROKER, default=True)
    broker_topic_enable: bool = setting(Scope.BROKER, default=True)
    trace_topic_enable: bool = setting(Scope.BROKER, default=False)
    msg_trace_topic_name: str = setting(Scope.BROKER, default=TRACE_TOPIC, may_be_empty=False)
    validate_system_topic_when_update_topic: bool = setting(Scope.BROKER, default=True, live=True)
    enable_mixed_message_type: bool = setting(Scope.BROKER, default=False, live=True)
    clear_retry_topic_when_delete_topic: bool = setting(Scope.BROKER, default=True, live=True)

    # Sending and fetching

    max_message_size: int = setting(Scope.STORE, default=4 * 1024 * 1024, at_least=1, live=True)
    start_accept_send_request_time_stamp: int = setting(Scope.BROKER, default=0, at_most=LONG_MAX)
    reject_transaction_message: bool = setting(Scope.BROKER, default=False, live=True)
    region_id: str = setting(Scope.BROKER, default="DefaultRegion")
    trace_on: bool = setting(Scope.BROKER, default=True)
    store_reply_message_enable: bool = setting(Scope.BROKER, default=True, live=True)
    enable_property_filter: bool = setting(Scope.BROKER, default=True, live=True)
    filter_support_retry: bool = setting(Scope.BROKER, default=False, live=True)
    long_polling_enable: bool = setting(Scope.BROKER, default=True, live=True)
    short_polling_time_mills: int = setting(Scope.BROKER, default=1000, at_most=LONG_MAX, live=True)
    lite_pull_message_enable: bool = setting(Scope.BROKER, default=True, live=True)
    reject_pull_consumer_enable: bool = setting(Scope.BROKER, default=False, live=True)
    max_transfer_count_on_message_in_memory: int = setting(Scope.STORE, default=1024, at_least=1, live=True)
    max_transfer_bytes_on_message_in_memory: int = setting(Scope.STORE, default=4 * 1024 * 1024, at_least=1, live=True)
    default_query_max_num: int = setting(Scope.STORE, default=32, at_least=1, live=True)
    notify_consumer_ids_changed_enable: bool = setting(Scope.BROKER, default=True, live=True)
    channel_expired_timeout: int = setting(Scope.BROKER, default=120_000, at_least=1, at_most=LONG_MAX, live=True)
    subscription_expired_timeout: int = setting(Scope.BROKER, default=600_000, at_least=1, at_most=LONG_MAX, live=True)
    lock_in_strict_mode: bool = setting(Scope.BROKER, default=False, live=True)
    use_server_side_reset_offset: bool = setting(Scope.BROKER, default=True, live=True)
    flush_consumer_offset_interval: int = setting(Scope.BROKER, default=5000, at_least=1)
    forward_timeout: int = setting(Scope.BROKER, default=3000, at_least=1, at_most=LONG_MAX, live=True)

    # Later and never

    message_delay_level: str = setting(
        Scope.STORE, default="1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h", may_be_empty=False
    )
    flush_delay_offset_interval: int = setting(Scope.STORE, default=10_000, at_least=1, at_most=LONG_MAX)
    timer_wheel_enable: bool = setting(Scope.STORE, default=True)
    timer_max_delay_sec: int = setting(Scope.STORE, default=3 * 24 * 3600, live=True)
    timer_precision_ms: int = setting(Scope.STORE, default=1000, at_least=100)
    recall_message_enable: bool = setting(Scope.BROKER, default=False, live=True)
    allow_recall_when_broker_not_writeable: bool = setting(Scope.BROKER, default=True, live=True)
    transaction_time_out: int = setting(Scope.BROKER, default=6000, at_most=LONG_MAX, live=True)
    transaction_check_max: int = setting(Scope.BROKER, default=15, live=True)
    transaction_check_interval: int = setting(Scope.BROKER, default=30_000, at_least=1, at_most=LONG_MAX, live=True)
    transaction_op_msg_max_size: int = setting(Scope.BROKER, default=4096, at_least=1)
    transaction_op_batch_interval: int = setting(Scope.BROKER, default=3000, at_least=1)

    # The store

    store_path_root_dir: str = setting(Scope.STORE, default="", may_be_empty=False)
    store_path_commit_log: str | None = setting(Scope.STORE, default=None, kind=str)
    read_only_commit_log_store_paths: str | None = setting(Scope.STORE, default=None, kind=str)
    store_type: str = setting(
        Scope.STORE, default="default", choices=("default", "defaultRocksDB", "combineConsumeQueue")
    )
    message_store_plug_in: str = setting(Scope.BROKER, default="")
    mapped_file_size_commit_log: int = setting(Scope.STORE, default=1024 * 1024 * 1024, at_least=4096)
    mapped_file_size_consume_queue: int = setting(
        Scope.STORE, default=300_000 * QUEUE_UNIT_BYTES, at_least=QUEUE_UNIT_BYTES
    )
    mapper_file_size_batch_consume_queue: int = setting(
        Scope.STORE, default=300_000 * BATCH_UNIT_BYTES, at_least=BATCH_UNIT_BYTES
    )
    max_hash_slot_num: int = setting(Scope.STORE, default=5_000_000, at_least=1)
    max_index_num: int = setting(Scope.STORE, default=20_000_000, at_least=1)
    message_index_enable: bool = setting(Scope.STORE, default=True)
    index_in_own_process: bool = setting(Scope.OWN, default=True)
    """Once there is much to do, and a second processor to do it, a process of its own writes the key index."""
    flush_disk_type: str = setting(Scope.STORE, default="ASYNC_FLUSH", choices=("ASYNC_FLUSH", "SYNC_FLUSH"))
    flush_interval_commit_log: int = setting(Scope.STORE, default=500, at_least=1)
    sync_flush_timeout: int = setting(Scope.STORE, default=5000, at_least=1, live=True)
    delete_when: str = setting(Scope.STORE, default="04", may_be_empty=False, live=True)
    file_reserved_time: int = setting(Scope.STORE, default=72, live=True)
    disk_max_used_space_ratio: int = setting(Scope.STORE, default=75, at_least=1, at_most=100, live=True)
    disk_space_clean_forcibly_ratio: int = setting(Scope.STORE, default=85, at_least=1, at_most=100)
    disk_space_warning_level_ratio: int = setting(Scope.STORE, default=90, at_least=1, at_most=100)
    clean_file_forcibly_enable: bool = setting(Scope.STORE, default=True)
    delete_file_batch_max: int = setting(Scope.STORE, default=10, at_least=1)
    clean_resource_interval: int = setting(Scope.STORE, default=10_000, at_least=1)

    # For those who watch

    metrics_exporter_type: str = setting(
        Scope.BROKER, default="DISABLE", choices=("DISABLE", "OTLP_GRPC", "PROM", "LOG")
    )
    """Apache's way to ask for metrics; `metricsPort`, where it is set, counts more."""
    metrics_prom_exporter_port: int = setting(Scope.BROKER, default=5557, at_least=1, at_most=65535)
    metrics_prom_exporter_host: str = setting(Scope.BROKER, default="")

    # What only Apache's broker does

    broker_role: str = setting(Scope.STORE, default="ASYNC_MASTER", choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"))
    in_sync_replicas: int = setting(Scope.STORE, default=1)
    min_in_sync_replicas: int = setting(Scope.STORE, default=1)
    enable_controller_mode: bool = setting(Scope.BROKER, default=False)
    enable_d_leger_commit_log: bool = setting(Scope.STORE, default=False)
    acl_enable: bool = setting(Scope.BROKER, default=False)
    authentication_enabled: bool = setting(Scope.SYSTEM, default=False)
    authorization_enabled: bool = setting(Scope.SYSTEM, default=False)
    enable_lmq: bool = setting(Scope.STORE, default=False)
    enable_multi_dispatch: bool = setting(Scope.STORE, default=False)
    fetch_namesrv_addr_by_address_server: bool = setting(Scope.BROKER, default=False)

    # For use

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Where metrics are served, as `metricsPort` says it, or else as a file for Apache's broker does."""
        if self.metrics_port:
            return self.metrics_host, self.metrics_port
        if self.metrics_exporter_type == "PROM":
            return self.metrics_prom_exporter_host or self.bind_address, self.metrics_prom_exporter_port
        return None

    @property
    def settings_path(self) -> Path:
        """Where updates from afar are kept: the file we started from, or one with the store's other files."""
        return Path(self.broker_config_path or self.store_folder / "config" / "broker.properties")

    @property
    def files_held(self) -> int:
        """How many files a broker keeps open besides its connections: those of the store."""
        return DESCRIPTORS * open_segments_allowed()

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Where to register: `host:port` each."""
        return tuple(dict.fromkeys(filter(None, map(str.strip, re.split("[;,]", self.namesrv_addr)))))

    @property
    def register_period_s(self) -> float:
        """How often to register; name servers forget a broker that is silent for two minutes."""
        least, most = _REGISTER_PERIODS_MS
        return min(max(self.register_name_server_period, least), most) / 1000

    @property
    def register_timeout_s(self) -> float:
        """How long a name server may take over a registration."""
        return self.register_broker_timeout_mills / 1000

    @property
    def sync_flush(self) -> bool:
        """Whether an answer waits until its message is on the disk."""
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """How long a message of each delay level waits; the first is level 1."""
        return _delays_ms(self.message_delay_level)

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of the day at which what is too old goes."""
        return _hours(self.delete_when)

    @property
    def store_folder(self) -> Path:
        """Where everything is kept."""
        return Path(self.store_path_root_dir)

    def store_settings(self) -> StoreSettings:
        """The part that the store needs."""
        return StoreSettings(
            log_segment_bytes=self.mapped_file_size_commit_log,
            queue_segment_units=-(-self.mapped_file_size_consume_queue // QUEUE_UNIT_BYTES),
            batch_segment_units=self.mapper_file_size_batch_consume_queue // BATCH_UNIT_BYTES,
            index_slots=self.max_hash_slot_num,
            index_entries=self.max_index_num,
            index_enabled=self.message_index_enable,
            index_process=self.index_in_own_process,
            delays_ms=self.delays_ms,
            sync_flush=self.sync_flush,
            reserved_ms=self.file_reserved_time * _HOUR_MS,
            disk_used_max=self.disk_max_used_space_ratio / 100,
            disk_used_urgent=self.disk_space_clean_forcibly_ratio / 100 if self.clean_file_forcibly_enable else 1.0,
            disk_used_refuse=self.disk_space_warning_level_ratio / 100,
            expired_segments_max=self.delete_file_batch_max,
        )

    def with_retention(self, settings: StoreSettings) -> StoreSettings:
        """Return a running store's settings with the current retention settings, which may change at run time."""
        return replace(
            settings,
            reserved_ms=self.file_reserved_time * _HOUR_MS,
            disk_used_max=self.disk_max_used_space_ratio / 100,
        )

    # What is found out, and what is refused

    def _fill_in(self) -> None:
        self.broker_name = self.broker_name or socket.gethostname() or "DEFAULT_BROKER"
        self.store_path_root_dir = self.store_path_root_dir or str(home_folder() / "store")

    def _refuse(self, parsed: Mapping[str, Value | None], origin: str) -> None:
        for key, reason in _UNSERVED.items():
            if parsed.get(key):
                raise ConfigError(f"{key}={_text(parsed[key])} from {origin} cannot be served: {reason}")
        if (exporter := parsed.get("metricsExporterType")) in ("OTLP_GRPC", "LOG"):
            raise ConfigError(
                f"metricsExporterType={exporter} from {origin} cannot be served: "
                "metrics are not sent anywhere, they are served for Prometheus to fetch: PROM"
            )
        if parsed.get("brokerRole") == "SLAVE":
            raise ConfigError(f"brokerRole=SLAVE from {origin} cannot be served: {_NOT_REPLICATED}")
        if parsed.get("brokerId"):
            raise ConfigError(
                f"brokerId={parsed['brokerId']} from {origin} cannot be served: a master's is 0, and {_NOT_REPLICATED}"
            )
        for key in ("inSyncReplicas", "minInSyncReplicas"):
            if int(parsed.get(key) or 0) > 1:
                raise ConfigError(f"{key}={parsed[key]} from {origin} cannot be served: {_NOT_REPLICATED}")
        if parsed.get("storeType", "default") != "default":
            raise ConfigError(
                f"storeType={parsed['storeType']} from {origin} cannot be served: "
                "only Apache RocketMQ's own files, storeType=default, are read and written here"
            )
        for key, check in (("messageDelayLevel", _delays_ms), ("deleteWhen", _hours)):
            if key in parsed:
                try:
                    check(str(parsed[key]))
                except ValueError as error:
                    raise ConfigError(f"{key}={str(parsed[key])[:80]!r} from {origin} is wrong: {error}") from None
        commit_log = parsed.get("storePathCommitLog")
        root = Path(str(parsed.get("storePathRootDir", self.store_path_root_dir)))
        if commit_log and Path(str(commit_log)).absolute() != (root / "commitlog").absolute():
            raise ConfigError(
                f"storePathCommitLog={commit_log} from {origin} cannot be served: "
                f"the commit log lies below storePathRootDir, in {root / 'commitlog'}"
            )


def _text(value: Value | None) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)[:80]


def _delays_ms(text: str) -> tuple[int, ...]:
    words = text.split()
    if not 0 < len(words) <= DELAY_LEVELS_MAX:
        raise ValueError(f"it must be from 1 to {DELAY_LEVELS_MAX} times such as 30s, 5m, 2h or 1d")
    delays = []
    for word in words:
        if not re.fullmatch("[0-9]{1,9}[smhd]", word, re.ASCII):
            raise ValueError(f"{word[:20]!r} is no time such as 30s, 5m, 2h or 1d")
        delays.append(int(word[:-1]) * _MS[word[-1]])
    return tuple(delays)


def _hours(text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(";") if word.strip()]
    if not words or not all(re.fullmatch("[0-9]{1,2}", word, re.ASCII) and int(word) < 24 for word in words):
        raise ValueError("it must be hours of the day such as 04 or 04;16")
    return frozenset(map(int, words))
