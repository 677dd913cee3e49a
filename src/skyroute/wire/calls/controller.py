"""Requests of brokers and operators to a controller: ids, elections, sync state sets.

Addresses and names are checked here. Epochs have 32 bits, broker ids 64.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from skyroute.wire import fastjson
from skyroute.wire.calls.controller_responses import NO_BROKER, SyncStateBody, encode_sync_state
from skyroute.wire.calls.topics import read_request
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request
from skyroute.wire.errors import FieldError
from skyroute.wire.fields import (
    INT64_MAX,
    optional_int,
    optional_name,
    required_int,
    required_int32,
    required_name,
    truth,
)

MEMBERS_MAX: Final = 1_000
"""Maximum number of broker ids in one request."""
NAMES_MAX: Final = 10_000
"""Maximum number of broker groups in one query."""

_INT32_MAX: Final = (1 << 31) - 1
_LEGACY: Final = fastjson.Dialect.LEGACY


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
    broker_id = optional_int(fields, "brokerId", NO_BROKER, INT64_MAX)
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
    body = read_request(request.body, SyncStateBody, "a sync state set")
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
        body=encode_sync_state(change.members, change.sync_set_epoch),
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
        optional_int(fields, "maxOffset", -1, INT64_MAX),
        optional_int(fields, "confirmOffset", -1, INT64_MAX),
        optional_int(fields, "electionPriority", _INT32_MAX),
        optional_int(fields, "heartbeatTimeoutMills", 0, INT64_MAX) / 1000,
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


def encode_controllers_query() -> Request:
    """Ask a controller which one leads."""
    return Request(RequestCode.CONTROLLER_GET_METADATA_INFO)
