import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.wire.codes import OUR_VERSION, ResponseCode
from skyroute.wire.command import FLAG_ONEWAY, FORM_BINARY, FORM_JSON, Request, Response
from skyroute.wire.frame import FrameDecoder
from skyroute.wire.header import as_response, decode_command, encode_request, response_head
from tests.unit.wire.by_hand import BINARY, binary_header, frame

FORMS = pytest.mark.parametrize("form", [FORM_JSON, FORM_BINARY])

TEXTS = st.text(max_size=20)
INT16S = st.integers(-(1 << 15), (1 << 15) - 1)
INT32S = st.integers(-(1 << 31), (1 << 31) - 1)
FORM_CHOICES = st.sampled_from([FORM_JSON, FORM_BINARY])


def read(stream: bytes) -> Request:
    [content] = FrameDecoder().feed(stream)
    return decode_command(content)


def header_text(head: bytes) -> str:
    return head[8:].decode()


def test_a_bare_json_response_is_written_as_java_writes_it() -> None:
    assert header_text(response_head(Response(), 7, FORM_JSON)) == (
        '{"code":0,"flag":1,"language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":479}'
    )


def test_a_full_json_response_has_its_members_sorted_and_no_blanks() -> None:
    response = Response(17, "No topic route info ...", {"masterAddr": "10.0.0.1:10911"}, b"body")
    assert header_text(response_head(response, -7, FORM_JSON)) == (
        '{"code":17,"extFields":{"masterAddr":"10.0.0.1:10911"},"flag":1,"language":"JAVA","opaque":-7,'
        '"remark":"No topic route info ...","serializeTypeCurrentRPC":"JSON","version":479}'
    )


@pytest.mark.parametrize(
    ("response", "present"),
    [
        (Response(), set()),
        (Response(remark="no"), {"remark"}),
        (Response(fields={"a": "b"}), {"extFields"}),
        (Response(fields={}), {"extFields"}),
        (Response(remark="", fields={}), {"remark", "extFields"}),
    ],
)
def test_what_a_json_response_lacks_is_left_out(response: Response, present: set[str]) -> None:
    members = json.loads(header_text(response_head(response, 1, FORM_JSON)))
    always = {"code", "flag", "language", "opaque", "serializeTypeCurrentRPC", "version"}
    assert set(members) == always | present
    assert None not in members.values()


def test_fields_of_a_json_response_are_text_only() -> None:
    members = json.loads(header_text(response_head(Response(fields={"count": "3", "changed": "true"}), 1, FORM_JSON)))
    assert members["extFields"] == {"count": "3", "changed": "true"}


def test_text_of_a_json_response_is_raw_but_for_what_json_forbids() -> None:
    written = header_text(response_head(Response(1, 'a "b" \\ / 中😀\n\t'), 1, FORM_JSON))
    assert r'"remark":"a \"b\" \\ / 中😀\n\t"' in written


def test_a_binary_response_has_the_documented_layout() -> None:
    response = Response(17, "no 中", {"masterAddr": "10.0.0.1:10911", "x": "y"}, b"body")
    header = binary_header(17, version=479, request_id=-7, flag=1, remark="no 中", fields=response.fields)
    assert response_head(response, -7, FORM_BINARY) + response.body == frame(header, b"body", BINARY)


@pytest.mark.parametrize("response", [Response(), Response(fields={}), Response(remark="")])
def test_a_bare_binary_response_is_its_fixed_part(response: Response) -> None:
    header = binary_header(0, version=479, request_id=7, flag=1)
    assert response_head(response, 7, FORM_BINARY) == frame(header, form=BINARY)


def test_a_binary_header_leaves_empty_values_out() -> None:
    head = response_head(Response(fields={"a": "", "b": "c"}), 7, FORM_BINARY)
    assert head == frame(binary_header(0, version=479, request_id=7, flag=1, fields={"b": "c"}), form=BINARY)


@FORMS
@pytest.mark.parametrize("code", [*ResponseCode, 32767])
def test_a_response_is_in_the_form_it_is_asked_for(form: int, code: int) -> None:
    received = read(response_head(Response(code), 7, form))
    assert (received.form, received.code, received.version) == (form, code, OUR_VERSION)
    assert received.is_response
    assert not received.is_oneway


def test_our_version_fits_the_16_bits_of_peers_written_in_go() -> None:
    assert 0 < OUR_VERSION < 1 << 15


@FORMS
def test_a_responses_head_counts_the_body_that_follows(form: int) -> None:
    response = Response(body=b"x" * 1000)
    head = response_head(response, 7, form)
    length, word = struct.unpack_from(">II", head)
    assert length == len(head) - 4 + 1000
    assert word == form << 24 | len(head) - 8
    assert read(head + response.body).body == response.body


@FORMS
def test_a_header_above_the_maximum_length_becomes_an_error(form: int) -> None:
    received = read(response_head(Response(17, "x" * (1 << 24)), 7, form))
    assert (received.form, received.code, received.request_id) == (form, ResponseCode.SYSTEM_ERROR, 7)
    assert received.is_response


def test_an_error_is_a_response_with_a_remark() -> None:
    assert Response.error("no") == Response(1, "no")
    assert Response.error("busy", ResponseCode.SYSTEM_BUSY) == Response(2, "busy")


@FORMS
@settings(deadline=None)
@given(
    code=INT16S,
    remark=st.none() | TEXTS.filter(bool),
    fields=st.dictionaries(TEXTS.filter(bool), TEXTS.filter(bool), max_size=5),
    body=st.binary(max_size=30),
    request_id=INT32S,
)
def test_any_response_is_read_back_as_it_was(
    form: int, code: int, remark: str | None, fields: dict[str, str], body: bytes, request_id: int
) -> None:
    response = Response(code, remark, fields, body)
    received = read(response_head(response, request_id, form) + body)
    assert received.request_id == request_id
    assert received.form == form
    assert as_response(received) == response


@settings(deadline=None)
@given(
    code=INT16S,
    fields=st.dictionaries(TEXTS.filter(bool), TEXTS.filter(bool), max_size=5),
    flag=INT32S,
    remark=st.none() | TEXTS.filter(bool),
    version=INT16S.filter(bool),
    body=st.binary(max_size=30),
    form=FORM_CHOICES,
    request_id=INT32S,
)
def test_any_request_is_read_back_as_it_was(
    code: int,
    fields: dict[str, str],
    flag: int,
    remark: str | None,
    version: int,
    body: bytes,
    form: int,
    request_id: int,
) -> None:
    request = Request(code, fields, flag, "PYTHON", request_id, remark, version, body, form)
    assert read(encode_request(request, request_id)) == request


@settings(deadline=None)
@given(remark=TEXTS, fields=st.dictionaries(TEXTS, TEXTS, max_size=5))
def test_any_json_response_is_standard_json(remark: str, fields: dict[str, str]) -> None:
    members = json.loads(header_text(response_head(Response(1, remark, fields), 7, FORM_JSON)))
    assert (members["remark"], members["extFields"]) == (remark, fields)


@settings(deadline=None)
@given(fields=st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=5))
def test_a_binary_header_has_all_but_the_empty_values(fields: dict[str, str]) -> None:
    received = read(response_head(Response(fields=fields), 7, FORM_BINARY))
    assert received.fields == {key: value for key, value in fields.items() if value}


def test_a_request_without_a_version_gets_ours() -> None:
    assert read(encode_request(Request(code=905), 1)).version == OUR_VERSION
    assert read(encode_request(Request(code=905, version=317), 1)).version == 317


def test_a_request_without_fields_is_encoded_without_them() -> None:
    stream = encode_request(Request(code=319, flag=FLAG_ONEWAY), 1)
    assert stream[8:] == (
        b'{"code":319,"flag":2,"language":"PYTHON","opaque":1,"serializeTypeCurrentRPC":"JSON","version":479}'
    )


@FORMS
def test_a_request_carries_its_body(form: int) -> None:
    request = read(encode_request(Request(code=318, body=b"a=b\n", form=form), 5))
    assert (request.request_id, request.body, request.form) == (5, b"a=b\n", form)
