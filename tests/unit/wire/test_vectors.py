"""The codec against bytes that others wrote: the specification's vectors and frames of two Apache releases."""

import json
import zlib
from collections.abc import Generator

import pytest

from skyroute.remoting.stepwise import run_through
from skyroute.routing.events import RegistrationOutcome
from skyroute.routing.registration import DataVersion, TopicTable
from skyroute.routing.topology import (
    BrokerGroup,
    BrokerQueues,
    ClusterView,
    QueueSettings,
    StaticMapping,
    TopicRoute,
)
from skyroute.wire.calls.kv import encode_kv_table
from skyroute.wire.calls.registration import (
    decode_data_version,
    decode_registration,
    encode_registration_reply,
    encode_version_reply,
)
from skyroute.wire.calls.registration_body import decode_topic_table
from skyroute.wire.calls.route import (
    decode_route_query,
    decode_topic_registration,
    encode_cluster_view,
    encode_member_group,
    encode_route,
    encode_topic_list,
)
from skyroute.wire.command import FLAG_ONEWAY, FORM_BINARY, FORM_JSON, Request, Response
from skyroute.wire.errors import FrameError
from skyroute.wire.fastjson import Dialect
from skyroute.wire.frame import FrameDecoder
from skyroute.wire.header import as_response, decode_command, encode_request, response_head
from tests.unit.wire.by_hand import words
from tests.unit.wire.golden import golden_bytes, golden_line


def whole(steps: Generator[None, None, list[bytes]]) -> bytes:
    return b"".join(run_through(steps))


VERSION = DataVersion(state_version=0, timestamp_ms=1758275140000, counter=3)
TOPIC_S = StaticMapping(
    topic="TopicS", broker_name="broker-a", total_queues=2, epoch=1758275140000, current_ids={0: 0, 1: 1}
)


def read(frame: bytes) -> Request:
    [content] = FrameDecoder().feed(frame)
    return decode_command(content)


@pytest.mark.parametrize(
    ("name", "form"), [("spec/a-route-request-json.hex", FORM_JSON), ("spec/b-route-request-binary.hex", FORM_BINARY)]
)
def test_vectors_a_and_b_are_one_request_in_two_forms(name: str, form: int) -> None:
    assert read(golden_bytes(name)) == Request(
        code=105, fields={"topic": "TopicTest"}, request_id=7, version=479, form=form
    )


@pytest.mark.parametrize(
    ("name", "form"), [("spec/a-route-request-json.hex", FORM_JSON), ("spec/b-route-request-binary.hex", FORM_BINARY)]
)
def test_vectors_a_and_b_are_what_we_write_too(name: str, form: int) -> None:
    request = Request(code=105, fields={"topic": "TopicTest"}, version=479, form=form)
    assert encode_request(request, 7, language="JAVA") == golden_bytes(name)


def test_vector_c_the_longest_frame_is_awaited() -> None:
    decoder = FrameDecoder()
    assert decoder.feed(words(16_777_212, 0)) == []
    assert len(decoder.buffer) == 8


@pytest.mark.parametrize("length", [16_777_213, 0xFFFFFFFF, 3, 0])
def test_vector_c_a_length_out_of_bounds_ends_the_stream_at_once(length: int) -> None:
    with pytest.raises(FrameError):
        FrameDecoder().feed(length.to_bytes(4))


def test_vector_c_an_empty_json_header_is_refused() -> None:
    [content] = FrameDecoder().feed(words(4, 0))
    with pytest.raises(FrameError):
        decode_command(content)


@pytest.mark.parametrize("dialect", Dialect)
def test_vector_d_a_route_of_a_master_and_two_slaves(dialect: Dialect) -> None:
    addresses = {0: "10.0.0.1:10911", 1: "10.0.0.2:10911", 2: "10.0.0.3:10911"}
    route = TopicRoute(
        groups=(BrokerGroup("broker-a", "DefaultCluster", addresses),),
        queues=(BrokerQueues("broker-a", QueueSettings(8, 8, 6)),),
    )
    assert encode_route(route, dialect) == golden_line(f"spec/d-route-{dialect.value}.txt")


@pytest.mark.parametrize(
    ("dialect", "written"), [(Dialect.STRICT, r'"z\/1\u4E2D\n\"x"'), (Dialect.LEGACY, r'"z/1中\n\"x"')]
)
def test_vector_e_a_zone_that_needs_escapes(dialect: Dialect, written: str) -> None:
    group = BrokerGroup("broker-a", "DefaultCluster", {0: "10.0.0.1:10911"}, zone='z/1中\n"x')
    body = encode_route(TopicRoute((group,), ()), dialect)
    assert f'"zoneName":{written}}}'.encode() in body


def test_vector_f_a_data_version() -> None:
    line = golden_line("spec/f-data-version.txt")
    assert decode_data_version(line) == VERSION
    assert encode_version_reply(VERSION, changed=False) == Response(fields={"changed": "false"}, body=line)


def test_vector_g_the_checksum_is_a_crc_without_its_sign_bit() -> None:
    body = golden_line("spec/registration-5x.txt")
    assert len(body) == 599
    assert zlib.crc32(body) & 0x7FFFFFFF == 614924431
    fields = {"bodyCrc32": "614924431"}
    assert run_through(decode_topic_table(Request(fields=fields, version=479, body=body))).version == VERSION


@pytest.mark.parametrize("compressed", ["true", "false"])
def test_the_compressed_registration_vector(compressed: str) -> None:
    fields = {"bodyCrc32": "1848620698", "compressed": compressed}
    request = Request(fields=fields, version=479, body=golden_bytes("spec/registration-compressed.hex"))
    assert run_through(decode_topic_table(request)) == TopicTable(
        version=VERSION,
        topics={"TopicA": QueueSettings(8, 8, 6), "TopicB": QueueSettings(4, 4, 4)},
        mappings={"TopicS": TOPIC_S},
        filter_servers=(),
    )


def test_the_example_registration_of_a_slave() -> None:
    fields = json.loads(golden_line("spec/registration-fields-5x-slave.txt"))
    request = Request(code=103, fields=fields, version=479, body=golden_line("spec/registration-5x.txt"))
    registration = decode_registration(request)
    assert (registration.cluster, registration.broker_name, registration.broker_id) == ("DefaultCluster", "broker-a", 1)
    assert (registration.address, registration.ha_address) == ("10.0.0.2:10911", "10.0.0.2:10912")
    assert (registration.acting_master, registration.zone, registration.lease_s) == (False, None, None)
    assert run_through(decode_topic_table(request)) == TopicTable(
        version=VERSION,
        topics={"TopicA": QueueSettings(8, 8, 6), "TopicB": QueueSettings(4, 4, 4)},
        filter_servers=(),
    )


def test_the_example_answer_to_that_slave() -> None:
    body = run_through(encode_kv_table({"TopicA": "broker-a:4"}))
    assert body == golden_line("spec/order-topics.txt")
    outcome = RegistrationOutcome(master_address="10.0.0.1:10911", master_ha_address="10.0.0.1:10912")
    assert encode_registration_reply(outcome, body) == Response(
        fields={"haServerAddr": "10.0.0.1:10912", "masterAddr": "10.0.0.1:10911"}, body=body
    )


def test_the_example_route_of_a_static_topic_in_a_zone() -> None:
    group = BrokerGroup(
        "broker-a", "DefaultCluster", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}, acting_master=False, zone="z1"
    )
    route = TopicRoute(
        groups=(group,),
        queues=(BrokerQueues("broker-a", QueueSettings(4, 4, 6)),),
        mappings={"broker-a": TOPIC_S},
        order_config="broker-a:4",
    )
    assert encode_route(route, Dialect.STRICT) == golden_line("spec/route-static-zone-strict.txt")


def test_the_example_cluster_view() -> None:
    group = BrokerGroup("broker-a", "DefaultCluster", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})
    view = ClusterView((group,), {"DefaultCluster": ("broker-a",)})
    assert whole(encode_cluster_view(view, Dialect.LEGACY)) == golden_line("spec/cluster-view-legacy.txt")


def test_the_example_member_group() -> None:
    body = encode_member_group("DefaultCluster", "broker-a", {0: "10.0.0.1:10911"}, Dialect.LEGACY)
    assert body == golden_line("spec/member-group-legacy.txt")


def test_the_example_topic_lists() -> None:
    assert whole(encode_topic_list(["TBW102", "TopicA"])) == golden_line("spec/topic-list.txt")
    system = whole(encode_topic_list(["DefaultCluster", "broker-a"], "10.0.0.1:10911"))
    assert system == golden_line("spec/system-topic-list.txt")


def test_the_example_announcement_of_one_topic() -> None:
    request = Request(code=217, fields={"topic": "TopicA"}, body=golden_line("spec/topic-registration.txt"))
    assert decode_topic_registration(request) == ("TopicA", {"broker-a": QueueSettings(8, 8, 6)})


def test_the_example_notice_of_a_new_smallest_broker_id() -> None:
    fields = {"minBrokerId": "1", "minBrokerAddr": "10.0.0.2:10911", "offlineBrokerAddr": "10.0.0.1:10911"}
    request = read(encode_request(Request(code=905, fields=fields, flag=FLAG_ONEWAY), 1))
    assert (request.code, request.flag, request.fields) == (905, 2, fields)


@pytest.mark.parametrize("form", ["json", "binary"])
@pytest.mark.parametrize("compressed", ["", "-compressed"])
@pytest.mark.parametrize("release", ["4.9.7", "5.5.0"])
def test_a_registration_written_by_apache_is_understood(release: str, compressed: str, form: str) -> None:
    request = read(golden_bytes(f"apache-{release}/register-{form}{compressed}.hex"))
    assert (request.code, request.request_id, request.is_response, request.is_oneway) == (103, 7, False, False)

    registration = decode_registration(request)
    assert (registration.cluster, registration.broker_name, registration.broker_id) == ("DefaultCluster", "broker-a", 1)
    assert (registration.address, registration.ha_address) == ("10.0.0.2:10911", "10.0.0.2:10912")
    since_5 = release == "5.5.0"
    assert registration.acting_master is (False if since_5 else None)
    assert registration.zone == ("z1" if since_5 else None)
    assert registration.lease_s == (30.0 if since_5 else None)

    # The compressed form has no room for the flags of a topic.
    flag_of_b = 0 if compressed else 1
    assert run_through(decode_topic_table(request)) == TopicTable(
        version=VERSION,
        topics={
            "TopicA": QueueSettings(8, 8, 6),
            "TopicB": QueueSettings(4, 4, 4, flag_of_b),
            "主题/1": QueueSettings(1, 2, 6),
        },
        mappings={"TopicS": TOPIC_S} if since_5 else {},
        filter_servers=("10.0.0.9:1", "10.0.0.9:2"),
    )


def test_a_registration_older_than_3_0_11_is_a_bare_table() -> None:
    request = Request(version=36, body=golden_line("apache-4.9.7/topic-configs.json"))
    table = run_through(decode_topic_table(request))
    assert table.version == VERSION
    assert set(table.topics) == {"TopicA", "TopicB", "主题/1"}
    assert table.filter_servers is None


@pytest.mark.parametrize("form", ["json", "binary"])
def test_a_request_for_a_route_written_by_apache_is_understood(form: str) -> None:
    query = decode_route_query(read(golden_bytes(f"apache-5.5.0/route-{form}.hex")))
    assert (query.topic, query.dialect, query.zone) == ("TopicTest", Dialect.STRICT, None)


@pytest.mark.parametrize("form", ["json", "binary"])
def test_a_heartbeat_written_by_apache_is_understood(form: str) -> None:
    request = read(golden_bytes(f"apache-5.5.0/heartbeat-{form}.hex"))
    assert (request.code, request.request_id, request.is_oneway, request.fields) == (322, -1, True, {})
    assert decode_data_version(request.body) == VERSION


@pytest.mark.parametrize(("name", "form"), [("json", FORM_JSON), ("binary", FORM_BINARY)])
def test_a_response_is_written_byte_for_byte_as_apache_writes_it(name: str, form: int) -> None:
    response = Response(17, 'No topic "route"/info\n中', version=479)
    captured = golden_bytes(f"apache-5.5.0/response-{name}.hex")
    assert response_head(response, 7, form) == captured
    received = read(captured)
    assert received.is_response
    assert as_response(received).remark == response.remark
