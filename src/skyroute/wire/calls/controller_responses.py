"""Responses and notifications of a controller: ids, masters, sync state sets.

Addresses and names are checked here. Epochs have 32 bits, broker ids 64.
"""

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from skyroute.wire import fastjson
from skyroute.wire.calls.topics import read_body
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Int32, Int64, Request, Response
from skyroute.wire.fields import (
    INT64_MAX,
    optional_int,
    optional_name,
    required_int,
    required_int32,
    truth,
)

REPLICAS_A_STEP: Final = 300
"""Replicas and groups encoded in one step, which takes some milliseconds."""

NO_BROKER: Final = -1
"""Broker id in an election that no broker asks for."""

_LEGACY: Final = fastjson.Dialect.LEGACY


class SyncStateBody(msgspec.Struct, rename="camel"):
    """A sync state set in JSON."""

    sync_state_set: list[Int64] = []
    sync_state_set_epoch: Int32 = 0


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
    return Response(fields=fields, body=encode_sync_state(sync.members, sync.epoch))


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
    return Response(fields={"newSyncStateSetEpoch": str(sync.epoch)}, body=encode_sync_state(sync.members, sync.epoch))


def encode_replica_info(master: MasterFields, sync: SyncStateFields) -> Response:
    """Respond with master and sync state set of a group."""
    return Response(fields=_master_fields(master), body=encode_sync_state(sync.members, sync.epoch))


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
        RequestCode.NOTIFY_BROKER_ROLE_CHANGED, _master_fields(master), body=encode_sync_state(sync.members, sync.epoch)
    )


def decode_master(fields: Mapping[str, str] | None) -> MasterFields:
    """Decode the master in the fields of a response or notice.

    Raises:
        FieldError: a field is invalid.
    """
    fields = fields or {}
    broker_id = optional_int(fields, "masterBrokerId", NO_BROKER, INT64_MAX)
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
    decoded = read_body(body, SyncStateBody, "a sync state set")
    return SyncStateFields(frozenset(decoded.sync_state_set), decoded.sync_state_set_epoch)


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """A broker group in the response to a query for replicas."""

    master: MasterFields
    replicas: tuple[ReplicaFields, ...]


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


def encode_sync_state(members: Iterable[int], epoch: int) -> bytes:
    """Encode a sync state set."""
    return fastjson.dumps({"syncStateSet": sorted(members), "syncStateSetEpoch": epoch}, _LEGACY)
