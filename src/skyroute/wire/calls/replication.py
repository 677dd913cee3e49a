"""Requests about replication: the state of a group's connections, and addresses that its members exchange."""

import msgspec

from skyroute.routing.registration import DataVersion
from skyroute.wire.calls.topics import read_body
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response
from skyroute.wire.data_version import version_members
from skyroute.wire.fastjson import Dialect, dumps
from skyroute.wire.fields import optional_int


class ReplicaInfo(msgspec.Struct, frozen=True):
    """A slave, as its master sees it."""

    addr: str
    slave_ack_offset: int = msgspec.field(name="slaveAckOffset", default=0)
    diff: int = 0
    in_sync: bool = msgspec.field(name="inSync", default=False)
    transferred_byte_in_second: int = msgspec.field(name="transferredByteInSecond", default=0)
    transfer_from_where: int = msgspec.field(name="transferFromWhere", default=0)


class FollowerInfo(msgspec.Struct, frozen=True, rename="camel"):
    """A slave, as it sees itself."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    activated: bool = False


class ReplicationStatus(msgspec.Struct, frozen=True):
    """The replication of one broker."""

    master: bool
    master_log_end: int = msgspec.field(name="masterCommitLogMaxOffset", default=0)
    in_sync_slaves: int = msgspec.field(name="inSyncSlaveNums", default=0)
    slaves: tuple[ReplicaInfo, ...] = msgspec.field(name="haConnectionInfo", default=())
    follower: FollowerInfo = msgspec.field(name="haClientRuntimeInfo", default_factory=FollowerInfo)


def encode_replication_status_query() -> Request:
    """Encode a request for the replication of a broker."""
    return Request(RequestCode.GET_BROKER_HA_STATUS)


def encode_replication_status(status: ReplicationStatus) -> Response:
    """Encode the replication of a broker."""
    return Response(body=msgspec.json.encode(status))


def decode_replication_status(body: bytes) -> ReplicationStatus:
    """Decode the replication of a broker.

    Raises:
        BodyError: it cannot be read.
    """
    return read_body(body, ReplicationStatus, "the replication of a broker")


class GroupAddresses(msgspec.Struct, frozen=True):
    """The addresses of a group's master, and the end of its log when it started."""

    master_address: str | None
    master_ha_address: str | None
    log_end: int


def encode_group_addresses_query() -> Request:
    """Ask a master for its addresses."""
    return Request(RequestCode.EXCHANGE_BROKER_HA_INFO)


def decode_group_addresses(command: Request | Response) -> GroupAddresses:
    """Decode the addresses that a starting member sends, or a master's; a request without them asks for the master's.

    Raises:
        FieldError: a number is malformed.
    """
    fields = command.fields or {}
    log_end = optional_int(fields, "masterFlushOffset", 0, (1 << 63) - 1)
    return GroupAddresses(fields.get("masterAddress"), fields.get("masterHaAddress"), log_end)


def encode_group_addresses_notice(addresses: GroupAddresses) -> Request:
    """Tell a slave the addresses of its master, which is about to register."""
    return Request(RequestCode.EXCHANGE_BROKER_HA_INFO, encode_group_addresses(addresses).fields or {})


def encode_group_addresses(addresses: GroupAddresses) -> Response:
    """Encode the addresses of a group's master."""
    fields = {
        "masterAddress": addresses.master_address or "",
        "masterHaAddress": addresses.master_ha_address or "",
        "masterFlushOffset": str(addresses.log_end),
    }
    return Response(fields=fields)


def encode_timer_metrics() -> Response:
    """Encode the numbers of timer messages by topic, which this broker does not count."""
    return Response(body=dumps({"dataVersion": version_members(DataVersion()), "timingCount": {}}, Dialect.LEGACY))
