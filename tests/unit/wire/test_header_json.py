from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.wire.codes import LANGUAGES
from skyroute.wire.command import FORM_JSON, Request
from skyroute.wire.errors import FrameError, HeaderError
from skyroute.wire.header import decode_command, decode_request_header
from tests.unit.wire.by_hand import frame, json_header

FULL = (
    b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"GO","opaque":7,"remark":"hello",'
    b'"serializeTypeCurrentRPC":"JSON","version":317}'
)


def read(header: bytes | str) -> Request:
    return decode_request_header(FORM_JSON, header.encode() if isinstance(header, str) else header)


def test_every_member_is_read() -> None:
    assert read(FULL) == Request(105, {"topic": "TopicTest"}, 0, "GO", 7, "hello", 317)


def test_members_may_come_in_any_order_with_any_white_space() -> None:
    header = """
      { "version" : 317,\t"remark":"hello" ,
        "opaque" :7, "language": "GO",\r\n "flag": 0 , "extFields" : { "topic" : "TopicTest" } ,"code" : 105 }
    """
    assert read(header) == read(FULL)


def test_missing_members_have_their_defaults() -> None:
    assert read("{}") == Request(code=0, fields={}, flag=0, language="JAVA", request_id=0, remark=None, version=0)


@pytest.mark.parametrize(
    "unknown",
    ['"suspended":false', '"serializeTypeCurrentRPC":"ROCKETMQ"', '"x":null', '"x":[1,{"y":2}]', '"x":{"code":1}'],
)
def test_unknown_members_are_ignored(unknown: str) -> None:
    assert read(f'{{{unknown},"code":105}}').code == 105


@pytest.mark.parametrize("name", ["code", "flag", "opaque", "version"])
@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("105", 105),
        ('"105"', 105),
        ("105.0", 105),
        ("1.05e2", 105),
        ('"-5"', -5),
        ('"+5"', 5),
        ("null", 0),
        ('""', 0),
        ("true", 1),
        ("-2147483648", -(1 << 31)),
        ("2147483647", (1 << 31) - 1),
        ('"2147483647"', (1 << 31) - 1),
    ],
)
def test_a_number_is_read_in_every_way_java_reads_it(name: str, written: str, number: int) -> None:
    request = read(f'{{"{name}":{written}}}')
    assert {"code": request.code, "flag": request.flag, "opaque": request.request_id, "version": request.version} == {
        "code": 0,
        "flag": 0,
        "opaque": 0,
        "version": 0,
        name: number,
    }


@pytest.mark.parametrize("name", ["code", "flag", "opaque", "version"])
@pytest.mark.parametrize(
    "written",
    [
        "2147483648",
        "-2147483649",
        '"2147483648"',
        "1e10",
        "99999999999999999999999999",
        "9" * 5000,
        "1e400",
        '"a"',
        '"0x10"',
        "[1]",
        "{}",
        "nonsense",
    ],
)
def test_what_is_no_number_of_32_bits_is_refused(name: str, written: str) -> None:
    with pytest.raises(HeaderError):
        read(f'{{"{name}":{written}}}')


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_language_is_known_by_its_name(name: str) -> None:
    assert read(json_header(language=name)).language == name


@pytest.mark.parametrize(("number", "name"), list(enumerate(LANGUAGES)))
def test_a_language_is_known_by_its_number(number: int, name: str) -> None:
    assert read(json_header(language=number)).language == name


@pytest.mark.parametrize("written", ["14", "-1", "1.5", "[]", "{}"])
def test_a_language_that_is_no_name_and_no_known_number_is_refused(written: str) -> None:
    with pytest.raises(HeaderError):
        read(f'{{"language":{written}}}')


# A version in quotes is beyond the fast path, which must not make a difference.
@pytest.mark.parametrize("version", ["317", '"317"'])
def test_a_language_may_be_null(version: str) -> None:
    assert read(f'{{"language":null,"version":{version}}}').language is None


@pytest.mark.parametrize("language", ["Klingon", "klingon", "", "java", "14"])
def test_an_unknown_language_name_is_accepted(language: str) -> None:
    assert read(json_header(code=105, language=language)).code == 105


@pytest.mark.parametrize(
    ("written", "remark"),
    [("null", None), ('""', ""), ('"text"', "text"), ('"\\u4e2d\\n"', "中\n"), ("5", "5"), ("true", "true")],
)
def test_a_remark_may_be_absent_empty_or_of_another_kind(written: str, remark: str | None) -> None:
    assert read(f'{{"remark":{written}}}').remark == remark


@pytest.mark.parametrize(
    ("written", "fields"),
    [
        ("null", {}),
        ("{}", {}),
        ('{"a":"b"}', {"a": "b"}),
        ('{"a":""}', {"a": ""}),
        ('{"":"b"}', {"": "b"}),
        ('{"a":null}', {}),
        ('{"a":null,"b":"c"}', {"b": "c"}),
        ('{"a":1}', {"a": "1"}),
        ('{"a":-1}', {"a": "-1"}),
        ('{"a":1.5}', {"a": "1.5"}),
        ('{"a":12345678901234567890}', {"a": "12345678901234567890"}),
        ('{"a":true,"b":false}', {"a": "true", "b": "false"}),
        ('{"a":{"x":1}}', {"a": '{"x":1}'}),
        ('{"a":[1,2]}', {"a": "[1,2]"}),
        ('{"a":"x","a":"y"}', {"a": "y"}),
        ('{"\\u4e2d":"\\ud83d\\ude00"}', {"中": "😀"}),
    ],
)
def test_fields_become_text(written: str, fields: dict[str, str]) -> None:
    assert read(f'{{"code":105,"extFields":{written}}}').fields == fields


@pytest.mark.parametrize("written", ["[]", '["topic"]', '"topic"', "5", "true"])
def test_fields_that_are_no_object_are_refused(written: str) -> None:
    with pytest.raises(HeaderError):
        read(f'{{"code":105,"extFields":{written}}}')


@pytest.mark.parametrize(
    "header",
    [
        "{'code':105,'extFields':{'topic':'TopicTest'},'flag':0,'language':'GO','opaque':7,'remark':'hello','version':317}",
        '{code:105,extFields:{topic:"TopicTest"},flag:0,language:"GO",opaque:7,remark:"hello",version:317}',
        '{,"code":105,,"extFields":{"topic":"TopicTest",},"language":"GO","opaque":7,"remark":"hello","version":317,,}',
        """{code :'105', 'extFields' : {topic:'TopicTest'} ,language:9,opaque:"7",remark:'hello',version:317.0}""",
    ],
)
def test_json_that_java_accepts_is_accepted(header: str) -> None:
    assert read(header) == read(FULL)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b" ",
        b"null",
        b"true",
        b"105",
        b'"code"',
        b"[]",
        b'[{"code":105}]',
        b"{",
        b"}",
        b'{"code":105',
        b'{"code":105}x',
        b'{"code":105}{}',
        b'{"code":105},',
        b'{"code":105}}',
        b'{"code"}',
        b'{"code":}',
        b'{"code" 105}',
        b'{"code":105 "flag":0}',
        b"{'code:105}",
        b"\0" * 20,
        b"<xml/>",
    ],
)
def test_what_is_no_json_object_is_refused(header: bytes) -> None:
    with pytest.raises(HeaderError):
        read(header)


def test_every_truncation_of_a_header_is_refused() -> None:
    for length in range(len(FULL)):
        with pytest.raises(HeaderError):
            read(FULL[:length])


def test_a_header_nested_too_deeply_is_refused() -> None:
    with pytest.raises(HeaderError):
        read(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    with pytest.raises(HeaderError):
        read(b'{"extFields":' * 50_000 + b"{}" + b"}" * 50_000)


@pytest.mark.parametrize(
    "member",
    ['"body":"AAAA"', '"body":5', '"body":null', '"form":1', '"form":"x"', '"form":null', '"body":"?","form":7'],
)
def test_body_and_form_come_from_the_frame_only(member: str) -> None:
    header = f'{{{member},"code":105}}'.encode()
    request = decode_command(frame(header, b"the body"))
    assert (request.code, request.body, request.form) == (105, b"the body", FORM_JSON)
    assert decode_command(frame(header)).body == b""


@pytest.mark.parametrize(
    ("flag", "response", "oneway"), [(0, False, False), (1, True, False), (2, False, True), (3, True, True)]
)
def test_only_the_two_lowest_bits_of_the_flag_are_used(flag: int, response: bool, oneway: bool) -> None:
    for others in (0, 4, 0x7FFFFFFC, -4):
        request = read(json_header(flag=flag | others))
        assert (request.is_response, request.is_oneway) == (response, oneway)


def test_requests_do_not_share_their_fields() -> None:
    first, second = read("{}"), read("{}")
    first.fields["topic"] = "TopicTest"
    assert second.fields == {}


@settings(deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_header_or_refused(text: str) -> None:
    data = text.encode("utf-8", "replace")
    with suppress(FrameError):
        assert decode_command(frame(data)).form == FORM_JSON


@settings(deadline=None)
@given(st.text(alphabet="{}[]:,\"'\\0159.-+eEcodeflagremarkextFieldsnulltrue \n中", max_size=40))
def test_any_text_that_looks_like_json_is_a_header_or_refused(text: str) -> None:
    for data in (text.encode(), f'{{"code":{text}}}'.encode(), f'{{"extFields":{{{text}}}}}'.encode()):
        try:
            request = read(data)
        except HeaderError:
            continue
        assert all(isinstance(value, str) for value in request.fields.values())
