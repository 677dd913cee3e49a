"""Calls between brokers, operators and a controller: ids, masters, sync state sets.

Addresses and names are checked here. Epochs have 32 bits, broker ids 64.
"""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from skyroute.wire import fastjson
from skyroute.wire.calls.topics import read_body, read_request
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.errors import FieldError
from skyroute.wire.fields import (
    optional_int,
    optional_name,
    required_int,
    required_int32,
    required_name,
    truth,
)

MEMBERS_MAX: Final = 1_000
"""Maximum number of broker ids in one request."""

REPLICAS_A_STEP: Final = 300
"""Replicas and groups encoded in one step, which takes some milliseconds."""
NAMES_MAX: Final = 10_000
"""Maximum number of broker groups in one query."""

NO_BROKER: Final = -1
"""Broker id in an election that no broker asks for."""

_INT64_MAX: Final = (1 << 63) - 1
_INT32_MAX: Final = (1 << 31) - 1
_LEGACY: Final = fastjson.Dialect.LEGACY


# Requests


@dataclass(frozen=True, slots=True)
class IdApplication:
    """A broker applies for an id (1013)."""

    cluster: str
    broker_name: str
    broker_id: int
    check_code: str


@dataclass(frozen=True, slots=True)
class ReplicaRegistration:
    """A broker with an id reports its address (1003)."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class ElectionRequest:
    """A broker or an operator asks for an election (1002)."""

    cluster: str
    broker_name: str
    broker_id: int | None
    """Who asks, or who shall be master with `designate`; None if the request names no broker."""
    designate: bool


@dataclass(frozen=True, slots=True)
class SyncSetChange:
    """A master asks to change the sync state set (1001)."""

    broker_name: str
    master: int
    master_epoch: int
    members: frozenset[int]
    sync_set_epoch: int
    """Epoch of the set that is replaced."""


@dataclass(frozen=True, slots=True)
class Cleanup:
    """An operator removes replicas (1011)."""

    cluster: str | None
    broker_name: str
    broker_ids: frozenset[int] | None
    """None: all replicas."""
    allow_living: bool


@dataclass(frozen=True, slots=True)
class ReplicaHeartbeat:
    """A broker in controller mode is alive (904)."""

    cluster: str
    broker_name: str
    broker_id: int | None
    address: str
    epoch: int
    max_offset: int
    confirm_offset: int
    priority: int
    timeout_s: float
    """0: the sender gives no time."""


class _SyncStateBody(msgspec.Struct, rename="camel"):
    sync_state_set: list[Int64] = []
    sync_state_set_epoch: Int32 = 0


def decode_id_query(request: Request) -> tuple[str, str]:
    """Return cluster and broker name of a query for the next id (1012).

    Raises:
        FieldError: a field is missing or invalid.
    """
    return required_name(request.fields, "clusterName"), required_name(request.fields, "brokerName")


def encode_id_query(cluster: str, broker_name: str) -> Request:
    """Ask for the next id."""
    return Request(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, {"clusterName": cluster, "brokerName": broker_name})


def decode_id_application(request: Request) -> IdApplication:
    """Decode an application for an id.

    Raises:
        FieldError: a field is missing or invalid.
    """
    fields = request.fields
    return IdApplication(
        required_name(fields, "clusterName"),
        required_name(fields, "brokerName"),
        required_int(fields, "appliedBrokerId"),
        required_name(fields, "registerCheckCode"),
    )


def encode_id_application(application: IdApplication) -> Request:
    """Apply for an id."""
    return Request(
        RequestCode.CONTROLLER_APPLY_BROKER_ID,
        {
            "clusterName": application.cluster,
            "brokerName": application.broker_name,
            "appliedBrokerId": str(application.broker_id),
            "registerCheckCode": application.check_code,
        },
    )


def decode_replica_registration(request: Request) -> ReplicaRegistration:
    """Decode the registration of a broker with an id.

    Raises:
        FieldError: a field is missing or invalid.
    """
    fields = request.fields
    return ReplicaRegistration(
        required_name(fields, "clusterName"),
        required_name(fields, "brokerName"),
        required_int(fields, "brokerId"),
        required_name(fields, "brokerAddress"),
    )


def encode_replica_registration(registration: ReplicaRegistration, now_ms: int) -> Request:
    """Register a broker with an id."""
    return Request(
        RequestCode.CONTROLLER_REGISTER_BROKER,
        {
            "clusterName": registration.cluster,
            "brokerName": registration.broker_name,
            "brokerId": str(registration.broker_id),
            "brokerAddress": registration.address,
            "invokeTime": str(now_ms),
        },
    )


def decode_election_request(request: Request) -> ElectionRequest:
    """Decode a request for an election.

    Raises:
        FieldError: a field is missing or invalid.
    """
    fields = request.fields
    broker_id = optional_int(fields, "brokerId", NO_BROKER, _INT64_MAX)
    return ElectionRequest(
        optional_name(fields, "clusterName") or "",
        required_name(fields, "brokerName"),
        None if broker_id == NO_BROKER else broker_id,
        truth(fields, "designateElect"),
    )


def encode_election_request(election: ElectionRequest, now_ms: int) -> Request:
    """Ask for an election."""
    return Request(
        RequestCode.CONTROLLER_ELECT_MASTER,
        {
            "clusterName": election.cluster,
            "brokerName": election.broker_name,
            "brokerId": str(NO_BROKER if election.broker_id is None else election.broker_id),
            "designateElect": "true" if election.designate else "false",
            "invokeTime": str(now_ms),
        },
    )


def decode_sync_set_change(request: Request) -> SyncSetChange:
    """Decode a change of the sync state set.

    Raises:
        FieldError: a field is missing or invalid, or there are too many members.
        BodyError: the body is invalid.
    """
    fields = request.fields
    body = read_request(request.body, _SyncStateBody, "a sync state set")
    if len(body.sync_state_set) > MEMBERS_MAX:
        raise FieldError(f"syncStateSet has {len(body.sync_state_set)} members (expected at most {MEMBERS_MAX})")
    return SyncSetChange(
        required_name(fields, "brokerName"),
        required_int(fields, "masterBrokerId"),
        required_int32(fields, "masterEpoch"),
        frozenset(body.sync_state_set),
        body.sync_state_set_epoch,
    )


def encode_sync_set_change(change: SyncSetChange, now_ms: int) -> Request:
    """Ask to change the sync state set."""
    return Request(
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
        {
            "brokerName": change.broker_name,
            "masterBrokerId": str(change.master),
            "masterEpoch": str(change.master_epoch),
            "invokeTime": str(now_ms),
        },
        body=_sync_state(change.members, change.sync_set_epoch),
    )


def decode_replica_query(request: Request) -> str:
    """Return the broker name of a query for master and sync state set (1004).

    Raises:
        FieldError: it is missing or invalid.
    """
    return required_name(request.fields, "brokerName")


def encode_replica_query(broker_name: str) -> Request:
    """Ask for master and sync state set of a group."""
    return Request(RequestCode.CONTROLLER_GET_REPLICA_INFO, {"brokerName": broker_name})


def decode_sync_state_query(request: Request) -> tuple[str, ...]:
    """Return the broker names of a query for the replicas of groups (1006).

    Raises:
        BodyError: the body is invalid.
        FieldError: there are too many names.
    """
    names = read_request(request.body, list[str], "a list of broker names") if request.body else []
    if len(names) > NAMES_MAX:
        raise FieldError(f"the query has {len(names)} broker names (expected at most {NAMES_MAX})")
    return tuple(dict.fromkeys(names))


def encode_sync_state_query(broker_names: Iterable[str]) -> Request:
    """Ask for the replicas of groups."""
    return Request(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=fastjson.dumps(list(broker_names), _LEGACY))


def decode_cleanup(request: Request) -> Cleanup:
    """Decode the removal of replicas.

    Raises:
        FieldError: a field is missing or invalid.
    """
    fields = request.fields
    text = fields.get("brokerControllerIdsToClean", "").strip()
    return Cleanup(
        optional_name(fields, "clusterName"),
        required_name(fields, "brokerName"),
        _parse_ids(text) if text else None,
        truth(fields, "isCleanLivingBroker"),
    )


def _parse_ids(text: str) -> frozenset[int]:
    parts = text.removesuffix(";").split(";", MEMBERS_MAX)  # the last part has the rest, if there are more
    if len(parts) > MEMBERS_MAX or not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise FieldError(f"brokerControllerIdsToClean is not a list of ids: {text[:40]!r} (expected 1;2;3)")
    return frozenset(map(int, parts))


def encode_cleanup(cleanup: Cleanup, now_ms: int) -> Request:
    """Ask to remove replicas."""
    fields = {
        "brokerName": cleanup.broker_name,
        "isCleanLivingBroker": "true" if cleanup.allow_living else "false",
        "invokeTime": str(now_ms),
    }
    if cleanup.cluster is not None:
        fields["clusterName"] = cleanup.cluster
    if cleanup.broker_ids is not None:
        fields["brokerControllerIdsToClean"] = ";".join(map(str, sorted(cleanup.broker_ids)))
    return Request(RequestCode.CLEAN_BROKER_DATA, fields)


def decode_replica_heartbeat(request: Request) -> ReplicaHeartbeat:
    """Decode a heartbeat.

    Raises:
        FieldError: a field is missing or invalid.
    """
    fields = request.fields
    return ReplicaHeartbeat(
        required_name(fields, "clusterName"),
        required_name(fields, "brokerName"),
        required_int(fields, "brokerId") if fields.get("brokerId") else None,
        required_name(fields, "brokerAddr"),
        optional_int(fields, "epoch", -1),
        optional_int(fields, "maxOffset", -1, _INT64_MAX),
        optional_int(fields, "confirmOffset", -1, _INT64_MAX),
        optional_int(fields, "electionPriority", _INT32_MAX),
        optional_int(fields, "heartbeatTimeoutMills", 0, _INT64_MAX) / 1000,
    )


def encode_replica_heartbeat(beat: ReplicaHeartbeat) -> Request:
    """Report that a broker is alive."""
    fields = {
        "clusterName": beat.cluster,
        "brokerName": beat.broker_name,
        "brokerAddr": beat.address,
        "epoch": str(beat.epoch),
        "maxOffset": str(beat.max_offset),
        "confirmOffset": str(beat.confirm_offset),
        "electionPriority": str(beat.priority),
        "heartbeatTimeoutMills": str(round(beat.timeout_s * 1000)),
    }
    if beat.broker_id is not None:
        fields["brokerId"] = str(beat.broker_id)
    return Request(RequestCode.BROKER_HEARTBEAT, fields)


# Responses


@dataclass(frozen=True, slots=True)
class MasterFields:
    """The master in a response. A field that is None is left out."""

    broker_id: int | None = None
    address: str | None = None
    master_epoch: int | None = None
    sync_set_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class SyncStateFields:
    """The sync state set in a response, with its epoch."""

    members: frozenset[int]
    epoch: int


@dataclass(frozen=True, slots=True)
class ControllerFields:
    """The controllers of a cluster, as one of them sees it (1005)."""

    group: str
    leader_id: str
    leader_address: str
    is_leader: bool
    peers: Mapping[str, str]
    """Addresses by id."""


@dataclass(frozen=True, slots=True)
class ReplicaFields:
    """One replica of a group, as tools show it."""

    broker_id: int
    address: str
    is_alive: bool
    is_in_sync: bool


def encode_next_id(cluster: str, broker_name: str, broker_id: int) -> Response:
    """Respond with the id to apply for."""
    return Response(fields={"clusterName": cluster, "brokerName": broker_name, "nextBrokerId": str(broker_id)})


def encode_grant(cluster: str, broker_name: str) -> Response:
    """Respond that the id is granted."""
    return Response(fields={"clusterName": cluster, "brokerName": broker_name})


def encode_registered(cluster: str, broker_name: str, master: MasterFields | None, sync: SyncStateFields) -> Response:
    """Respond to a registration with the living master, if there is one, and the sync state set."""
    fields = {"clusterName": cluster, "brokerName": broker_name, **_master_fields(master or MasterFields())}
    return Response(fields=fields, body=_sync_state(sync.members, sync.epoch))


def encode_election(
    master: MasterFields,
    members: frozenset[int],
    group: tuple[str, str, Mapping[int, str]] | None,
    *,
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
) -> Response:
    """Respond with the elected master; `group` is cluster, broker name and addresses by id, for a new master."""
    body: dict[str, object] = {}
    if group is not None:
        cluster, broker_name, addresses = group
        body["brokerMemberGroup"] = {
            # Quoted ids: mqadmin 5.5.0 skips this member, and its parser skips no unquoted names.
            "brokerAddrs": {str(broker_id): address for broker_id, address in sorted(addresses.items())},
            "brokerName": broker_name,
            "cluster": cluster,
        }
    body["syncStateSet"] = sorted(members)
    return Response(code, remark, _master_fields(master), fastjson.dumps(body, _LEGACY))


def encode_sync_set_changed(sync: SyncStateFields) -> Response:
    """Respond with the new sync state set."""
    return Response(fields={"newSyncStateSetEpoch": str(sync.epoch)}, body=_sync_state(sync.members, sync.epoch))


def encode_replica_info(master: MasterFields, sync: SyncStateFields) -> Response:
    """Respond with master and sync state set of a group."""
    return Response(fields=_master_fields(master), body=_sync_state(sync.members, sync.epoch))


def encode_controllers(controllers: ControllerFields) -> Response:
    """Respond with the leading controller and its peers."""
    return Response(
        fields={
            "group": controllers.group,
            "controllerLeaderId": controllers.leader_id,
            "controllerLeaderAddress": controllers.leader_address,
            "isLeader": "true" if controllers.is_leader else "false",
            "peers": "".join(f"{peer}:{address};" for peer, address in controllers.peers.items()),
        }
    )


def encode_sync_states(
    groups: Iterable[tuple[str, MasterFields, Iterable[ReplicaFields]]],
) -> Generator[None, None, Response]:
    """Respond with the replicas of groups, each with its broker name. Works in steps."""
    pieces: list[str] = []
    cost = 0
    for name, master, replicas in groups:
        listed = list(replicas)
        info = fastjson.write(_replicas_info(name, master, listed), _LEGACY)
        pieces.append(f"{fastjson.write_text(name, _LEGACY)}:{info}")
        cost += 1 + len(listed)
        if cost >= REPLICAS_A_STEP:
            cost = 0
            yield
    return Response(body=f'{{"replicasInfoTable":{{{",".join(pieces)}}}}}'.encode("utf-8", "replace"))


def _replicas_info(broker_name: str, master: MasterFields, replicas: Iterable[ReplicaFields]) -> dict[str, object]:
    sides: dict[bool, list[dict[str, object]]] = {True: [], False: []}
    for replica in replicas:
        sides[replica.is_in_sync].append(
            {
                "alive": replica.is_alive,
                "brokerAddress": replica.address,
                "brokerId": replica.broker_id,
                "brokerName": broker_name,
            }
        )
    return {
        "inSyncReplicas": sides[True],
        "masterAddress": master.address,
        "masterBrokerId": master.broker_id,
        "masterEpoch": master.master_epoch,
        "notInSyncReplicas": sides[False],
        "syncStateSetEpoch": master.sync_set_epoch,
    }


def encode_role_change(master: MasterFields, sync: SyncStateFields) -> Request:
    """Notify a broker of a new master (1008, one-way)."""
    return Request(
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED, _master_fields(master), body=_sync_state(sync.members, sync.epoch)
    )


def decode_master(fields: Mapping[str, str] | None) -> MasterFields:
    """Decode the master in the fields of a response or notice.

    Raises:
        FieldError: a field is invalid.
    """
    fields = fields or {}
    broker_id = optional_int(fields, "masterBrokerId", NO_BROKER, _INT64_MAX)
    return MasterFields(
        None if broker_id == NO_BROKER else broker_id,
        optional_name(fields, "masterAddress"),
        required_int32(fields, "masterEpoch") if fields.get("masterEpoch") else None,
        required_int32(fields, "syncStateSetEpoch") if fields.get("syncStateSetEpoch") else None,
    )


def decode_sync_state(body: bytes) -> SyncStateFields:
    """Decode the sync state set in the body of a response or notice.

    Raises:
        BodyError: the body is invalid.
    """
    decoded = read_body(body, _SyncStateBody, "a sync state set")
    return SyncStateFields(frozenset(decoded.sync_state_set), decoded.sync_state_set_epoch)


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """A broker group in the response to a query for replicas."""

    master: MasterFields
    replicas: tuple[ReplicaFields, ...]


@dataclass(frozen=True, slots=True)
class Epoch:
    """One epoch of a broker's log. The newest ends where the log ends."""

    number: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """The epochs of a broker's log, oldest first (1007)."""

    cluster: str
    broker_name: str
    broker_id: int
    epochs: tuple[Epoch, ...]
    max_offset: int


class _Replica(msgspec.Struct, rename="camel"):
    broker_id: Int64
    broker_address: str
    alive: bool | None = None


class _ReplicasInfo(msgspec.Struct, rename="camel"):
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    in_sync_replicas: list[_Replica] = []
    not_in_sync_replicas: list[_Replica] = []


class _ReplicasInfoTable(msgspec.Struct, rename="camel"):
    replicas_info_table: dict[str, _ReplicasInfo] = {}


class _Epoch(msgspec.Struct, rename="camel"):
    epoch: Int32
    start_offset: Int64
    end_offset: Int64 = _INT64_MAX


class _EpochHistory(msgspec.Struct, rename="camel"):
    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = 0
    epoch_list: list[_Epoch] = []
    max_offset: Int64 = 0


def encode_controllers_query() -> Request:
    """Ask a controller which one leads."""
    return Request(RequestCode.CONTROLLER_GET_METADATA_INFO)


def decode_controllers(response: Response) -> ControllerFields:
    """Decode the leading controller and its peers.

    Raises:
        FieldError: a field is invalid.
    """
    fields = response.fields or {}
    peers = (part.partition(":") for part in fields.get("peers", "").split(";") if part)
    return ControllerFields(
        fields.get("group", ""),
        fields.get("controllerLeaderId", ""),
        fields.get("controllerLeaderAddress", ""),
        truth(fields, "isLeader"),
        {peer: address for peer, _, address in peers},
    )


def decode_sync_states(body: bytes) -> dict[str, ReplicaGroup]:
    """Decode the replicas of groups, by broker name.

    Raises:
        BodyError: the body is invalid.
    """
    decoded = read_body(body, _ReplicasInfoTable, "the replicas of broker groups")
    return {name: _replica_group(info) for name, info in sorted(decoded.replicas_info_table.items())}


def _replica_group(info: _ReplicasInfo) -> ReplicaGroup:
    sides = ((info.in_sync_replicas, True), (info.not_in_sync_replicas, False))
    return ReplicaGroup(
        MasterFields(info.master_broker_id, info.master_address, info.master_epoch, info.sync_state_set_epoch),
        tuple(
            ReplicaFields(each.broker_id, each.broker_address, bool(each.alive), is_in_sync)
            for side, is_in_sync in sides
            for each in side
        ),
    )


def encode_epochs_query() -> Request:
    """Ask a broker for the epochs of its log."""
    return Request(RequestCode.GET_BROKER_EPOCH_CACHE)


def encode_epochs(history: EpochHistory) -> Response:
    """Respond with the epochs of a broker's log."""
    body = {
        "brokerId": history.broker_id,
        "brokerName": history.broker_name,
        "clusterName": history.cluster,
        "epochList": [
            {"endOffset": each.end_offset, "epoch": each.number, "startOffset": each.start_offset}
            for each in history.epochs
        ],
        "maxOffset": history.max_offset,
    }
    return Response(body=fastjson.dumps(body, _LEGACY))


def decode_epochs(body: bytes) -> EpochHistory:
    """Decode the epochs of a broker's log.

    Raises:
        BodyError: the body is invalid.
    """
    found = read_body(body, _EpochHistory, "the epochs of a broker")
    return EpochHistory(
        *(found.cluster_name, found.broker_name, found.broker_id),
        tuple(
            Epoch(each.epoch, each.start_offset, min(each.end_offset, found.max_offset)) for each in found.epoch_list
        ),
        found.max_offset,
    )


def decode_next_id(response: Response) -> int:
    """Decode the id to apply for.

    Raises:
        FieldError: it is missing or invalid.
    """
    return required_int(response.fields or {}, "nextBrokerId")


def _master_fields(master: MasterFields) -> dict[str, str]:
    values = {
        "masterBrokerId": master.broker_id,
        "masterAddress": master.address,
        "masterEpoch": master.master_epoch,
        "syncStateSetEpoch": master.sync_set_epoch,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def _sync_state(members: Iterable[int], epoch: int) -> bytes:
    return fastjson.dumps({"syncStateSet": sorted(members), "syncStateSetEpoch": epoch}, _LEGACY)
