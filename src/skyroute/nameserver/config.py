"""The settings of a name server."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from skyroute.nameserver.journal.recorder import QUEUE_BYTES_MAX, JournalLimits
from skyroute.nameserver.persistence import PersistenceSettings, WarmRestart
from skyroute.routing.table import REGISTRATION_BYTES_MAX
from skyroute.settings.config import ServerConfig, home_folder
from skyroute.settings.controller_keys import CONTROLLER_KEYS
from skyroute.settings.keys import (
    INERT_SETTINGS,
    LONG_MAX,
    MS,
    PERCENT,
    SECONDS,
    InertSettings,
    Scope,
    inert_settings,
    setting,
)


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
    PATH_FIELD: ClassVar[str] = "settings_file"

    listen_port: int = setting("listenPort", Scope.SERVER, 9876, at_most=65535)

    kv_config_path: str = setting("kvConfigPath", Scope.NAME_SERVER, "", may_be_empty=False)
    settings_file: str = setting("configStorePath", Scope.NAME_SERVER, "", may_be_empty=False)
    environment_name: str = setting("productEnvName", Scope.NAME_SERVER, "center", live=True)
    cluster_test_mode: bool = setting("clusterTest", Scope.NAME_SERVER, False)
    ordered_topics_enabled: bool = setting("orderMessageEnable", Scope.NAME_SERVER, False, live=True)
    config_black_list: str = setting(
        "configBlackList", Scope.NAME_SERVER, "configBlackList;configStorePath;kvConfigPath"
    )
    return_ordered_topics: bool = setting("returnOrderTopicConfigToBroker", Scope.NAME_SERVER, True, live=True)
    scan_interval_s: float = setting(
        "scanNotActiveBrokerInterval", Scope.NAME_SERVER, 5.0, unit=MS, at_least=1, at_most=LONG_MAX
    )
    acting_master_enabled: bool = setting("supportActingMaster", Scope.NAME_SERVER, False, live=True)
    all_topic_list_enabled: bool = setting("enableAllTopicList", Scope.NAME_SERVER, True, live=True)
    topic_list_enabled: bool = setting("enableTopicList", Scope.NAME_SERVER, True, live=True)
    notify_min_broker_id: bool = setting("notifyMinBrokerIdChanged", Scope.NAME_SERVER, False, live=True)
    controller_enabled: bool = setting("enableControllerInNamesrv", Scope.NAME_SERVER, False)
    wait_for_brokers: bool = setting("needWaitForService", Scope.NAME_SERVER, False)
    wait_for_brokers_s: float = setting("waitSecondsForService", Scope.NAME_SERVER, 45.0, unit=SECONDS)
    delete_missing_topics: bool = setting("deleteTopicWithBrokerRegistration", Scope.NAME_SERVER, False, live=True)

    registration_frame_bytes_max: int = setting("registrationMaxLength", Scope.OWN, 64 * 1024 * 1024, at_least=1024)
    """Longest frame of a registration, and of its decompressed body; other requests have `frame_bytes_max`."""
    brokers_max: int = setting("brokersMax", Scope.OWN, 20_000, at_least=1)
    topic_entries_max: int = setting("topicEntriesMax", Scope.OWN, 10_000_000, at_least=1)
    registration_bytes_max: int = setting(
        "registrationBytesMax", Scope.OWN, REGISTRATION_BYTES_MAX, at_least=1024, at_most=LONG_MAX
    )
    """Approximate maximum memory of all registrations, in bytes."""
    kv_config_bytes_max: int = setting("kvConfigMaxBytes", Scope.OWN, 16 * 1024 * 1024, at_least=1024)
    watch_enabled: bool = setting("watchEnable", Scope.OWN, True)

    memory_path: str = setting("memoryPath", Scope.OWN, "")
    """Folder of journal and snapshots; empty: beside the key-value file, in a folder for the port."""
    journal_enabled: bool = setting("journalEnable", Scope.OWN, True)
    journal_segment_bytes: int = setting("journalSegmentBytes", Scope.OWN, 16 * 1024 * 1024, at_least=1024)
    journal_segment_s: float = setting("journalSegmentSeconds", Scope.OWN, 60.0, unit=SECONDS, at_least=1)
    journal_bytes_max: int = setting("journalMaxBytes", Scope.OWN, 1024 * 1024 * 1024, at_least=1024, at_most=LONG_MAX)
    journal_age_max_hours: int = setting("journalMaxAgeHours", Scope.OWN, 168, at_least=1)
    journal_queue_max: int = setting("journalQueueMax", Scope.OWN, 1_000_000, at_least=1)
    """Changes, and topics in them, that are not written yet."""
    journal_queue_bytes_max: int = setting(
        "journalQueueBytesMax", Scope.OWN, QUEUE_BYTES_MAX, at_least=1024, at_most=LONG_MAX
    )
    warm_restart_enabled: bool = setting("warmRestartEnable", Scope.OWN, True)
    warm_restart_lease_s: float = setting("warmRestartLeaseSeconds", Scope.OWN, 45.0, unit=SECONDS, at_least=1)
    """Brokers register every 30 seconds; the rest is for late ones."""
    snapshot_interval_s: float = setting("snapshotIntervalSeconds", Scope.OWN, 30.0, unit=SECONDS, at_least=1)
    snapshot_age_max_s: float = setting("snapshotMaxAgeSeconds", Scope.OWN, 3600.0, unit=SECONDS, at_least=1)
    mass_expiry_share: float = setting("massExpiryPercent", Scope.OWN, 0.0, unit=PERCENT, at_most=100, live=True)
    """If the leases of a larger share of brokers end in one scan, they are extended once; 0: never."""

    @property
    def persistence(self) -> PersistenceSettings | None:
        """Settings of the state that survives a restart; None if there is none.

        A server on any free port has none without `memory_path`, because its folder could not be found again.
        """
        if not (self.journal_enabled or self.warm_restart_enabled) or not (self.memory_path or self.listen_port):
            return None
        beside = Path(self.kv_config_path).parent / f"memory-{self.listen_port}"
        journal = JournalLimits(
            segment_bytes=self.journal_segment_bytes,
            segment_s=self.journal_segment_s,
            total_bytes=self.journal_bytes_max,
            age_s=self.journal_age_max_hours * 3600.0,
            queue_weight=self.journal_queue_max,
            queue_bytes=self.journal_queue_bytes_max,
        )
        warm_restart = WarmRestart(
            # An unchanged table must not leave a snapshot that is too old.
            interval_s=min(self.snapshot_interval_s, self.snapshot_age_max_s / 2),
            age_s_max=self.snapshot_age_max_s,
            lease_s=self.warm_restart_lease_s,
        )
        return PersistenceSettings(
            path=Path(self.memory_path) if self.memory_path else beside,
            journal=journal if self.journal_enabled else None,
            warm_restart=warm_restart if self.warm_restart_enabled else None,
        )

    def _set_machine_defaults(self) -> None:
        self.kv_config_path = self.kv_config_path or str(home_folder() / "namesrv" / "kvConfig.json")
        self.settings_file = self.settings_file or str(home_folder() / "namesrv" / "namesrv.properties")

    def _belongs_to_another_server(self, key: str) -> bool:
        return self.controller_enabled and key in CONTROLLER_KEYS
