"""Valid frames with unknown codes, missing fields, or text that forges log lines."""

import json
import struct
from collections.abc import Iterator

import pytest

from tests.adversity.faults import (
    TIMEOUT_S,
    TOPICS,
    broker,
    check_survives,
    replies,
    send_and_half_close,
    send_and_read_to_end,
)
from tests.support.codes import (
    DELETE_KV,
    DELETE_TOPIC,
    FORBID_WRITES,
    GET_CLUSTERS,
    GET_CONFIG,
    GET_KV,
    GET_MEMBERS,
    GET_ROUTE,
    HEARTBEAT,
    LIST_KV,
    LIST_TOPICS,
    NO_TOPIC,
    NOT_SUPPORTED,
    PUT_KV,
    QUERY_VERSION,
    REGISTER,
    REGISTER_TOPIC,
    RESTORE_WRITES,
    SUCCESS,
    SYSTEM_ERROR,
    TOPICS_OF_CLUSTER,
    UNREGISTER,
    UPDATE_CONFIG,
)
from tests.support.process import ServerProcess
from tests.support.raw import Command, Form, RawConnection, Registration, Request, Topic, encode, frame, mapping

FORMS: tuple[Form, ...] = ("json", "binary")


def ask(server: ServerProcess, header: bytes, body: bytes = b"", *, kind: int = 0) -> Command:
    """The one answer to a header written by hand."""
    (answer,) = replies(send_and_half_close(server.address, frame(header, body, kind=kind)))
    return answer


def route_header(**members: object) -> bytes:
    """A question for the route of topic T, with a few members changed."""
    usual = {"code": GET_ROUTE, "opaque": 7, "version": 479, "extFields": {"topic": "T"}}
    return json.dumps({**usual, **members}).encode()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", [-32768, -1, 0, 1, 10, 35, 99, 107, 310, 905, 32767])
def test_an_unknown_code_is_refused(server: ServerProcess, code: int, form: Form) -> None:
    with check_survives(server, lines_max=0), RawConnection(server.address, form=form) as line:
        answer = line.call(code)
        assert (answer.code, answer.remark) == (NOT_SUPPORTED, f" request type {code} not supported")
        line.send_oneway(code)
        assert line.call(GET_CLUSTERS).code == SUCCESS
        assert line.strays == []


@pytest.mark.parametrize("code", [-(2**31), 200_050, 2**31 - 1])
def test_an_unknown_code_beyond_16_bits_is_refused(server: ServerProcess, code: int) -> None:
    with check_survives(server, lines_max=0):
        assert ask(server, route_header(code=code)).code == NOT_SUPPORTED


NEEDED: dict[int, dict[str, str]] = {
    PUT_KV: {"namespace": "n", "key": "k", "value": "v"},
    GET_KV: {"namespace": "n", "key": "k"},
    DELETE_KV: {"namespace": "n", "key": "k"},
    LIST_KV: {"namespace": "n"},
    REGISTER: {name: text for name, text in broker().request.fields.items() if name in broker().identity},
    UNREGISTER: broker().identity,
    GET_ROUTE: {"topic": "T"},
    FORBID_WRITES: {"brokerName": "b"},
    RESTORE_WRITES: {"brokerName": "b"},
    DELETE_TOPIC: {"topic": "T"},
    REGISTER_TOPIC: {"topic": "T"},
    TOPICS_OF_CLUSTER: {"cluster": "c"},
    QUERY_VERSION: {"clusterName": "c", "brokerAddr": "10.0.0.1:10911"},
    GET_MEMBERS: {"clusterName": "c", "brokerName": "b"},
    HEARTBEAT: {"clusterName": "c", "brokerAddr": "10.0.0.1:10911"},
}
"""The required fields of each request."""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("code", NEEDED)
def test_a_request_without_a_required_field_is_refused(server: ServerProcess, code: int, form: Form) -> None:
    with check_survives(server, lines_max=2 * len(NEEDED[code]) + 1), RawConnection(server.address, form=form) as line:
        for missing in NEEDED[code]:
            for fields in (
                {name: text for name, text in NEEDED[code].items() if name != missing},
                {**NEEDED[code], missing: ""},
            ):
                if (code, missing, form, fields.get(missing)) == (PUT_KV, "value", "json", ""):
                    continue  # an empty value is a value where the header form can say so
                answer = line.call(code, fields)
                assert answer.code == SYSTEM_ERROR
                assert answer.remark in (f"{missing} is required", "namespace or key is null")
        assert line.call(code, {}).code == SYSTEM_ERROR


NOT_NUMBERS = [
    "abc",
    "1e3",
    "1.0",
    " 1",
    "1 ",
    "0x1",
    "1_0",
    "٣",
    "--1",
    "+",
    "-",
    "9" * 19,
    "-" + "9" * 19,
    "1" * 9999,
]


@pytest.mark.parametrize("text", NOT_NUMBERS, ids=lambda text: text[:24])
def test_a_number_that_is_none_is_refused(server: ServerProcess, text: str) -> None:
    with check_survives(server, lines_max=5), RawConnection(server.address) as line:
        for code, name in ((REGISTER, "brokerId"), (UNREGISTER, "brokerId"), (REGISTER, "bodyCrc32")):
            request = broker().request
            answer = line.call(code, {**request.fields, name: text}, request.body)
            assert answer.code == SYSTEM_ERROR
            assert (answer.remark or "").startswith((f"{name} is not a number", f"{name} is out of range"))
            assert len(answer.remark or "") < 200
        assert line.call(GET_ROUTE, {"topic": "TopicA"}).code == NO_TOPIC


@pytest.mark.parametrize(
    ("value", "text"), [(7, "7"), (1.5, "1.5"), (True, "true"), ({"a": [1]}, '{"a":[1]}'), ([], "[]"), (None, None)]
)
def test_a_field_that_is_no_text_is_read_as_its_text(server: ServerProcess, value: object, text: str | None) -> None:
    with check_survives(server, lines_max=1):
        answer = ask(server, route_header(extFields={"topic": value}))
    if text is None:
        assert (answer.code, answer.remark) == (SYSTEM_ERROR, "topic is required")
    else:
        assert answer.code == NO_TOPIC
        assert f"for the topic: {text}\n" in (answer.remark or "")


@pytest.mark.parametrize(
    "members",
    [{"extFields": None}, {"code": "105"}, {"code": 105.0}, {"version": "479"}, {"flag": None}, {"language": "COBOL"}],
    ids=str,
)
def test_headers_that_java_accepts_are_accepted(server: ServerProcess, members: dict[str, object]) -> None:
    with check_survives(server, lines_max=1):
        assert ask(server, route_header(**members)).opaque == 7


@pytest.mark.parametrize(
    "members",
    [
        {"extFields": []},
        {"extFields": "topic"},
        {"extFields": 1},
        {"code": 1.5},
        {"code": []},
        {"code": {}},
        {"code": "one"},
        {"code": 2**31},
        {"code": 10**400},
        {"code": "1" * 5000},
        {"opaque": -(2**31) - 1},
        {"opaque": 1e300},
        {"flag": "x"},
        {"version": 2**63},
        {"language": 99},
        {"language": []},
    ],
    ids=lambda members: str(members)[:40],
)
def test_a_header_with_wrong_types_closes_the_connection(server: ServerProcess, members: dict[str, object]) -> None:
    with check_survives(server, lines_max=1):
        assert send_and_read_to_end(server.address, frame(route_header(**members))) == b""


@pytest.mark.parametrize(
    "number", ["1e400", "-1e400", "1e-400", "0" * 5000, "9" * 5000, "NaN", "Infinity", "0x10", "01"]
)
@pytest.mark.parametrize("name", ["code", "opaque", "flag", "version", "language", "unknown"])
def test_odd_numbers_get_a_response_or_close_the_connection(server: ServerProcess, name: str, number: str) -> None:
    header = route_header(**{name: "@"}).replace(b'"@"', number.encode())
    with check_survives(server, lines_max=1):
        answered = replies(send_and_half_close(server.address, frame(header)))
    assert len(answered) <= 1


def test_of_duplicate_members_the_last_one_counts(server: ServerProcess) -> None:
    fields = b'"extFields":{"topic":"lost","topic":"T"}'
    plain = b'{"code":106,"opaque":1,"code":105,"opaque":2,"extFields":{"topic":"gone"},%s}' % fields
    lenient = plain.replace(b'"code"', b"code").replace(b'"opaque"', b"'opaque'").replace(b'"topic"', b"topic")
    entry = struct.pack(">h", 5) + b"topic" + struct.pack(">i", 1)
    entries = entry + b"X" + entry + b"T"
    binary = struct.pack(">hBhiiii", GET_ROUTE, 0, 479, 2, 0, 0, len(entries)) + entries
    with check_survives(server, lines_max=0):
        for kind, header in ((0, plain), (0, lenient), (1, binary)):
            answer = ask(server, header, kind=kind)
            assert (answer.opaque, answer.code) == (2, NO_TOPIC)
            assert "for the topic: T\n" in (answer.remark or "")


def test_of_a_topic_registered_twice_in_one_body_the_last_one_counts(server: ServerProcess) -> None:
    config = '{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":%s,"U":{},"T":%s}}}'
    body = (config % ('{"readQueueNums":1}', '{"readQueueNums":2}')).encode()
    fields = {**broker().request.fields, "bodyCrc32": "0"}
    with check_survives(server, lines_max=6), RawConnection(server.address) as line:
        assert line.call(REGISTER, fields, body).code == SUCCESS
        route = line.call(GET_ROUTE, {"topic": "T"}).value
        assert [queues["readQueueNums"] for queues in route["queueDatas"]] == [2]
        assert line.call(UNREGISTER, broker().identity).code == SUCCESS


BAD_TEXTS = [b"\xff", b"\xc3", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xc0\x80", b"\x80"]
"""No UTF-8: bytes that cannot occur, texts cut short, half a surrogate pair, and an overlong zero."""


@pytest.mark.parametrize("bad", BAD_TEXTS, ids=repr)
def test_a_header_that_is_not_utf8_closes_the_connection(server: ServerProcess, bad: bytes) -> None:
    entry = struct.pack(">h", 5) + b"topic" + struct.pack(">i", len(bad)) + bad
    binary = struct.pack(">hBhiiii", GET_ROUTE, 0, 479, 2, 0, 0, len(entry)) + entry
    headers = [
        (0, b'{"code":105,"opaque":1,"extFields":{"topic":"%s"}}' % bad),
        (0, b'{"code":105,"opaque":1,"extFields":{"%s":"T"}}' % bad),
        (0, b'{"code":105,"opaque":1,"remark":"%s"}' % bad),
        (0, b"{code:105,opaque:1,remark:'%s'}" % bad),
        (1, binary),
    ]
    with check_survives(server, lines_max=len(headers)):
        for kind, header in headers:
            assert send_and_read_to_end(server.address, frame(header, kind=kind)) == b""


@pytest.mark.parametrize("bad", BAD_TEXTS, ids=repr)
def test_a_body_that_is_no_utf8_is_refused(server: ServerProcess, bad: bytes) -> None:
    fields = {**broker().request.fields, "bodyCrc32": "0"}
    table = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"%s":{},"T":{}}}}' % bad
    queues = b'{"queueDatas":[{"brokerName":"%s"}]}' % bad
    with check_survives(server, lines_max=6), RawConnection(server.address) as line:
        for code, body in ((REGISTER, table), (REGISTER_TOPIC, queues), (UPDATE_CONFIG, b"a=" + bad)):
            answer = line.call(code, {**fields, "topic": "T"}, body)
            assert answer.code == SYSTEM_ERROR
            assert "Error" not in (answer.remark or "").partition(":")[0].split()
        assert line.call(GET_ROUTE, {"topic": "T"}).code == NO_TOPIC


def test_an_escaped_lone_surrogate_gets_a_response_or_closes_the_connection(server: ServerProcess) -> None:
    fields = {"topic": "\ud800", "namespace": "\udfff", "key": "k", "value": "v\ud800", **NEEDED[REGISTER]}
    for code in NEEDED:
        header = json.dumps({"code": code, "opaque": 1, "extFields": fields}).encode()
        for each in (header, header.replace(b'"code"', b"code")):
            with check_survives(server, lines_max=8):
                assert len(replies(send_and_half_close(server.address, frame(each)))) <= 1
    with RawConnection(server.address) as line:
        assert line.call(DELETE_KV, {"namespace": "?", "key": "k"}).code == SUCCESS


def test_a_wrong_checksum_is_refused_and_nothing_is_registered(server: ServerProcess) -> None:
    with check_survives(server, lines_max=4), RawConnection(server.address) as line:
        for deflate in (False, True):
            for crc in (1, -1, 2**31 - 1):
                answer = line.call(broker(deflate=deflate, crc=crc).request)
                assert (answer.code, answer.remark) == (SYSTEM_ERROR, "crc32 not match")
        assert "broker-a" not in line.call(GET_CLUSTERS).text


def bad_bodies() -> Iterator[tuple[str, bytes]]:
    table = '{"topicConfigSerializeWrapper":{"dataVersion":{},"topicConfigTable":%s}}'
    yield "no object", b"[]"
    yield "no table", b'{"topicConfigSerializeWrapper":{"topicConfigTable":null}}'
    yield "a table of numbers", (table % '{"T":1,"U":2}').encode()
    yield "a table that is a list", (table % "[]").encode()
    yield "a table that is null", (table % "null").encode()
    yield "queues as words", (table % '{"T":{"readQueueNums":"many"},"U":{}}').encode()
    yield "queues beyond 32 bits", (table % '{"T":{"readQueueNums":2147483648},"U":{}}').encode()
    yield "queues beyond 64 bits", (table % '{"T":{"readQueueNums":99999999999999999999},"U":{}}').encode()
    yield "a version beyond 64 bits", (table % "{}").replace('n":{}', 'n":{"counter":9223372036854775808}').encode()
    yield "a topic without a name", (table % '{"":{},"U":{}}').encode()
    yield "a topic with a line break", (table % '{"T\\nU":{},"U":{}}').encode()
    yield "no deflated stream", b"\x78\x9c" + bytes(40)
    yield "a deflated stream cut short", broker(deflate=True).body[:-9]


BAD_BODIES = dict(bad_bodies())


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_registration_that_cannot_be_read_is_refused(server: ServerProcess, name: str) -> None:
    fields = {**broker().request.fields, "bodyCrc32": "0"}
    with check_survives(server, lines_max=1), RawConnection(server.address) as line:
        answer = line.call(REGISTER, fields, BAD_BODIES[name])
        assert answer.code == SYSTEM_ERROR
        assert (answer.remark or "").startswith("Failed to decode RegisterBrokerBody: ")
        assert line.call(GET_CLUSTERS).value["brokerAddrTable"] == {}


@pytest.mark.parametrize("number", ["2147483648", "-2147483649", "1e400", "9" * 400, '"x"', "[]", "null"])
def test_queues_of_a_single_topic_must_be_numbers_of_32_bits(server: ServerProcess, number: str) -> None:
    body = f'{{"queueDatas":[{{"brokerName":"broker-a","perm":6,"readQueueNums":{number},"writeQueueNums":8}}]}}'
    with check_survives(server, lines_max=8), RawConnection(server.address) as line:
        assert line.call(broker().request).code == SUCCESS
        answer = line.call(REGISTER_TOPIC, {"topic": "Single"}, body.encode())
        assert answer.code == SYSTEM_ERROR
        assert len(answer.remark or "") < 300
        assert line.call(GET_ROUTE, {"topic": "Single"}).code == NO_TOPIC
        assert line.call(UNREGISTER, broker().identity).code == SUCCESS


def test_repeated_invalid_requests_of_one_client_log_few_lines(server: ServerProcess) -> None:
    with check_survives(server, lines_max=30), RawConnection(server.address) as line:
        for _ in range(1000):
            line.send(FORBID_WRITES)
            line.send(LIST_TOPICS, flag=1)  # a response to no request
        assert {line.receive().code for _ in range(1000)} == {SYSTEM_ERROR}


MIB = 1024 * 1024
HOSTILE_SETTINGS = {
    "backslashes": b"\\" * MIB,
    "lines that go on": b"\\\n" * (MIB // 2),
    "comments that seem to go on": b"#\\\n" * (MIB // 3),
    "keys": b"a=1\n" * (MIB // 4),
    "escapes": b"\\u0041" * (MIB // 6),
    "separators": b"=: " * (MIB // 3),
    "carriage returns": b"\r" * MIB,
    "one long word": b"x" * (15 * MIB),
}


@pytest.mark.parametrize("name", HOSTILE_SETTINGS)
def test_hostile_settings_are_answered_soon_and_change_nothing(server: ServerProcess, name: str) -> None:
    cpu_s = server.cpu_s
    with check_survives(server, lines_max=2), RawConnection(server.address, timeout_s=TIMEOUT_S) as line:
        before = line.call(GET_CONFIG).body
        assert line.call(UPDATE_CONFIG, body=HOSTILE_SETTINGS[name]).code in (SUCCESS, SYSTEM_ERROR)
        assert line.call(GET_CONFIG).body == before
    assert server.cpu_s - cpu_s < 4.0


BREAKS = ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
FORGED = "2026-01-01 00:00:00,000 ERROR skyroute.forged - FORGED"
HOSTILE = [f"x{sign}{FORGED}" for sign in BREAKS] + ["\x1b[2J\x1b[31mFORGED", "\x00\x07\x08FORGED", "\u202eFORGED"]


def hostile_requests(text: str) -> Iterator[Request]:
    """Every place where a peer's text could find its way into the log."""
    plain = broker()
    yield from (
        plain.but(cluster=text).request,
        plain.but(broker=text).request,
        Request(REGISTER, {**plain.request.fields, "brokerAddr": text}, plain.body),
        plain.but(ha_address=text).request,
        plain.but(ha_address="10.0.0.1:10912", zone="zone").request,
        plain.but(ha_address=text, zone=text).request,
        plain.but(filter_servers=[text]).request,
        plain.but(topics=[*TOPICS, Topic(text)]).request,
        plain.but(topics=[*TOPICS, Topic(text.replace(" ", ""))], deflate=True).request,
        plain.but(mappings={"S": mapping(text, "broker-a", 1), "R": mapping("R", text, 1)}).request,
        plain.but(mappings={text: mapping("S", "broker-a", 1)}, deflate=True).request,
        Request(REGISTER, {**plain.request.fields, "brokerId": text, "bodyCrc32": text}, plain.body),
        Request(REGISTER, {**plain.request.fields, "bodyCrc32": "0"}, b'{"' + text.encode() + b'":'),
        Request(REGISTER, {**plain.request.fields, "bodyCrc32": "0"}, text.encode()),
    )
    for code, fields in NEEDED.items():
        for name in fields:
            yield Request(code, {**fields, name: text})
    yield Request(DELETE_TOPIC, {"topic": "T", "clusterName": text})
    yield Request(REGISTER_TOPIC, {"topic": "T"}, json.dumps({"queueDatas": [{"brokerName": text}]}).encode())
    yield Request(REGISTER_TOPIC, {"topic": "T"}, text.encode())
    yield Request(QUERY_VERSION, plain.identity, text.encode())
    escaped = text.encode("unicode_escape").decode()
    for line in (
        f"{escaped}=1",
        f"listenPort={escaped}",
        f"productEnvName={escaped}",
        f"frob={escaped}\\uZZ{escaped}",
        text,
    ):
        yield Request(UPDATE_CONFIG, body=line.encode())
    yield plain.unregistration


@pytest.mark.parametrize("form", FORMS)
def test_no_text_of_a_client_begins_a_log_line(server: ServerProcess, form: Form) -> None:
    with check_survives(server, lines_max=2000):
        mark = len(server.log)
        for text in HOSTILE:
            with RawConnection(server.address, form=form) as line:
                for request in hostile_requests(text):
                    line.call(request)
                assert line.call(GET_CLUSTERS).code == SUCCESS
            with RawConnection(server.address, form=form) as line:
                assert line.call(DELETE_KV, {"namespace": text, "key": "k"}).code in (SUCCESS, SYSTEM_ERROR)
                line.call(DELETE_KV, {"namespace": "n", "key": text})
    assert not any(line.startswith(("FORGED", FORGED)) for line in server.log_since(mark).splitlines())


def test_no_text_of_a_proxy_begins_a_log_line(server: ServerProcess) -> None:
    with check_survives(server, lines_max=10 * len(HOSTILE)):
        for text in HOSTILE:
            for word in (f"fe80::1%{text}", text):
                header = f"PROXY TCP6 {word.replace(' ', '')} ::1 40000 9876\r\n".encode()
                send_and_half_close(server.address, header + encode(Request(LIST_TOPICS), 1) + frame(b"[]" + bytes(20)))


def test_a_refusal_of_a_long_value_is_short(server: ServerProcess) -> None:
    huge = "x" * 1_000_000
    with check_survives(server, lines_max=8), RawConnection(server.address) as line:
        mark = len(server.log)
        for request in (
            Request(GET_ROUTE, {"topic": huge}),
            Request(GET_KV, {"namespace": huge, "key": huge}),
            Request(LIST_KV, {"namespace": huge}),
            Request(REGISTER, {**broker().request.fields, "brokerId": huge}, broker().body),
            Request(REGISTER, {**broker().request.fields, "brokerName": huge + "\n"}, broker().body),
            Request(REGISTER, {**broker().request.fields, "bodyCrc32": huge}, broker().body),
            Request(FORBID_WRITES, {"brokerName": huge + "\t"}),
            Request(REGISTER, {**broker().request.fields, "bodyCrc32": "0"}, json.dumps(huge).encode()),
        ):
            answer = line.call(request)
            assert answer.code != SUCCESS
            assert len(answer.remark or "") < 1000
    assert len(server.log_since(mark)) < 10_000


def test_a_broker_with_unusual_valid_names_is_registered(server: ServerProcess) -> None:
    strange = Registration("кластер", "брокер/%s", "хост:10911", [Topic("тема"), Topic("%RETRY%🚀")])
    with check_survives(server, lines_max=6), RawConnection(server.address) as line:
        assert line.call(strange.request).code == SUCCESS
        assert line.call(GET_ROUTE, {"topic": "%RETRY%🚀"}).value["brokerDatas"][0]["cluster"] == "кластер"
        assert line.call(strange.unregistration).code == SUCCESS
