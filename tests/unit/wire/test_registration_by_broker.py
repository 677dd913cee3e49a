"""What a broker writes and reads of the conversation whose other side is the name server's."""

import zlib

import pytest

from skyroute.remoting.stepwise import run_through
from skyroute.routing.registration import DataVersion, Registration, TopicTable
from skyroute.routing.topology import Permission, QueueSettings, StaticMapping
from skyroute.wire.calls.kv import encode_kv_table
from skyroute.wire.calls.registration import (
    RegistrationReply,
    decode_broker_key,
    decode_data_version,
    decode_registration,
    decode_registration_reply,
    decode_version_reply,
    encode_heartbeat,
    encode_registration,
    encode_version_query,
    encode_version_reply,
)
from skyroute.wire.calls.registration_body import decode_topic_table
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import OUR_VERSION
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import BodyError

VERSION = DataVersion(0, 1_758_275_140_000, 3)
TABLE = TopicTable(
    VERSION,
    {"Orders": QueueSettings(8, 8, 6, 0), "Täglich": QueueSettings(4, 2, 4, 0)},
    {"Static": StaticMapping("Static", "broker-a", 2, 1_758_275_140_000, current_ids={0: 0, 1: 1})},
    (),
)
REGISTRATION = Registration("DefaultCluster", "broker-a", 0, "10.0.0.1:10911", "10.0.0.1:10912", table=TABLE)


def read(request: Request) -> TopicTable:
    """As a name server decodes it: with the version of the sender."""
    request.version = OUR_VERSION
    steps = decode_topic_table(request)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        table: TopicTable = end.value
        return table


@pytest.mark.parametrize("compressed", [False, True])
def test_a_name_server_reads_what_a_broker_writes(compressed: bool) -> None:
    request = encode_registration(REGISTRATION, compressed=compressed)
    assert read(request) == TABLE
    header = decode_registration(request)
    assert (header.broker_name, header.address, header.ha_address) == ("broker-a", "10.0.0.1:10911", "10.0.0.1:10912")


def test_a_compressed_body_is_marked_and_in_apaches_format() -> None:
    request = encode_registration(REGISTRATION, compressed=True)
    assert request.fields["compressed"] == "true"
    assert request.fields["bodyCrc32"] == str(zlib.crc32(request.body) & 0x7FFFFFFF)
    inflated = zlib.decompress(request.body)
    assert b"\x00\x00\x00\x1aOrders 8 8 6 SINGLE_TAG {}" in inflated
    assert inflated.startswith(b'\x00\x00\x008{"counter":3,"stateVersion":0,"timestamp":1758275140000}\x00\x00\x00\x02')


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_has_topic_settings_that_name_servers_ignore(compressed: bool) -> None:
    both = Permission.READ | Permission.WRITE
    orders = TopicConfig("Orders", 8, 8, both, "MULTI_TAG", attributes={"message.type": "FIFO"})
    configs = [orders, TopicConfig("Täglich", 4, 2, 4)]
    request = encode_registration(REGISTRATION, configs, compressed=compressed)
    assert read(request) == TABLE
    body = zlib.decompress(request.body) if compressed else request.body
    attributes = b'{"message.type":"FIFO"}'
    assert (b"8 8 6 MULTI_TAG " + attributes if compressed else b'"attributes":' + attributes) in body


@pytest.mark.parametrize(
    ("response", "reply"),
    [
        (Response(), RegistrationReply()),
        (Response(body=run_through(encode_kv_table({"Orders": "broker-a:4"}))), RegistrationReply(("Orders",))),
        (Response(body=b"{}"), RegistrationReply()),
        (
            Response(fields={"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}),
            RegistrationReply((), "10.0.0.1:10911", "10.0.0.1:10912"),
        ),
    ],
)
def test_the_answer_names_ordered_topics_and_a_master(response: Response, reply: RegistrationReply) -> None:
    assert decode_registration_reply(response) == reply


def test_an_answer_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(BodyError):
        decode_registration_reply(Response(body=b'{"table":7}'))


@pytest.mark.parametrize("changed", [False, True])
def test_a_request_about_versions_and_its_answer(changed: bool) -> None:
    request = encode_version_query(REGISTRATION, VERSION)
    assert (request.code, decode_data_version(request.body)) == (322, VERSION)
    assert decode_broker_key(request) == REGISTRATION.key
    assert decode_version_reply(encode_version_reply(VERSION, changed=changed)) is changed


def test_a_heartbeat_has_cluster_and_address() -> None:
    request = encode_heartbeat(REGISTRATION)
    assert (request.code, decode_broker_key(request)) == (904, REGISTRATION.key)
    assert (request.fields["brokerName"], request.fields["brokerId"]) == ("broker-a", "0")
