"""The settings of a controller, with Apache's keys."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from skyroute.remoting.address import join_address, split_address
from skyroute.settings.config import ServerConfig, home_folder
from skyroute.settings.errors import ConfigError
from skyroute.settings.keys import (
    INERT_SETTINGS,
    LONG_MAX,
    MS,
    InertSettings,
    Scope,
    Value,
    inert_settings,
    setting,
)

DEFAULT_PORT: Final = 9878
"""Apache's samples use it."""

PEERS_MAX: Final = 100
"""Maximum number of controllers."""

_ROUTE_PROBE: Final = ("192.0.2.1", 9)
"""A reserved address (RFC 5737). Only the route to it is looked up; no packet is sent."""


@dataclass(slots=True, kw_only=True)
class ControllerConfig(ServerConfig):
    """The settings of one controller."""

    INERT: ClassVar[InertSettings] = INERT_SETTINGS | inert_settings(
        Scope.CONTROLLER,
        "controllerType=DLedger controllerThreadPoolNums=16 controllerRequestThreadPoolQueueCapacity=50000 "
        "mappedFileSize=1073741824 processReadEvent=false isProcessReadEvent=false metricsExporterType=DISABLE "
        "metricsGrpcExporterTarget= metricsGrpcExporterHeader= metricGrpcExporterTimeOutInMills=3000 "
        "metricGrpcExporterIntervalInMills=60000 metricLoggingExporterIntervalInMills=10000 "
        "metricsPromExporterPort=5557 metricsPromExporterHost= metricsLabel= metricsInDelta=false "
        "jRaftElectionTimeoutMs=1000 jRaftScanWaitTimeoutMs=1000 jRaftSnapshotIntervalSecs=3600 "
        "jRaftGroupId=jRaft-Controller jRaftServerId=localhost:9880 "
        "jRaftInitConf=localhost:9880,localhost:9881,localhost:9882 "
        "jRaftControllerRPCAddr=localhost:9770,localhost:9771,localhost:9772",
    )
    LISTED: ClassVar[frozenset[Scope]] = frozenset({Scope.CONTROLLER, Scope.SERVER, Scope.OWN})
    FIXED: ClassVar[frozenset[str]] = ServerConfig.FIXED | {"configStorePath", "controllerStorePath"}
    PATH_FIELD: ClassVar[str] = "settings_file"

    listen_port: int = setting("listenPort", Scope.SERVER, DEFAULT_PORT, at_most=65535)
    """Used without `peers`, which name the port."""
    settings_file: str = setting("configStorePath", Scope.CONTROLLER, "", may_be_empty=False)
    config_black_list: str = setting("configBlackList", Scope.CONTROLLER, "configBlackList;configStorePath")
    group: str = setting("controllerDLegerGroup", Scope.CONTROLLER, "skyroute-controller")
    peers: str = setting("controllerDLegerPeers", Scope.CONTROLLER, "")
    """Ids and addresses of controllers, `n0-host:port`. The address is the one that brokers use."""
    self_id: str = setting("controllerDLegerSelfId", Scope.CONTROLLER, "n0", may_be_empty=False)
    store_path: str = setting("controllerStorePath", Scope.CONTROLLER, "")
    """Folder of the state; empty: `controller` in the home folder."""
    scan_interval_s: float = setting(
        "scanNotActiveBrokerInterval", Scope.CONTROLLER, 5.0, unit=MS, at_least=1, at_most=LONG_MAX
    )
    master_scan_interval_s: float = setting(
        "scanInactiveMasterInterval", Scope.CONTROLLER, 5.0, unit=MS, at_least=1, at_most=LONG_MAX
    )
    election_tries_max: int = setting("electMasterMaxRetryCount", Scope.CONTROLLER, 3, at_least=1, live=True)
    unclean_election_enabled: bool = setting("enableElectUncleanMaster", Scope.CONTROLLER, False, live=True)
    notifies_brokers: bool = setting("notifyBrokerRoleChanged", Scope.CONTROLLER, True, live=True)
    settle_s: float = setting("listenBeforeElectionMillis", Scope.OWN, 10.0, unit=MS)
    """Time after the start in which no dead master is replaced, so that living brokers are heard first."""

    etcd_endpoints: str = setting("etcdEndpoints", Scope.OWN, "")
    """Addresses `host:port` of etcd's members, separated by semicolons; empty: the state is in a file."""
    etcd_prefix: str = setting("etcdPrefix", Scope.OWN, "/skyroute/controller", may_be_empty=False)
    etcd_lease_s: int = setting("etcdLeaseSeconds", Scope.OWN, 5, at_least=2, at_most=60)
    """How long a leader that cannot reach etcd keeps the others from leading."""
    etcd_user: str = setting("etcdUser", Scope.OWN, "")
    etcd_password: str = setting("etcdPassword", Scope.OWN, "")
    journal_enabled: bool = setting("journalEnable", Scope.OWN, True)
    """Record changes of groups in a journal beside the state."""

    @property
    def state_file(self) -> Path:
        """File with the state of all groups."""
        folder = Path(self.store_path) if self.store_path else home_folder() / "controller"
        return folder / "controller-state.json"

    @property
    def advertised_address(self) -> str:
        """Address for brokers, from the peers or from the network; brokers send all requests to it.

        Raises:
            ConfigError: the peers do not name this controller.
        """
        own = self._own_peer()
        if own is not None:
            return own
        host = self.bind_address
        return join_address(_outward_ip() if host in ("0.0.0.0", "::", "*") else host, self.listen_port)

    @property
    def port(self) -> int:
        """Port to listen on.

        Raises:
            ConfigError: the peers do not name this controller.
        """
        own = self._own_peer()
        return self.listen_port if own is None else split_address(own)[1]

    @property
    def all_peers(self) -> dict[str, str]:
        """Addresses of all controllers by id; empty if they are not named."""
        return _parse_peers(self.peers)

    @property
    def etcd_members(self) -> list[str]:
        """Addresses of etcd's members."""
        return _parse_endpoints(self.etcd_endpoints)

    def _own_peer(self) -> str | None:
        peers = self.all_peers
        if len(peers) > 1 and not self.etcd_endpoints:
            raise ConfigError(
                f"controllerDLegerPeers names {len(peers)} controllers: with its state in a file, a controller has no "
                "peers; name one, or set etcdEndpoints for all of them"
            )
        if peers and self.self_id not in peers:
            raise ConfigError(
                f"controllerDLegerSelfId={self.self_id[:80]} is not in controllerDLegerPeers={self.peers[:80]}"
            )
        return peers.get(self.self_id)

    def _set_machine_defaults(self) -> None:
        self.settings_file = self.settings_file or str(home_folder() / "controller" / "controller.properties")

    def _check_supported(self, parsed: Mapping[str, Value | None], origin: str) -> None:
        text = str(parsed.get("controllerDLegerPeers", self.peers) or "")
        try:
            peers = _parse_peers(text)
        except ValueError as error:
            raise ConfigError(
                f"controllerDLegerPeers={text[:80]!r} from {origin} is wrong: {error} (expected n0-host:port)"
            ) from None
        if len(peers) > PEERS_MAX:
            raise ConfigError(f"controllerDLegerPeers from {origin} names more than {PEERS_MAX} controllers")
        endpoints = str(parsed.get("etcdEndpoints", "") or "")
        try:
            _parse_endpoints(endpoints)
        except ValueError as error:
            raise ConfigError(
                f"etcdEndpoints={endpoints[:80]!r} from {origin} is wrong: {error} (expected host:port;host:port)"
            ) from None


@dataclass(slots=True, kw_only=True)
class EmbeddedControllerConfig(ControllerConfig):
    """The settings of a controller in the process of a name server, from the name server's properties file."""

    listen_port: int = setting("controllerListenPort", Scope.OWN, DEFAULT_PORT, at_most=65535)
    metrics_port: int = setting("controllerMetricsPort", Scope.OWN, 0, at_most=65535)

    def _belongs_to_another_server(self, key: str) -> bool:
        return True


def _parse_peers(text: str) -> dict[str, str]:
    """Return addresses by id.

    Raises:
        ValueError: the text is not a list of peers.
    """
    peers: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        peer, dash, address = part.partition("-")
        if not dash or not peer:
            raise ValueError(f"{part!r} has no id")
        split_address(address)
        peers[peer] = address
    return peers


def _parse_endpoints(text: str) -> list[str]:
    """Return addresses.

    Raises:
        ValueError: the text is not a list of addresses.
    """
    members = [part.strip().removeprefix("http://") for part in text.replace(",", ";").split(";") if part.strip()]
    for member in members:
        split_address(member)
    return members


def _outward_ip() -> str:
    """Return the address of the default interface; loopback if there is no network."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_ROUTE_PROBE)  # a datagram socket only looks up the route
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
