import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from skyroute.message.message_id import encode_offset_id
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.send import (
    SENT_CODES,
    PushedReply,
    ReceiptForm,
    Sending,
    SendReceipt,
    SendRequest,
    decode_pushed_reply,
    decode_send,
    decode_send_receipt,
    encode_send,
    encode_send_receipt,
    read_send_header,
    write_send,
)
from skyroute.wire.calls.send_back import encode_recall, encode_send_back
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import FORM_BINARY, FORM_JSON, Request, Response
from skyroute.wire.errors import FieldError, FrameError
from skyroute.wire.fast_path import FastPath, HeaderDecoder, PreparedRequest, response_pieces, with_code
from skyroute.wire.header import decode_command, encode_request, response_head
from tests.unit.wire.golden import golden_line

HEADERS = json.loads(golden_line("client/sends.json"))
QUEUE = QueueRef("TopicTest", "broker-a", 3)
PROPERTIES = "TAGS\x01TagA\x02"
BORN_AT_MS = 1_700_000_000_000


def test_a_send_has_javas_fields() -> None:
    request = encode_send("PG", QUEUE, b"hello", properties=PROPERTIES, born_at_ms=BORN_AT_MS, sys_flag=1, flag=7)
    assert (request.code, request.fields, request.body) == (310, HEADERS["send"], b"hello")


def test_a_send_of_what_was_sent_before_has_javas_fields() -> None:
    request = encode_send(
        "PG",
        QUEUE,
        b"items",
        properties=PROPERTIES,
        born_at_ms=BORN_AT_MS,
        sys_flag=1,
        flag=7,
        batch=True,
        reconsume_times=2,
        max_reconsume_times=16,
    )
    assert (request.code, request.fields) == (320, HEADERS["send-again"])


def test_a_reply_has_a_code_of_its_own() -> None:
    request = encode_send("PG", QUEUE, b"hello", properties=PROPERTIES, born_at_ms=BORN_AT_MS, reply=True)
    assert request.code == 325
    assert request.fields == HEADERS["send"] | {"f": "0", "h": "0"}


def encode_frame(request: Request | PreparedRequest, request_id: int) -> bytes:
    if isinstance(request, PreparedRequest):
        return request.encode(request_id)
    return encode_request(request, request_id)


@pytest.mark.parametrize(("batch", "reply"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("properties", ["", PROPERTIES, 'a\x01"\\%d\x02', "k\x01名前\x02"])
def test_a_prepared_send_equals_the_ordinary_one(properties: str, batch: bool, reply: bool) -> None:
    for queue in (QUEUE, QueueRef("%RETRY%CG", "字%d", 0), QUEUE):
        asked = {
            encode: decode_command(
                encode_frame(
                    encode(
                        "tenant%PG",
                        queue,
                        b"hello",
                        properties=properties,
                        born_at_ms=BORN_AT_MS,
                        sys_flag=4,
                        flag=-7,
                        batch=batch,
                        reply=reply,
                        default_topic_queues=8,
                    ),
                    1234,
                )
            )
            for encode in (encode_send, write_send)
        }
        assert asked[write_send] == asked[encode_send]


def test_a_topic_may_be_created_with_another_number_of_queues() -> None:
    request = encode_send("PG", QUEUE, b"x", properties="", born_at_ms=0, default_topic_queues=8)
    assert request.fields["d"] == "8"


def test_a_send_back_has_javas_fields() -> None:
    request = encode_send_back(
        "CG",
        log_position=4096,
        delay_level=3,
        origin_message_id="UNIQ",
        origin_topic="TopicTest",
        max_reconsume_times=16,
        broker_name="broker-a",
    )
    assert (request.code, request.fields, request.body) == (36, HEADERS["send-back"], b"")


def test_a_recall_has_javas_fields() -> None:
    request = encode_recall("PG", "TopicTest", "HANDLE")
    assert request.code == 370
    # Java names the broker too, which then compares it with the one inside the handle.
    assert request.fields | {"bname": "broker-a"} == HEADERS["recall"]


def test_javas_answer_to_a_send_is_read() -> None:
    answer = Response(fields=HEADERS["send-answer"] | {"MSG_REGION": "DefaultRegion", "TRACE_ON": "false"})
    assert decode_send_receipt(answer) == SendReceipt(
        "0A00000200002A9F00000000075BCD15", 3, 42, "TX", "DefaultRegion", trace_on=False, recall_handle="HANDLE"
    )


def test_optional_fields_of_a_send_response_may_be_absent() -> None:
    receipt = decode_send_receipt(Response(fields={"msgId": "0", "queueId": "0", "queueOffset": "0"}))
    assert receipt == SendReceipt("0", 0, 0)
    assert receipt.trace_on


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("msgId", None),
        ("msgId", ""),
        ("queueId", None),
        ("queueId", "x"),
        ("queueOffset", None),
        ("queueOffset", "1.5"),
    ],
)
def test_a_send_response_without_offset_is_refused(field: str, value: str | None) -> None:
    fields = {"msgId": "0", "queueId": "0", "queueOffset": "0"} | {field: value}
    known = {name: text for name, text in fields.items() if text is not None}
    with pytest.raises(FieldError, match=field):
        decode_send_receipt(Response(fields=known))


def test_an_answer_without_any_field_is_refused() -> None:
    with pytest.raises(FieldError, match="msgId"):
        decode_send_receipt(Response())


def test_a_stored_message_has_four_codes() -> None:
    assert {int(code) for code in SENT_CODES} == {0, 10, 11, 12}


def test_javas_pushed_reply_is_read() -> None:
    request = Request(326, dict(HEADERS["pushed-reply"]), body=b"answer")
    assert decode_pushed_reply(request) == PushedReply(
        topic="C_REPLY_TOPIC",
        properties="CORRELATION_ID\x01c\x02",
        sys_flag=0,
        flag=7,
        queue_id=1,
        born_at_ms=1_700_000_000_000,
        stored_at_ms=1_700_000_000_123,
        born_host="10.0.0.1:54321",
        store_host="10.0.0.2:10911",
        body=b"answer",
    )


@pytest.mark.parametrize(
    "field", ["topic", "sysFlag", "flag", "queueId", "bornTimestamp", "storeTimestamp", "bornHost", "storeHost"]
)
def test_a_pushed_reply_that_lacks_something_is_refused(field: str) -> None:
    fields = dict(HEADERS["pushed-reply"])
    del fields[field]
    with pytest.raises(FieldError, match=field):
        decode_pushed_reply(Request(326, fields))


def test_a_prepared_receipt_equals_the_ordinary_one() -> None:
    host = bytes([10, 0, 0, 1, 0, 0, 42, 159])
    form = ReceiptForm(host, 'Région "100 %"', trace_on=False)
    written = b"".join(response_pieces(form.fill(4096, 3, 17, b"7F0001ABCD"), 99, FORM_JSON))
    receipt = SendReceipt(encode_offset_id(host, 4096), 3, 17, "7F0001ABCD", 'Région "100 %"', trace_on=False)
    usual = response_head(encode_send_receipt(receipt), 99, FORM_JSON)
    assert decode_command(written) == decode_command(usual)


@pytest.mark.parametrize("form", [FORM_JSON, FORM_BINARY])
def test_a_late_receipt_differs_in_its_code_only(form: int) -> None:
    prepared = ReceiptForm(bytes(8), '"code":0', trace_on=True).fill(4096, 3, 17, b"7F0001ABCD")
    usual = encode_send_receipt(SendReceipt("id", 3, 17, "7F0001ABCD", '"code":0'))
    for receipt in (usual, prepared) if form == FORM_JSON else (usual,):
        on_time = decode_command(b"".join(response_pieces(receipt, 99, form)))
        late = decode_command(b"".join(response_pieces(with_code(receipt, 12), 99, form)))
        assert (on_time.code, late.code) == (0, 12)
        assert replace(late, code=0) == on_time


_PLAIN = {"a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "3", "f": "0", "g": "1700000000000", "h": "0"}
_TEXTS = st.sampled_from(
    ["", "0", "1", "-1", "+1", " 1", "1.0", "2147483648", "9" * 20, "true", "false", "TRUE", "é\x01x\x02", "null"]
)
_ODD = st.one_of(_TEXTS, st.integers(-(1 << 40), 1 << 40), st.booleans(), st.none(), st.just([]), st.just({"x": 1}))


_DECODERS: dict[int, HeaderDecoder] = {RequestCode.SEND_MESSAGE_V2: read_send_header}


def _read(fast_path: FastPath, header: bytes) -> Sending | str:
    """Return what a broker reads in a header, or why it cannot."""
    frame = struct.pack(">II", 4 + len(header), len(header)) + header
    try:
        return decode_send(fast_path.decode(frame))
    except (FieldError, FrameError) as error:
        return f"{type(error).__name__} {error}"


@given(
    st.dictionaries(st.sampled_from("abcdefghijklmn"), _ODD, max_size=4),
    st.sets(st.sampled_from("abcdefgh"), max_size=1),
    st.dictionaries(st.sampled_from(["flag", "language", "opaque", "remark", "version", "extra"]), _ODD, max_size=2),
    st.booleans(),
)
@example({"m": "true"}, set(), {}, True)
@example({"m": "1", "k": True}, set(), {}, True)
@example({"i": "k\x01v\x02", "j": "2", "l": "16", "n": "broker-a"}, set(), {"flag": 2}, True)
@example({}, set(), {"flag": 1}, True)
def test_a_directly_decoded_send_equals_the_ordinary_one(
    changed: dict[str, object], dropped: set[str], more: dict[str, object], compact: bool
) -> None:
    fields = {name: value for name, value in (_PLAIN | changed).items() if name not in dropped}
    members = {"code": 310, "extFields": fields, "opaque": 7} | more
    header = json.dumps(members, separators=(",", ":") if compact else None).encode()
    assert _read(FastPath(decoders=_DECODERS), header) == _read(FastPath(), header)


def test_a_plain_send_is_decoded_directly() -> None:
    request = encode_send("PG", QUEUE, b"hello", properties=PROPERTIES, born_at_ms=BORN_AT_MS)
    read = FastPath(decoders=_DECODERS).decode(encode_request(request, 7, "JAVA"))
    assert isinstance(read, SendRequest)
    assert (read.code, read.request_id, read.language, read.body) == (310, 7, "JAVA", b"hello")
    assert decode_send(read) is read.fields
    assert (read.fields.topic, read.fields.properties) == ("TopicTest", PROPERTIES)


@pytest.mark.parametrize("form", [1, 2])
def test_a_send_header_in_another_form_is_not_read_as_json(form: int) -> None:
    header = b'{"code":310,"extFields":{}}'
    frame = struct.pack(">II", 4 + len(header), form << 24 | len(header)) + header
    with pytest.raises(FrameError):
        FastPath(decoders=_DECODERS).decode(frame)


def test_a_send_header_cannot_replace_form_and_body_of_its_frame() -> None:
    members = {"code": 310, "extFields": _PLAIN, "form": 1, "body": "b3RoZXI="}
    header = json.dumps(members, separators=(",", ":")).encode()
    frame = struct.pack(">II", 4 + len(header) + 5, len(header)) + header + b"hello"
    read = FastPath(decoders=_DECODERS).decode(frame)
    assert (type(read), read.form, read.body) == (SendRequest, FORM_JSON, b"hello")
