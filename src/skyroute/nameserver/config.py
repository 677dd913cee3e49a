"""Every setting of a name server."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from skyroute.nameserver.journal.recorder import QUEUE_BYTES_MAX, JournalLimits
from skyroute.nameserver.persistence import PersistenceSettings, WarmRestart
from skyroute.routing.table import REGISTRATION_BYTES_MAX
from skyroute.settings.config import ServerConfig, home_folder
from skyroute.settings.errors import ConfigError
from skyroute.settings.keys import INERT_SETTINGS, LONG_MAX, InertSettings, Scope, Value, inert_settings
from skyroute.settings.keys import setting_of_field as setting


@dataclass(slots=True, kw_only=True)
class NameServerConfig(ServerConfig):
    """The settings of one name server."""

    INERT: ClassVar[InertSettings] = INERT_SETTINGS | inert_settings(
        Scope.NAME_SERVER,
        "clientRequestThreadPoolNums=8 defaultThreadPoolNums=16 clientRequestThreadPoolQueueCapacity=50000 "
        "defaultThreadPoolQueueCapacity=10000 unRegisterBrokerQueueCapacity=3000",
    )
    LISTED: ClassVar[frozenset[Scope]] = frozenset({Scope.NAME_SERVER, Scope.SERVER, Scope.OWN})
    FIXED: ClassVar[frozenset[str]] = ServerConfig.FIXED | {"configStorePath", "kvConfigPath", "memoryPath"}
    PATH_FIELD: ClassVar[str] = "config_store_path"

    listen_port: int = setting(Scope.SERVER, default=9876, at_most=65535)

    kv_config_path: str = setting(Scope.NAME_SERVER, default="", may_be_empty=False)
    config_store_path: str = setting(Scope.NAME_SERVER, default="", may_be_empty=False)
    product_env_name: str = setting(Scope.NAME_SERVER, default="center", live=True)
    cluster_test: bool = setting(Scope.NAME_SERVER, default=False)
    order_message_enable: bool = setting(Scope.NAME_SERVER, default=False, live=True)
    config_black_list: str = setting(Scope.NAME_SERVER, default="configBlackList;configStorePath;kvConfigPath")
    return_order_topic_config_to_broker: bool = setting(Scope.NAME_SERVER, default=True, live=True)
    scan_not_active_broker_interval: int = setting(Scope.NAME_SERVER, default=5000, at_least=1, at_most=LONG_MAX)
    support_acting_master: bool = setting(Scope.NAME_SERVER, default=False, live=True)
    enable_all_topic_list: bool = setting(Scope.NAME_SERVER, default=True, live=True)
    enable_topic_list: bool = setting(Scope.NAME_SERVER, default=True, live=True)
    notify_min_broker_id_changed: bool = setting(Scope.NAME_SERVER, default=False, live=True)
    enable_controller_in_namesrv: bool = setting(Scope.NAME_SERVER, default=False)
    need_wait_for_service: bool = setting(Scope.NAME_SERVER, default=False)
    wait_seconds_for_service: int = setting(Scope.NAME_SERVER, default=45)
    delete_topic_with_broker_registration: bool = setting(Scope.NAME_SERVER, default=False, live=True)

    registration_max_length: int = setting(Scope.OWN, default=64 * 1024 * 1024, at_least=1024)
    """Only registrations may be longer than `frame_bytes_max`, up to this. Also bounds their inflated bodies."""
    brokers_max: int = setting(Scope.OWN, default=20_000, at_least=1)
    topic_entries_max: int = setting(Scope.OWN, default=10_000_000, at_least=1)
    registration_bytes_max: int = setting(Scope.OWN, default=REGISTRATION_BYTES_MAX, at_least=1024, at_most=LONG_MAX)
    """Approximate maximum memory of all registrations, in bytes."""
    kv_config_max_bytes: int = setting(Scope.OWN, default=16 * 1024 * 1024, at_least=1024)
    watch_enable: bool = setting(Scope.OWN, default=True)

    memory_path: str = setting(Scope.OWN, default="")
    """Folder of journal and snapshot. Empty: `memory-PORT` beside the key-value file."""
    journal_enable: bool = setting(Scope.OWN, default=True)
    journal_segment_bytes: int = setting(Scope.OWN, default=16 * 1024 * 1024, at_least=1024)
    journal_segment_seconds: int = setting(Scope.OWN, default=60, at_least=1)
    journal_max_bytes: int = setting(Scope.OWN, default=1024 * 1024 * 1024, at_least=1024, at_most=LONG_MAX)
    journal_max_age_hours: int = setting(Scope.OWN, default=168, at_least=1)
    journal_queue_max: int = setting(Scope.OWN, default=1_000_000, at_least=1)
    """Maximum number of changes, and topics in them, in the write queue."""
    journal_queue_bytes_max: int = setting(Scope.OWN, default=QUEUE_BYTES_MAX, at_least=1024, at_most=LONG_MAX)
    warm_restart_enable: bool = setting(Scope.OWN, default=True)
    warm_restart_lease_seconds: int = setting(Scope.OWN, default=45, at_least=1)
    """Brokers send a heartbeat at least every 30 seconds; the rest is for late ones."""
    snapshot_interval_seconds: int = setting(Scope.OWN, default=30, at_least=1)
    snapshot_max_age_seconds: int = setting(Scope.OWN, default=3600, at_least=1)
    mass_expiry_percent: int = setting(Scope.OWN, default=0, at_most=100, live=True)
    """If more leases than this expire in one scan, they are extended once; 0 turns it off."""

    @property
    def scan_interval_s(self) -> float:
        """Time between two scans for expired leases."""
        return self.scan_not_active_broker_interval / 1000

    @property
    def wait_for_service_s(self) -> float:
        """Time after the start in which no routes are served, if `need_wait_for_service` is set."""
        return float(self.wait_seconds_for_service)

    @property
    def persistence(self) -> PersistenceSettings | None:
        """Settings of journal and snapshot; None if both are off.

        A server on a free port (0) has no default folder: it persists only with `memoryPath`.
        """
        if not (self.journal_enable or self.warm_restart_enable) or not (self.memory_path or self.listen_port):
            return None
        beside = Path(self.kv_config_path).parent / f"memory-{self.listen_port}"
        journal = JournalLimits(
            segment_bytes=self.journal_segment_bytes,
            segment_s=float(self.journal_segment_seconds),
            total_bytes=self.journal_max_bytes,
            age_s=self.journal_max_age_hours * 3600.0,
            queue_weight=self.journal_queue_max,
            queue_bytes=self.journal_queue_bytes_max,
        )
        warm_restart = WarmRestart(
            # The snapshot of a table without changes must not become too old to be used.
            interval_s=min(float(self.snapshot_interval_seconds), self.snapshot_max_age_seconds / 2),
            age_s_max=float(self.snapshot_max_age_seconds),
            lease_s=float(self.warm_restart_lease_seconds),
        )
        return PersistenceSettings(
            path=Path(self.memory_path) if self.memory_path else beside,
            journal=journal if self.journal_enable else None,
            warm_restart=warm_restart if self.warm_restart_enable else None,
        )

    @property
    def mass_expiry_share(self) -> float:
        """Share of brokers above which leases that expire together are extended; 0 for never."""
        return self.mass_expiry_percent / 100

    def _fill_in(self) -> None:
        self.kv_config_path = self.kv_config_path or str(home_folder() / "namesrv" / "kvConfig.json")
        self.config_store_path = self.config_store_path or str(home_folder() / "namesrv" / "namesrv.properties")

    def _refuse(self, parsed: Mapping[str, Value | None], origin: str) -> None:
        if parsed.get("enableControllerInNamesrv"):
            raise ConfigError(
                f"enableControllerInNamesrv=true from {origin} is not supported: there is no embedded controller; "
                "run Apache RocketMQ's controller as its own process"
            )
