"""Corners of the wire where Java, or plain caution, decides what is right."""

import struct

import pytest

from skyroute.remoting.stepwise import run_through
from skyroute.routing.registration import TopicTable
from skyroute.wire.calls.registration import decode_data_version, decode_registration
from skyroute.wire.calls.registration_body import decode_topic_table
from skyroute.wire.calls.route import ANNOUNCED_BYTES_MAX, decode_route, decode_topic_registration
from skyroute.wire.command import FORM_JSON, Request, Response
from skyroute.wire.errors import BodyError, FieldError, FrameError, HeaderError
from skyroute.wire.fastjson import Dialect, JsonError, dumps, loads
from skyroute.wire.frame import FrameDecoder
from skyroute.wire.header import decode_request_header, response_head
from skyroute.wire.proxy_protocol import read_proxy_header
from tests.unit.wire.by_hand import compressed_registration, frame, json_header, words


def read(header: str) -> Request:
    return decode_request_header(FORM_JSON, header.encode())


def body_of(configs: str) -> bytes:
    return f'{{"topicConfigSerializeWrapper":{configs}}}'.encode()


def table_of(body: bytes) -> TopicTable:
    return run_through(decode_topic_table(Request(version=479, body=body)))


@pytest.mark.parametrize(
    ("written", "value"),
    [(rb"'a\nb'", "a\nb"), (rb"'\u4e2d'", "中"), (rb"'\t\r\b\f\/'", "\t\r\b\f/"), (rb"'\\n'", "\\n"), (rb"'\"'", '"')],
)
def test_escapes_mean_the_same_in_single_quotes(written: bytes, value: str) -> None:
    assert loads(written) == value


@pytest.mark.parametrize(
    "written", ["{a:1 2}", "[1 2]", "{a:t rue}", "{a:- 3}", "[1\u00a02]", "{a:1 2,b:3}", "{a b:1}"]
)
def test_a_blank_separates_two_atoms(written: str) -> None:
    with pytest.raises(JsonError):
        loads(written.encode())


def test_a_number_in_two_parts_is_not_the_request_for_a_route() -> None:
    with pytest.raises(HeaderError):
        read('{"code":1 05}')


@pytest.mark.parametrize("length", [107, 108])
def test_a_proxy_line_near_the_limit_is_read_the_same_in_one_piece_and_in_many(length: int) -> None:
    line = b"PROXY UNKNOWN ".ljust(length, b"x") + b"\r\n"

    def outcome(lengths: range) -> object:
        for taken in lengths:
            try:
                peer = read_proxy_header(line[:taken])
            except FrameError:
                return "refused"
            if peer is not None:
                return peer
        return None

    assert outcome(range(12, len(line) + 1)) == outcome(range(len(line), len(line) + 1))


@pytest.mark.parametrize(
    "line",
    [
        b"PROXY TCP4 ::1 ::2 80 90",
        b"PROXY TCP6 192.0.2.1 192.0.2.2 80 90",
        b"PROXY TCP4 192.0.2.1 garbage 80 90",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 80 x",
        b"PROXY TCP4 192.0.2.1 192.0.2.2 8_0 90",
    ],
)
def test_a_proxy_line_that_contradicts_itself_is_refused(line: bytes) -> None:
    with pytest.raises(FrameError):
        read_proxy_header(line + b"\r\n")


@pytest.mark.parametrize("family", [0x41, 0x10, 0x13])
def test_an_unknown_family_of_version_2_is_refused(family: int) -> None:
    rest = bytes(12)
    with pytest.raises(FrameError):
        read_proxy_header(b"\r\n\r\n\0\r\nQUIT\n" + struct.pack(">BBH", 0x21, family, len(rest)) + rest)


def test_frames_before_a_bad_one_come_out_however_the_stream_is_cut() -> None:
    stream = frame(json_header(code=105)) + (3).to_bytes(4)
    dripped, whole = FrameDecoder(), FrameDecoder()
    taken: list[bytes] = []
    for at in range(len(stream) - 1):
        taken += dripped.feed(stream[at : at + 1])
    with pytest.raises(FrameError):
        dripped.feed(stream[-1:])
    assert len(taken) == 1
    assert whole.feed(stream) == taken
    assert whole.failure is not None


@pytest.mark.parametrize("number", [b"1_0", b"\t8", b"8\n"])
def test_a_number_of_a_topic_line_is_plain_and_fits_32_bits(number: bytes) -> None:
    with pytest.raises(BodyError):
        table_of(compressed_registration([b"T " + number + b" 8 6 SINGLE_TAG"]))


@pytest.mark.parametrize(
    "mapping",
    [
        '{"a\\nb":{"bname":"b"}}',
        '{"":{"bname":"b"}}',
        '{"T":{"bname":"b","topic":"a\\nb"}}',
    ],
)
def test_a_mapping_has_a_name_and_numbers_that_fit(mapping: str) -> None:
    configs = f'{{"topicConfigTable":{{}},"topicQueueMappingInfoMap":{mapping}}}'
    with pytest.raises(BodyError):
        table_of(body_of(configs))


@pytest.mark.parametrize(
    "data",
    [
        '{"brokerName":""}',
        '{"brokerName":"a\\nb"}',
    ],
)
def test_an_announcement_names_its_broker_and_has_whole_numbers(data: str) -> None:
    with pytest.raises(BodyError):
        decode_topic_registration(Request(fields={"topic": "T"}, body=f'{{"queueDatas":[{data}]}}'.encode()))


def test_an_announcement_has_a_maximum_size() -> None:
    data = b",".join([b'{"brokerName":"b%d"}' % number for number in range(ANNOUNCED_BYTES_MAX // 16)])
    with pytest.raises(BodyError, match="expected at most"):
        decode_topic_registration(Request(fields={"topic": "T"}, body=b'{"queueDatas":[%b]}' % data))


@pytest.mark.parametrize(
    "body",
    [
        b'{"brokerDatas":[{"brokerName":5}]}',
        b'{"queueDatas":[{"brokerName":null}]}',
        b'{"filterServerTable":{"a:1":"abc"}}',
        b'{"brokerDatas":[{"brokerName":"b","brokerAddrs":{0:5}}]}',
    ],
)
def test_a_route_with_values_of_another_kind_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError):
        decode_route(body)


def test_the_strict_dialect_quotes_numbers_beyond_53_bits() -> None:
    assert dumps([1 << 53, -(1 << 53), (1 << 53) - 1], Dialect.STRICT) == (
        b'["9007199254740992","-9007199254740992",9007199254740991]'
    )


def test_a_refusal_of_a_name_is_short() -> None:
    with pytest.raises(FieldError) as caught:
        decode_registration(Request(fields={"clusterName": "\x01" * 1_000_000}))
    assert len(str(caught.value)) < 500


def test_a_number_in_a_text_has_digits_only() -> None:
    with pytest.raises(HeaderError):
        read('{"code":"1_0"}')


def test_a_number_in_a_text_may_have_a_zero_fraction() -> None:
    assert read('{"code":"105.0"}').code == 105


def test_a_binary_response_never_writes_an_entry_without_a_key() -> None:
    response = Response(fields={"": "x"})
    assert response_head(response, 7, 1) == response_head(Response(), 7, 1)


@pytest.mark.parametrize(("form", "header_bytes"), [(2, 100), (0, 5000)])
def test_an_oversize_frame_that_cannot_be_right_is_refused_with_its_eighth_byte(form: int, header_bytes: int) -> None:
    decoder = FrameDecoder(1000, {103: 5000})
    with pytest.raises(FrameError):
        decoder.feed(words(2000, header_bytes, form))


@pytest.mark.parametrize(
    "body", [b"{}", b'{"topicConfigSerializeWrapper":{}}', b'{"topicConfigSerializeWrapper":{"dataVersion":{}}}']
)
def test_a_registration_without_topics_is_empty(body: bytes) -> None:
    request = Request(code=103, version=479, body=body)
    assert run_through(decode_topic_table(request)).topics == {}


def test_topics_outside_the_wrapper_are_refused() -> None:
    request = Request(code=103, version=479, body=b'{"topicConfigTable":{"T":{"perm":4}}}')
    with pytest.raises(BodyError, match="is not in topicConfigSerializeWrapper"):
        run_through(decode_topic_table(request))


@pytest.mark.parametrize("number", ["00000000000199999999999999999999", "2147483648", "-2147483649", "000000000008"])
def test_a_number_of_a_compressed_topic_fits_32_bits_however_it_is_written(number: str) -> None:
    body = compressed_registration([f"T {number} 8 6 SINGLE_TAG".encode()])
    with pytest.raises(BodyError, match="not a topic"):
        run_through(decode_topic_table(Request(code=103, fields={"compressed": "true"}, version=479, body=body)))


def test_the_scope_of_a_static_topic_is_a_name() -> None:
    mapping = '{"T":{"bname":"b","scope":"%s"}}' % ("s" * 1000)
    body = body_of(f'{{"topicConfigTable":{{}},"topicQueueMappingInfoMap":{mapping}}}')
    with pytest.raises(BodyError, match="scope is not a name"):
        run_through(decode_topic_table(Request(code=103, version=479, body=body)))


def test_a_version_of_null_is_none() -> None:
    assert decode_data_version(b"null") is None
