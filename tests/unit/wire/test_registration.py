"""Registrations whose body is JSON, and everything in their header. The compressed form has a file of its own."""

import json
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.remoting.stepwise import run_through
from skyroute.routing.events import RegistrationOutcome
from skyroute.routing.registration import DataVersion, Registration, TopicTable
from skyroute.routing.topology import QUEUES_MAX, BrokerKey, QueueSettings, StaticMapping
from skyroute.wire.calls import registration_body as registration_module
from skyroute.wire.calls.registration import (
    Unregistration,
    decode_broker_key,
    decode_data_version,
    decode_registration,
    decode_unregistration,
    encode_registration,
    encode_registration_reply,
    encode_unregistration,
    encode_version_reply,
)
from skyroute.wire.calls.registration_body import (
    FILTER_SERVERS_MAX,
    MAPPED_QUEUES_MAX,
    TOPICS_MAX,
    body_fingerprint,
    decode_topic_table,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import BodyError, FieldError, WireError
from skyroute.wire.fields import NAME_CHARS_MAX
from tests.unit.wire.golden import golden_line

V3, V4, V5 = 36, 409, 479
FIELDS = {
    "brokerAddr": "10.0.0.1:10911",
    "brokerId": "0",
    "brokerName": "broker-a",
    "clusterName": "DefaultCluster",
    "haServerAddr": "10.0.0.1:10912",
}
BODY_5 = golden_line("spec/registration-5x.txt")


def registration(**fields: str | None) -> Registration:
    merged = {key: value for key, value in {**FIELDS, **fields}.items() if value is not None}
    return decode_registration(Request(code=103, fields=merged, version=V5))


def table_of(body: bytes, version: int = V5, **fields: str) -> TopicTable:
    return run_through(decode_topic_table(Request(code=103, fields=fields, version=version, body=body)))


def body_of(configs: str, rest: str = "") -> bytes:
    return f'{{{rest}"topicConfigSerializeWrapper":{configs}}}'.encode()


def topics_of(table: str) -> Mapping[str, QueueSettings]:
    return table_of(body_of(f'{{"topicConfigTable":{table}}}')).topics


def mappings_of(mappings: str) -> Mapping[str, StaticMapping]:
    return table_of(body_of(f'{{"topicConfigTable":{{}},"topicQueueMappingInfoMap":{mappings}}}')).mappings


# ------------------------------------------------------------------------------------------------------ header


def test_a_header_of_4_9() -> None:
    assert registration() == Registration(
        cluster="DefaultCluster",
        broker_name="broker-a",
        broker_id=0,
        address="10.0.0.1:10911",
        ha_address="10.0.0.1:10912",
        zone=None,
        acting_master=None,
        lease_s=None,
    )


def test_a_header_of_5_with_everything() -> None:
    told = registration(
        brokerId="2", enableActingMaster="true", heartbeatTimeoutMillis="1500", compressed="false", __ZONE_NAME="z1"
    )
    assert (told.broker_id, told.acting_master, told.lease_s, told.zone) == (2, True, 1.5, "z1")


@pytest.mark.parametrize(
    ("value", "acting"), [(None, None), ("true", True), ("True", True), ("false", False), ("", False)]
)
def test_a_broker_too_old_for_acting_masters_differs_from_one_that_declines(
    value: str | None, acting: bool | None
) -> None:
    assert registration(enableActingMaster=value).acting_master is acting


@pytest.mark.parametrize(("value", "lease_s"), [(None, None), ("", None), ("0", None), ("-1", None), ("10000", 10.0)])
def test_a_lease_is_the_brokers_own_if_it_names_one(value: str | None, lease_s: float | None) -> None:
    assert registration(heartbeatTimeoutMillis=value).lease_s == lease_s


def test_a_lease_may_be_as_long_as_64_bits_allow() -> None:
    assert registration(heartbeatTimeoutMillis=str((1 << 63) - 1)).lease_s == ((1 << 63) - 1) / 1000


@pytest.mark.parametrize("name", ["brokerAddr", "brokerId", "brokerName", "clusterName"])
@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_field_is_refused_by_name(name: str, value: str | None) -> None:
    with pytest.raises(FieldError, match=f"{name} is required"):
        registration(**{name: value})


@pytest.mark.parametrize("name", ["brokerAddr", "brokerName", "clusterName", "haServerAddr", "__ZONE_NAME"])
def test_a_name_with_control_characters_is_refused(name: str) -> None:
    with pytest.raises(FieldError, match=name):
        registration(**{name: "a\nb"})


@pytest.mark.parametrize("name", ["brokerAddr", "brokerName", "clusterName", "haServerAddr", "__ZONE_NAME"])
def test_a_name_beyond_the_longest_is_refused(name: str) -> None:
    registration(**{name: "x" * NAME_CHARS_MAX})
    with pytest.raises(FieldError, match=f"{name} is too long"):
        registration(**{name: "x" * (NAME_CHARS_MAX + 1)})


@pytest.mark.parametrize("name", ["brokerId", "heartbeatTimeoutMillis"])
def test_an_invalid_number_is_refused_by_name(name: str) -> None:
    with pytest.raises(FieldError, match=f"{name} is not a number"):
        registration(**{name: "zero"})


@pytest.mark.parametrize("absent", [None, ""])
def test_an_absent_ha_address_or_zone_is_none(absent: str | None) -> None:
    told = registration(haServerAddr=absent, __ZONE_NAME=absent)
    assert (told.ha_address, told.zone) == (None, None)


@pytest.mark.parametrize("name", ["AccessKey", "Signature", "SecurityToken", "OnsChannel", "nsd", "ns", "ReqT", "lo"])
def test_fields_of_others_are_ignored(name: str) -> None:
    assert registration(**{name: "\0anything"}) == registration()


# -------------------------------------------------------------------------------------------------------- body


@pytest.mark.parametrize("version", [0, V3, V4, V5])
@pytest.mark.parametrize("fields", [{}, {"bodyCrc32": "0"}, {"compressed": "true"}, {"bodyCrc32": ""}])
def test_an_absent_body_is_an_empty_table(version: int, fields: dict[str, str]) -> None:
    assert table_of(b"", version, **fields) == TopicTable(DataVersion(0, 0, 0), {}, {}, None)


def test_a_table_of_4_9_has_no_state_version_and_no_mappings() -> None:
    body = body_of(
        '{"dataVersion":{"counter":3,"timestamp":1758275140000},"topicConfigTable":{"TopicA":{"order":false,"perm":6,'
        '"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"TopicA","topicSysFlag":2,"writeQueueNums":4}}}',
        '"filterServerList":[],',
    )
    assert table_of(body, V4, compressed="false") == TopicTable(
        DataVersion(0, 1758275140000, 3), {"TopicA": QueueSettings(8, 4, 6, 2)}, {}, ()
    )


@pytest.mark.parametrize("version", [0, 1, 36])
@pytest.mark.parametrize("compressed", ["true", "false"])
def test_before_3_0_11_the_body_is_a_bare_table_and_never_compressed(version: int, compressed: str) -> None:
    body = b'{"dataVersion":{"counter":1,"timestamp":2},"topicConfigTable":{"T":{"perm":4}}}'
    table = table_of(body, version, compressed=compressed)
    assert table == TopicTable(DataVersion(0, 2, 1), {"T": QueueSettings(16, 16, 4)}, {}, None)
    with pytest.raises(BodyError):
        table_of(body, 37)


def test_before_3_0_11_a_body_in_the_later_form_is_refused() -> None:
    with pytest.raises(BodyError):
        table_of(BODY_5, 36)
    assert len(table_of(BODY_5, 37).topics) == 2


@pytest.mark.parametrize(
    ("rest", "servers"),
    [
        ("", None),
        ('"filterServerList":null,', None),
        ('"filterServerList":[],', ()),
        ('"filterServerList":["10.0.0.9:1","10.0.0.9:2"],', ("10.0.0.9:1", "10.0.0.9:2")),
    ],
)
def test_an_absent_list_of_filter_servers_differs_from_an_empty_one(rest: str, servers: tuple[str, ...] | None) -> None:
    assert table_of(body_of('{"topicConfigTable":{}}', rest)).filter_servers == servers


def test_a_topics_missing_members_have_javas_defaults() -> None:
    assert topics_of('{"T":{}}') == {"T": QueueSettings(16, 16, 6, 0)}


def test_members_of_a_topic_that_do_not_matter_are_ignored() -> None:
    written = '{"T":{"attributes":{"+a":"b"},"order":true,"topicFilterType":"MULTI_TAG","topicName":"X","new":[1]}}'
    assert topics_of(written) == {"T": QueueSettings(16, 16, 6, 0)}


@pytest.mark.parametrize("attributes", ['{"$ref":"$.topicConfigTable.A.attributes"}', '{"$ref":".."}', "null", "5"])
def test_attributes_may_be_a_reference_to_earlier_ones(attributes: str) -> None:
    assert topics_of(f'{{"A":{{"attributes":{{}}}},"B":{{"attributes":{attributes},"perm":2}}}}') == {
        "A": QueueSettings(16, 16, 6),
        "B": QueueSettings(16, 16, 2),
    }


def test_unknown_bits_of_the_permission_are_kept() -> None:
    assert topics_of('{"T":{"perm":55,"topicSysFlag":12}}') == {"T": QueueSettings(16, 16, 55, 12)}


@pytest.mark.parametrize("member", ["perm", "readQueueNums", "writeQueueNums", "topicSysFlag"])
@pytest.mark.parametrize("number", ["2147483648", "-2147483649", '"2147483648"', "1e10", "9" * 30])
def test_a_topics_number_beyond_32_bits_is_refused(member: str, number: str) -> None:
    # Clients read them into 32 bits: one such topic would cost every client the route of its topic.
    with pytest.raises(BodyError):
        topics_of(f'{{"T":{{"{member}":{number}}}}}')


def test_numbers_may_be_written_as_text() -> None:
    written = '{"T":{"perm":"4","readQueueNums":"8","writeQueueNums":8.0,"topicSysFlag":"1"}}'
    assert topics_of(written) == {"T": QueueSettings(8, 8, 4, 1)}


def test_a_repeated_topic_has_its_last_settings() -> None:
    assert topics_of('{"T":{"perm":6},"U":{},"T":{"perm":4}}') == {
        "T": QueueSettings(16, 16, 4),
        "U": QueueSettings(16, 16, 6),
    }


@pytest.mark.parametrize("name", ["T", "%RETRY%group", "主题/1", "a b", "TBW102", "x" * 255])
def test_a_topic_may_have_any_printable_name(name: str) -> None:
    assert list(topics_of(json.dumps({name: {}}))) == [name]


@pytest.mark.parametrize("name", ["", "\0", "a\nb", "a\x7f", "\u2028", "\x1b[2J"])
def test_a_topic_without_a_printable_name_is_refused(name: str) -> None:
    with pytest.raises(BodyError, match="topic is not a name") as caught:
        topics_of(json.dumps({"Good": {}, name: {}}))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "version",
    ['{"counter":3,"stateVersion":7,"timestamp":5}', '{"timestamp":"5","counter":3.0,"stateVersion":7,"x":1}'],
)
def test_a_data_version_has_three_numbers(version: str) -> None:
    assert table_of(body_of(f'{{"topicConfigTable":{{}},"dataVersion":{version}}}')).version == DataVersion(7, 5, 3)


@pytest.mark.parametrize("version", ["", '"dataVersion":null,', '"dataVersion":{},'])
def test_a_missing_data_version_is_all_zero(version: str) -> None:
    assert table_of(body_of(f'{{{version}"topicConfigTable":{{}}}}')).version == DataVersion(0, 0, 0)


def test_thousands_of_topics_share_a_handful_of_settings() -> None:
    topics = topics_of(json.dumps({f"Topic{number}": {"perm": 6 if number % 2 else 4} for number in range(2000)}))
    assert len(topics) == 2000
    assert len({id(settings) for settings in topics.values()}) == 2


# ---------------------------------------------------------------------------------------------------- mappings


MAPPING = (
    '{"bname":"broker-a","currIdMap":{0:0,1:1},"dirty":true,"epoch":1758275140000,"scope":"s","topic":"TopicS",'
    '"totalQueues":2}'
)


@pytest.mark.parametrize("ids", ["{0:0,1:1}", '{"0":0,"1":1}', "{ 0 : 0 , 1 : 1 }", "{'0':0,'1':'1'}", "{0:0,,1:1,}"])
def test_a_mapping_has_bare_or_quoted_queue_ids(ids: str) -> None:
    assert mappings_of(f'{{"TopicS":{MAPPING.replace("{0:0,1:1}", ids)}}}') == {
        "TopicS": StaticMapping("TopicS", "broker-a", 2, 1758275140000, "s", True, {0: 0, 1: 1})
    }


def test_a_mappings_missing_members_have_javas_defaults() -> None:
    assert mappings_of('{"TopicS":{"bname":"broker-a"}}') == {"TopicS": StaticMapping("TopicS", "broker-a", 0, 0)}


@pytest.mark.parametrize("written", ["null", "{}"])
def test_a_broker_without_static_topics_has_no_mappings(written: str) -> None:
    assert mappings_of(written) == {}


def test_other_members_of_mappings_are_ignored() -> None:
    body = body_of(
        '{"topicConfigTable":{},"mappingDataVersion":{"counter":1},'
        '"topicQueueMappingDetailMap":{"T":{"hostedQueues":{0:[{"gen":0}]},"currIdMap":{0:0}}}}'
    )
    assert table_of(body).mappings == {}


@pytest.mark.parametrize(
    "mapping",
    [
        "{}",
        "null",
        '{"bname":null}',
        '{"bname":""}',
        '{"bname":"a\\nb"}',
        '{"bname":"b","currIdMap":{"x":1}}',
        '{"bname":"b","currIdMap":[]}',
        '{"bname":"b","totalQueues":"many"}',
        '{"bname":"b","totalQueues":2147483648}',
        '{"bname":"b","epoch":9223372036854775808}',
        '{"bname":"b","currIdMap":{0:2147483648}}',
        '{"bname":"b","currIdMap":{2147483648:0}}',
    ],
)
def test_a_mapping_that_makes_no_sense_is_refused(mapping: str) -> None:
    with pytest.raises(BodyError):
        mappings_of(f'{{"TopicS":{mapping}}}')


# ---------------------------------------------------------------------------------------------------- checksum


@pytest.mark.parametrize("checksum", ["614924431", "0", "", "+614924431"])
def test_a_right_checksum_or_none_lets_the_body_pass(checksum: str) -> None:
    assert len(table_of(BODY_5, bodyCrc32=checksum).topics) == 2


@pytest.mark.parametrize("checksum", ["1", "-1", "614924430", "2147483647", "-614924431"])
def test_a_wrong_checksum_is_refused_with_apaches_text(checksum: str) -> None:
    with pytest.raises(BodyError) as caught:
        table_of(BODY_5, bodyCrc32=checksum)
    assert str(caught.value) == "crc32 not match"


@pytest.mark.parametrize("checksum", ["x", "4294967296", "0x1"])
def test_a_checksum_that_is_no_number_is_refused_by_name(checksum: str) -> None:
    with pytest.raises(FieldError, match="bodyCrc32"):
        table_of(BODY_5, bodyCrc32=checksum)


def test_a_checksum_of_nothing_is_zero() -> None:
    with pytest.raises(BodyError, match="crc32 not match"):
        table_of(b"", bodyCrc32="5")


def test_the_sign_bit_of_a_checksum_is_dropped() -> None:
    body = next(
        candidate
        for number in range(100)
        if zlib.crc32(candidate := body_of(f'{{"topicConfigTable":{{"T{number}":{{}}}}}}')) > 0x7FFFFFFF
    )
    assert len(table_of(body, bodyCrc32=str(zlib.crc32(body) & 0x7FFFFFFF)).topics) == 1


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "body",
    [
        b" ",
        b"null",
        b"[]",
        b"5",
        b"x",
        b"{",
        body_of("null"),
        body_of("[]"),
        body_of('{"topicConfigTable":null}'),
        body_of('{"topicConfigTable":[]}'),
        body_of('{"topicConfigTable":{"T":null}}'),
        body_of('{"topicConfigTable":{"T":5}}'),
        body_of('{"topicConfigTable":{"T":{"perm":"six"}}}'),
        body_of('{"topicConfigTable":{"T":{"perm":6.5}}}'),
        body_of('{"topicConfigTable":{"T":{"perm":[]}}}'),
        body_of('{"topicConfigTable":{},"dataVersion":5}'),
        body_of('{"topicConfigTable":{},"dataVersion":{"counter":"x"}}'),
        body_of('{"topicConfigTable":{}}', '"filterServerList":5,'),
        body_of('{"topicConfigTable":{}}', '"filterServerList":[5],'),
        body_of('{"topicConfigTable":{}}') + b"x",
        body_of('{"topicConfigTable":' + "[" * 100_000),
        b"x" * 1000,
        b"\x78\x9c",
    ],
)
def test_a_body_that_cannot_be_read_is_refused_as_java_would(body: bytes) -> None:
    with pytest.raises(BodyError, match="Failed to decode RegisterBrokerBody") as caught:
        table_of(body)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("version", [V3, V4, V5])
def test_far_too_many_topics_are_refused_before_decoding(version: int) -> None:
    with pytest.raises(BodyError, match=f"more than {TOPICS_MAX} topics"):
        table_of(b"{" * (8 * TOPICS_MAX), version)
    with pytest.raises(BodyError, match=r"RegisterBrokerBody: (?!it has more)"):
        table_of(b"{" * (2 * TOPICS_MAX) + b" " * (8 * TOPICS_MAX), version)


def test_as_many_topics_as_are_allowed_are_read_and_one_more_is_not() -> None:
    topics = ",".join(f'"{number}":{{}}' for number in range(TOPICS_MAX))
    assert len(topics_of(f"{{{topics}}}")) == TOPICS_MAX
    with pytest.raises(BodyError, match=f"more than {TOPICS_MAX} topics"):
        topics_of(f'{{{topics},"one more":{{}}}}')


@pytest.mark.parametrize("name", ["x" * NAME_CHARS_MAX, "主" * NAME_CHARS_MAX])
def test_a_topic_has_a_longest_name(name: str) -> None:
    assert list(topics_of(json.dumps({"Good": {}, name: {}}))) == ["Good", name]
    with pytest.raises(BodyError, match="topic is not a name") as caught:
        topics_of(json.dumps({"Good": {}, name + "x": {}}))
    assert len(str(caught.value)) < 500


def test_filter_servers_are_bounded_in_number() -> None:
    servers = ",".join(['"10.0.0.9:1"'] * FILTER_SERVERS_MAX)
    table = table_of(body_of('{"topicConfigTable":{}}', f'"filterServerList":[{servers}],'))
    assert table.filter_servers == ("10.0.0.9:1",) * FILTER_SERVERS_MAX
    with pytest.raises(BodyError, match=f"more than {FILTER_SERVERS_MAX} filter servers"):
        table_of(body_of('{"topicConfigTable":{}}', f'"filterServerList":[{servers},"10.0.0.9:1"],'))


@pytest.mark.parametrize("server", ["", "a\nb", "x" * (NAME_CHARS_MAX + 1)])
def test_a_filter_server_has_a_name(server: str) -> None:
    with pytest.raises(BodyError, match="filter server is not a name"):
        table_of(body_of('{"topicConfigTable":{}}', f'"filterServerList":["f:1",{json.dumps(server)}],'))


@pytest.mark.parametrize("parts", [1, 10, 1000])
def test_mapped_queues_are_bounded_over_all_static_topics_together(parts: int) -> None:
    # Every part counts as one, and so does each of its queues.
    queues = MAPPED_QUEUES_MAX // parts - 1
    ids = ",".join(f"{number}:0" for number in range(queues))
    part = f'{{"bname":"b","currIdMap":{{{ids}}}}}'
    written = ",".join(f'"T{number}":{part}' for number in range(parts))
    assert len(mappings_of(f"{{{written}}}")) == parts
    with pytest.raises(BodyError, match=f"more than {MAPPED_QUEUES_MAX} queues of static topics"):
        mappings_of(f'{{{written},"One":{{"bname":"b"}}}}')


@pytest.mark.parametrize("member", ["bname", "topic"])
def test_a_mapping_has_names_of_bounded_length(member: str) -> None:
    longest = "x" * NAME_CHARS_MAX
    assert len(mappings_of(json.dumps({"T": {"bname": "b", member: longest}}))) == 1
    with pytest.raises(BodyError, match=f"{member} is not a name"):
        mappings_of(json.dumps({"T": {"bname": "b", member: longest + "x"}}))


def test_a_table_is_read_in_steps() -> None:
    steps = decode_topic_table(Request(code=103, version=V5, body=BODY_5))
    assert len(list(steps)) >= 1
    assert run_through(decode_topic_table(Request(code=103, version=V5, body=BODY_5))) == table_of(BODY_5)


def test_mappings_of_many_static_topics_are_read_in_steps() -> None:
    count = 4 * registration_module.LINES_A_STEP
    written = ",".join(f'"T{number}":{{"bname":"b"}}' for number in range(count))
    body = f'{{"topicConfigSerializeWrapper":{{"topicQueueMappingInfoMap":{{{written}}}}}}}'.encode()
    steps = list(decode_topic_table(Request(code=103, version=V5, body=body)))
    assert len(steps) >= 8  # four to read them, four to check their queues
    assert len(table_of(body).mappings) == count


def long_body(*odd: str, members: str = "") -> bytes:
    """A plain body of more than two steps, with odd topics among plain ones."""
    names = [*(f"T{at:05}" for at in range(9_000)), *odd, *(f"U{at:05}" for at in range(9_000))]
    form = '{{"attributes":{{}},"perm":6,"readQueueNums":{}}}'
    topics = ",".join(f"{json.dumps(name)}:{form.format(len(name))}" for name in names)
    wrapper = f'{{"dataVersion":{{"counter":3}},"topicConfigTable":{{{topics}}}{members}}}'
    return f'{{"filterServerList":[],"topicConfigSerializeWrapper":{wrapper}}}'.encode()


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param((), id="plain names"),
        pytest.param(tuple(f'o}},"{at}' for at in range(500)), id="names that look like the end of a topic"),
        pytest.param(tuple("{[\\"), id="names of marks"),
        pytest.param(("T00001", "U00001"), id="names that come twice"),
    ],
)
def test_a_long_plain_body_is_read_in_steps_as_if_at_once(
    odd: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = long_body(*odd)
    monkeypatch.setattr(registration_module, "BYTES_A_STEP", 1 << 30)
    at_once = table_of(body)
    for step in (100_000, 250_000):
        monkeypatch.setattr(registration_module, "BYTES_A_STEP", step)
        steps = decode_topic_table(Request(code=103, version=V5, body=body))
        assert len(list(steps)) > len(body) // step
        assert table_of(body) == at_once
    assert next(iter(at_once.topics)) == "T00000"


def test_a_long_plain_body_of_another_form_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mapping = '"topicQueueMappingInfoMap":{"T00001":{"bname":"b","currIdMap":{0:1}}}'
    monkeypatch.setattr(registration_module, "BYTES_A_STEP", 100_000)
    table = table_of(long_body(members=f",{mapping}"))
    assert table.mappings["T00001"].current_ids == {0: 1}
    assert len(table.topics) == 18_000


def test_a_long_plain_body_with_a_bad_topic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_module, "BYTES_A_STEP", 100_000)
    with pytest.raises(BodyError, match="readQueueNums"):
        table_of(long_body().replace(b'"readQueueNums":6}', b'"readQueueNums":"x"}', 1))
    with pytest.raises(BodyError, match="not a name"):
        table_of(long_body("a\tb"))


def test_a_wrong_checksum_is_noticed_in_the_first_step() -> None:
    steps = decode_topic_table(Request(code=103, fields={"bodyCrc32": "1"}, version=V5, body=BODY_5))
    with pytest.raises(BodyError, match="crc32 not match"):
        next(steps)


def test_every_truncation_of_a_body_is_refused() -> None:
    for length in range(1, len(BODY_5)):
        with pytest.raises(BodyError):
            table_of(BODY_5[:length])


JSON_LIKE = st.recursive(
    st.sampled_from(["null", "true", "0", "-1", "1.5", "1e400", '""', '"6"', "'x'", "{}", "[]", "9" * 30, ","]),
    lambda children: (
        st.lists(children, max_size=3).map(lambda items: f"[{','.join(items)}]")
        | st.dictionaries(
            st.sampled_from(
                [
                    "topicConfigTable",
                    "dataVersion",
                    "perm",
                    "counter",
                    "bname",
                    "currIdMap",
                    "topicQueueMappingInfoMap",
                    "0",
                ]
            ),
            children,
            max_size=3,
        ).map(lambda members: "{" + ",".join(f"{name}:{member}" for name, member in members.items()) + "}")
    ),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(configs=JSON_LIKE, version=st.sampled_from([V3, V4, V5]))
def test_any_json_is_a_table_or_refused(configs: str, version: int) -> None:
    for body in (configs.encode(), body_of(configs), body_of(f'{{"topicConfigTable":{{"T":{configs}}}}}')):
        with suppress(BodyError):
            assert isinstance(table_of(body, version), TopicTable)


@settings(deadline=None)
@given(
    text=st.text(max_size=60),
    version=st.sampled_from([V3, V4, V5]),
    fields=st.dictionaries(
        st.sampled_from(["compressed", "bodyCrc32"]), st.sampled_from(["true", "false", "0", "1", "x"])
    ),
)
def test_any_text_is_a_table_or_refused(text: str, version: int, fields: dict[str, str]) -> None:
    with suppress(WireError):
        assert isinstance(table_of(text.encode(), version, **fields), TopicTable)


# ------------------------------------------------------------------------------------------------- fingerprint


def test_a_header_alone_has_neither_table_nor_fingerprint() -> None:
    told = decode_registration(Request(code=103, fields=FIELDS, version=V5, body=BODY_5))
    assert (told.table, told.fingerprint) == (None, None)


def fingerprint(body: bytes = BODY_5, version: int = V5, **fields: str) -> bytes:
    return run_through(body_fingerprint(Request(code=103, fields=FIELDS | fields, version=version, body=body)))


def test_a_fingerprint_is_the_same_for_the_same_body_read_in_the_same_way() -> None:
    assert fingerprint() == fingerprint(bytes(bytearray(BODY_5)), brokerName="other")
    assert fingerprint(version=413) == fingerprint(version=600)
    assert fingerprint(compressed="false") == fingerprint(compressed="no")


@pytest.mark.parametrize(
    "other",
    [
        fingerprint(BODY_5 + b" "),
        fingerprint(b""),
        fingerprint(compressed="true"),
        fingerprint(bodyCrc32="1"),
        fingerprint(version=V4),
        fingerprint(version=V3),
    ],
)
def test_a_fingerprint_depends_on_all_that_decides_decoding(other: bytes) -> None:
    assert fingerprint() != other


# ----------------------------------------------------------------------------------------------------- writing


TABLE = TopicTable(
    DataVersion(7, 1758275140000, 3),
    {"TopicA": QueueSettings(8, 4, 6, 1), "主题/1": QueueSettings(1, 2, 4)},
    {"TopicS": StaticMapping("TopicS", "broker-a", 2, 5, "s", True, {0: 0, 1: 1})},
    ("10.0.0.9:1",),
)


def test_the_example_body_of_5_is_written_byte_for_byte() -> None:
    topics = {"TopicA": QueueSettings(8, 8, 6), "TopicB": QueueSettings(4, 4, 4)}
    table = TopicTable(DataVersion(0, 1758275140000, 3), topics, filter_servers=())
    request = encode_registration(Registration("c", "b", 0, "a:1", table=table))
    expected = BODY_5.replace(
        b'"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":1758275139000}',
        b'"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":0}',
    )
    assert request.body == expected


@pytest.mark.parametrize(
    "told",
    [
        Registration("DefaultCluster", "broker-a", 0, "10.0.0.1:10911"),
        Registration("DefaultCluster", "broker-a", 1, "10.0.0.1:10911", "10.0.0.1:10912", "z1", False, 1.5),
        Registration("中", "b", (1 << 63) - 1, "a", None, "z/中", True, 0.001),
    ],
)
def test_a_registration_is_read_back_as_it_was(told: Registration) -> None:
    request = encode_registration(replace(told, table=TABLE))
    request.version = V5
    assert decode_registration(request) == told
    assert run_through(decode_topic_table(request)) == TABLE


def test_a_registration_without_a_table_has_an_empty_one() -> None:
    request = encode_registration(Registration("c", "b", 0, "a:1"))
    request.version = V5
    assert run_through(decode_topic_table(request)) == TopicTable(filter_servers=())


def test_an_unregistration_is_read_back_as_it_was() -> None:
    unregistration = Unregistration("DefaultCluster", "broker-a", 1, "10.0.0.1:10911")
    assert decode_unregistration(encode_unregistration(unregistration)) == unregistration


# ----------------------------------------------------------------------------------------- replies and the others


@pytest.mark.parametrize(
    ("outcome", "fields"),
    [
        (RegistrationOutcome(), {}),
        (RegistrationOutcome(master_address="a:1"), {"masterAddr": "a:1"}),
        (
            RegistrationOutcome(master_address="a:1", master_ha_address="a:2"),
            {"haServerAddr": "a:2", "masterAddr": "a:1"},
        ),
    ],
)
def test_the_response_to_a_slave_has_its_master(outcome: RegistrationOutcome, fields: dict[str, str]) -> None:
    response = encode_registration_reply(outcome, b"table")
    assert (response.code, response.remark, response.fields, response.body) == (
        ResponseCode.SUCCESS,
        None,
        fields,
        b"table",
    )


def test_an_unregistration_names_the_broker_in_full() -> None:
    assert decode_unregistration(Request(code=104, fields=FIELDS)) == Unregistration(
        "DefaultCluster", "broker-a", 0, "10.0.0.1:10911"
    )


@pytest.mark.parametrize("name", ["brokerAddr", "brokerId", "brokerName", "clusterName"])
def test_an_unregistration_that_lacks_a_field_is_refused_by_name(name: str) -> None:
    with pytest.raises(FieldError, match=f"{name} is required"):
        decode_unregistration(Request(code=104, fields={key: value for key, value in FIELDS.items() if key != name}))


def test_a_heartbeat_names_cluster_and_address() -> None:
    fields = {"clusterName": "DefaultCluster", "brokerAddr": "10.0.0.1:10911", "heartbeatTimeoutMills": "x"}
    assert decode_broker_key(Request(code=904, fields=fields)) == BrokerKey("DefaultCluster", "10.0.0.1:10911")


@pytest.mark.parametrize("name", ["brokerAddr", "clusterName"])
def test_a_heartbeat_that_lacks_a_field_is_refused_by_name(name: str) -> None:
    with pytest.raises(FieldError, match=f"{name} is required"):
        decode_broker_key(Request(code=904, fields={key: value for key, value in FIELDS.items() if key != name}))


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b"", None),
        (b"{}", DataVersion(0, 0, 0)),
        (b'{"counter":3,"timestamp":5}', DataVersion(0, 5, 3)),
        (b'{counter:"3",timestamp:5,stateVersion:1}', DataVersion(1, 5, 3)),
    ],
)
def test_a_version_to_compare_may_be_absent_or_old(body: bytes, version: DataVersion | None) -> None:
    assert decode_data_version(body) == version


@pytest.mark.parametrize(
    "body", [b"[]", b"x", b"{", b'{"counter":"x"}', b'{"counter":9223372036854775808}', b"[" * 100_000]
)
def test_a_version_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_data_version(body)


@pytest.mark.parametrize(("changed", "text"), [(True, "true"), (False, "false")])
def test_an_unknown_version_is_answered_without_a_body(changed: bool, text: str) -> None:
    assert encode_version_reply(None, changed=changed) == Response(fields={"changed": text})


@settings(deadline=None)
@given(st.builds(DataVersion, *[st.integers(0, (1 << 63) - 1)] * 3))
def test_any_version_is_read_back_as_it_was(version: DataVersion) -> None:
    assert decode_data_version(encode_version_reply(version, changed=True).body) == version


@settings(deadline=None)
@given(
    st.dictionaries(
        st.text(min_size=1, max_size=10).filter(str.isprintable),
        st.tuples(*[st.integers(0, QUEUES_MAX)] * 2, *[st.integers(0, (1 << 31) - 1)] * 2),
        max_size=6,
    )
)
def test_any_table_written_as_json_is_read_as_it_was(topics: dict[str, tuple[int, int, int, int]]) -> None:
    written: dict[str, Any] = {
        topic: {"readQueueNums": read, "writeQueueNums": write, "perm": perm, "topicSysFlag": flag}
        for topic, (read, write, perm, flag) in topics.items()
    }
    expected = {topic: QueueSettings(*numbers) for topic, numbers in topics.items()}
    for ascii_only in (True, False):
        assert topics_of(json.dumps(written, ensure_ascii=ascii_only)) == expected
