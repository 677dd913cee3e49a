"""Requests of brokers to name servers: registration, heartbeat, version query, unregistration."""

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import msgspec

from skyroute.routing.events import RegistrationOutcome
from skyroute.routing.registration import DataVersion, Registration, TopicTable
from skyroute.routing.topology import BrokerKey
from skyroute.wire import fastjson
from skyroute.wire.calls.mapping import mapping_members
from skyroute.wire.calls.registration_body import decode_json
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response
from skyroute.wire.data_version import Version, version_members
from skyroute.wire.fastjson import Dialect
from skyroute.wire.fields import INT64_MAX, optional_int, optional_name, required_int, required_name, truth

TOPICS_A_PART: Final = 1_000
"""Topics that are encoded at a time."""
_INT32: Final = Struct(">i")
_PLAIN_FORM: Final = (
    b'{"filterServerList":%b,"topicConfigSerializeWrapper":{"dataVersion":%b,"mappingDataVersion":%b,'
    b'"topicConfigTable":%b,"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":%b}}'
)
_TRUTH_TEXTS: Final = {None: None, False: "false", True: "true"}
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def decode_registration(request: Request) -> Registration:
    """Decode the header of a registration. `decode_topic_table` decodes the body, if it is not known already.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    heartbeat_ms = optional_int(fields, "heartbeatTimeoutMillis", 0, INT64_MAX)
    acting = fields.get("enableActingMaster")
    return Registration(
        cluster=required_name(fields, "clusterName"),
        broker_name=required_name(fields, "brokerName"),
        broker_id=required_int(fields, "brokerId"),
        address=required_name(fields, "brokerAddr"),
        ha_address=optional_name(fields, "haServerAddr"),
        zone=optional_name(fields, "__ZONE_NAME"),
        acting_master=None if acting is None else truth(fields, "enableActingMaster"),
        lease_s=heartbeat_ms / 1000 if heartbeat_ms > 0 else None,
    )


def encode_registration(
    registration: Registration, configs: Collection[TopicConfig] | None = None, *, compressed: bool = False
) -> Request:
    """Encode a registration as a 5.x broker does. The compressed format has no `sys_flag` and no `ordered`.

    `configs` are the topics with all their settings; without it, the topics of the table are used.
    """
    table = registration.table or TopicTable()
    if configs is None:
        configs = [
            TopicConfig(topic, queues.read_queues, queues.write_queues, queues.permission, sys_flag=queues.sys_flag)
            for topic, queues in table.topics.items()
        ]
    body = _compressed_body(table, configs) if compressed else _plain_body(table, configs)
    fields = {
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        "brokerAddr": registration.address,
        "brokerId": str(registration.broker_id),
        "brokerName": registration.broker_name,
        "clusterName": registration.cluster,
        "compressed": "true" if compressed else "false",
        "haServerAddr": registration.ha_address or "",  # Java's name server refuses a registration without it
        "enableActingMaster": _TRUTH_TEXTS[registration.acting_master],
        "heartbeatTimeoutMillis": None if registration.lease_s is None else str(round(registration.lease_s * 1000)),
        "__ZONE_NAME": registration.zone,
    }
    return Request(
        RequestCode.REGISTER_BROKER, {name: text for name, text in fields.items() if text is not None}, body=body
    )


def _plain_body(table: TopicTable, configs: Collection[TopicConfig]) -> bytes:
    # Only the maps by queue id need Java's dialect.
    return _PLAIN_FORM % (
        fastjson.dumps(list(table.filter_servers or ()), Dialect.LEGACY),
        fastjson.dumps(version_members(table.version), Dialect.LEGACY),
        fastjson.dumps(version_members(DataVersion()), Dialect.LEGACY),
        _encode_topics(list(configs)),
        fastjson.dumps({topic: mapping_members(mapping) for topic, mapping in table.mappings.items()}, Dialect.LEGACY),
    )


def _encode_topics(configs: Sequence[TopicConfig]) -> bytes:
    """Encode topics, some at a time: msgspec blocks all other threads while it encodes."""
    parts = [
        _encode_sorted({config.name: config for config in configs[start : start + TOPICS_A_PART]})[1:-1]
        for start in range(0, len(configs), TOPICS_A_PART)
    ]
    return b"{%b}" % b",".join(parts)


def _compressed_body(table: TopicTable, configs: Collection[TopicConfig]) -> bytes:
    """Encode pieces with their lengths, deflated. Senders from 5.0 on, such as we, include the mappings."""
    pieces = [_piece(fastjson.dumps(version_members(table.version), Dialect.LEGACY)), _INT32.pack(len(configs))]
    for config in configs:
        queues = f"{config.read_queues} {config.write_queues} {int(config.permission)}"
        attributes = fastjson.write(config.attributes, Dialect.LEGACY)
        pieces.append(_piece(f"{config.name} {queues} {config.filter_type} {attributes}".encode()))
    pieces.append(_piece(fastjson.dumps(list(table.filter_servers or ()), Dialect.LEGACY)))
    pieces.append(_INT32.pack(len(table.mappings)))
    for mapping in table.mappings.values():
        pieces.append(_piece(fastjson.dumps(mapping_members(mapping), Dialect.LEGACY)))
    return zlib.compress(b"".join(pieces))


def _piece(content: bytes) -> bytes:
    return _INT32.pack(len(content)) + content


def encode_registration_reply(outcome: RegistrationOutcome, order_topics: bytes) -> Response:
    """Encode the response: the master's addresses for a slave, and the table of ordered topics."""
    fields: dict[str, str] = {}
    if outcome.master_ha_address is not None:
        fields["haServerAddr"] = outcome.master_ha_address
    if outcome.master_address is not None:
        fields["masterAddr"] = outcome.master_address
    return Response(fields=fields, body=order_topics)


@dataclass(frozen=True, slots=True)
class RegistrationReply:
    """A name server's response to a registration."""

    ordered_topics: tuple[str, ...] = ()
    master_address: str | None = None
    master_ha_address: str | None = None


class _OrderTopics(msgspec.Struct):
    table: dict[str, str | None] | None = None


def decode_registration_reply(response: Response) -> RegistrationReply:
    """Decode a name server's response to a registration.

    Raises:
        BodyError: the body is invalid.
    """
    fields = response.fields or {}
    table = decode_json(response.body, _OrderTopics).table if response.body else None
    return RegistrationReply(tuple(table or ()), fields.get("masterAddr"), fields.get("haServerAddr"))


@dataclass(frozen=True, slots=True)
class Unregistration:
    """UNREGISTER_BROKER: a broker leaves."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


def decode_unregistration(request: Request) -> Unregistration:
    """Decode an unregistration.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return Unregistration(
        cluster=required_name(fields, "clusterName"),
        broker_name=required_name(fields, "brokerName"),
        broker_id=required_int(fields, "brokerId"),
        address=required_name(fields, "brokerAddr"),
    )


def _broker_fields(registration: "Registration | Unregistration") -> dict[str, str]:
    return {
        "brokerAddr": registration.address,
        "brokerId": str(registration.broker_id),
        "brokerName": registration.broker_name,
        "clusterName": registration.cluster,
    }


def encode_unregistration(unregistration: Unregistration) -> Request:
    """Encode an unregistration."""
    return Request(RequestCode.UNREGISTER_BROKER, _broker_fields(unregistration))


def encode_heartbeat(registration: Registration) -> Request:
    """Encode a heartbeat, which renews the lease of a registered broker."""
    return Request(RequestCode.BROKER_HEARTBEAT, _broker_fields(registration))


def encode_version_query(registration: Registration, version: DataVersion) -> Request:
    """Encode a version query: does the name server know this version? It is a heartbeat, too."""
    body = fastjson.dumps(version_members(version), Dialect.LEGACY)
    return Request(RequestCode.QUERY_DATA_VERSION, _broker_fields(registration), body=body)


def decode_version_reply(response: Response) -> bool:
    """Return whether the name server needs a registration: it knows another version, or none."""
    return truth(response.fields or {}, "changed")


def decode_broker_key(request: Request) -> BrokerKey:
    """Decode the broker of a heartbeat or version query.

    Raises:
        FieldError: a field is missing.
    """
    return BrokerKey(required_name(request.fields, "clusterName"), required_name(request.fields, "brokerAddr"))


def decode_data_version(body: bytes) -> DataVersion | None:
    """Decode the version of a version query; None if it has none.

    Raises:
        BodyError: the body is invalid.
    """
    return decode_json(body, Version).value() if body not in (b"", b"null") else None


def encode_version_reply(known: DataVersion | None, *, changed: bool) -> Response:
    """Encode the known version, and whether it differs from the broker's."""
    body = b"" if known is None else fastjson.dumps(version_members(known), Dialect.LEGACY)
    return Response(fields={"changed": "true" if changed else "false"}, body=body)
