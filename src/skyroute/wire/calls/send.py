"""Send requests and responses, and replies of request-reply."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import DEFAULT_TOPIC
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import FLAG_RESPONSE, FORM_JSON, Int32, Int64, Request, Response
from skyroute.wire.errors import FieldError
from skyroute.wire.fast_path import PreparedRequest, PreparedResponse, request_header_start, response_header_start
from skyroute.wire.fields import optional_int, required_int, required_int32, required_text, truth
from skyroute.wire.header import decode_request_header

STARTS_MAX: Final = 4_096
"""Maximum number of queues whose send header is cached."""
_CHANGING: Final = "fghi"
"""The fields of a send that differ between messages."""

_encode_json = msgspec.json.Encoder().encode

SENT_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Response codes of a stored message; some mean that flush or replication did not complete."""


def encode_send(
    producer_group: str,
    queue: QueueRef,
    body: bytes,
    *,
    properties: str,
    born_at_ms: int,
    sys_flag: int = 0,
    flag: int = 0,
    batch: bool = False,
    reply: bool = False,
    reconsume_times: int = 0,
    max_reconsume_times: int | None = None,
    default_topic_queues: int = 4,
) -> Request:
    """Encode a send in its short form, which brokers since 4.0 read."""
    fields = {
        "a": producer_group,
        "b": queue.topic,
        "c": DEFAULT_TOPIC,
        "d": str(default_topic_queues),
        "e": str(queue.queue_id),
        "f": str(sys_flag),
        "g": str(born_at_ms),
        "h": str(flag),
        "i": properties,
        "j": str(reconsume_times),
        "k": "false",
        "m": "true" if batch else "false",
        "n": queue.broker_name,
    }
    if max_reconsume_times is not None:
        fields["l"] = str(max_reconsume_times)
    if batch:
        code = RequestCode.SEND_BATCH_MESSAGE
    else:
        code = RequestCode.SEND_REPLY_MESSAGE_V2 if reply else RequestCode.SEND_MESSAGE_V2
    return Request(code, fields, body=body)


@lru_cache(maxsize=STARTS_MAX)
def _start_of_send(  # keyword arguments would make the cache slower
    group: str,
    topic: str,
    broker_name: str,
    queue_id: int,
    batch: bool,  # noqa: FBT001 - as above
    reply: bool,  # noqa: FBT001 - as above
    default_topic_queues: int,
) -> tuple[int, bytes]:
    send = encode_send(
        group,
        QueueRef(topic, broker_name, queue_id),
        b"",
        properties="",
        born_at_ms=0,
        batch=batch,
        reply=reply,
        default_topic_queues=default_topic_queues,
    )
    same_for_all = {name: value for name, value in send.fields.items() if name not in _CHANGING}
    return int(send.code), request_header_start(send.code, same_for_all)


def write_send(
    producer_group: str,
    queue: QueueRef,
    body: bytes,
    *,
    properties: str,
    born_at_ms: int,
    sys_flag: int = 0,
    flag: int = 0,
    batch: bool = False,
    reply: bool = False,
    default_topic_queues: int = 4,
) -> PreparedRequest:
    """Encode like `encode_send`, at a third of the cost. The result cannot be signed.

    What is the same in all sends to a queue is written once and remembered.
    """
    code, start = _start_of_send(
        producer_group, queue.topic, queue.broker_name, queue.queue_id, batch, reply, default_topic_queues
    )
    changing = b',"f":"%d","g":"%d","h":"%d","i":%b}' % (sys_flag, born_at_ms, flag, _encode_json(properties))
    return PreparedRequest(code, start + changing, body)


_SHORT_NAMES: Final = {
    **{"producerGroup": "a", "topic": "b", "defaultTopic": "c", "defaultTopicQueueNums": "d", "queueId": "e"},
    **{"sysFlag": "f", "bornTimestamp": "g", "flag": "h", "properties": "i", "reconsumeTimes": "j", "unitMode": "k"},
    **{"maxReconsumeTimes": "l", "batch": "m"},
}
"""Names of the fields in the long and the short form of a send."""
_REQUIRED: Final = tuple(name for name, short in _SHORT_NAMES.items() if short <= "h")


class Sending(
    msgspec.Struct,
    gc=False,
    rename={
        **{"producer_group": "a", "topic": "b", "default_topic": "c", "default_topic_queues": "d", "queue_id": "e"},
        **{"sys_flag": "f", "born_at_ms": "g", "flag": "h", "properties": "i", "reconsume_times": "j"},
        **{"unit_mode": "k", "max_reconsume_times": "l", "is_batch": "m"},
    },
):
    """A send: a message or a batch."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queues: Int32
    queue_id: Int32
    """Negative: the broker chooses."""
    sys_flag: Int32
    born_at_ms: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    max_reconsume_times: Int32 | None = None
    is_batch: bool = False
    unit_mode: bool = False


class SendRequest(Request, kw_only=True, gc=False):
    """A send in its short form, decoded directly to the fields of the handler."""

    fields: Sending = msgspec.field(name="extFields")  # type: ignore[assignment]  # only the send handler reads them


class SignedSending(
    Sending,
    gc=False,
    forbid_unknown_fields=True,
    rename={"access_key": "AccessKey", "security_token": "SecurityToken", "signature": "Signature", "broker_name": "n"},
):
    """A send with the fields of its signature, which covers all fields: there are no others."""

    broker_name: str = ""
    access_key: str = ""
    security_token: str = ""
    signature: str = ""


class SignedSendRequest(SendRequest, kw_only=True, gc=False):
    """A send in its short form that is decoded directly, also at a server that checks signatures."""

    fields: SignedSending = msgspec.field(name="extFields")
    header: bytes = b""
    signed_text: str = ""
    """The values of all fields but the signature, in the order of their names, with numbers as clients write them."""

    def decode_again(self) -> Request:
        """Decode the header in the ordinary way, with every value as it was sent.

        Raises:
            HeaderError: it is malformed.
        """
        request = decode_request_header(FORM_JSON, self.header)
        request.body = self.body
        return request


_decode_send_request: Final = msgspec.json.Decoder(SendRequest, strict=False).decode
_decode_signed_send_request: Final = msgspec.json.Decoder(SignedSendRequest, strict=False).decode


def read_send_header(header: bytes) -> SendRequest | None:
    """Decode the JSON header of a SEND_MESSAGE_V2 in one step; None if it must be decoded in the ordinary way."""
    try:
        request = _decode_send_request(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    sending = request.fields
    return None if sending.is_batch or sending.unit_mode or request.flag & FLAG_RESPONSE else request


def read_signed_send_header(header: bytes) -> SignedSendRequest | None:
    """Decode like `read_send_header`, and keep what a signature covers."""
    try:
        request = _decode_signed_send_request(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    sending = request.fields
    if sending.is_batch or sending.unit_mode or request.flag & FLAG_RESPONSE:
        return None
    most = "" if sending.max_reconsume_times is None else sending.max_reconsume_times
    # Both replace members of these names in the header.
    request.header = header
    request.signed_text = (
        f"{sending.access_key}{sending.security_token}{sending.producer_group}{sending.topic}{sending.default_topic}"
        f"{sending.default_topic_queues}{sending.queue_id}{sending.sys_flag}{sending.born_at_ms}{sending.flag}"
        f"{sending.properties}{sending.reconsume_times}false{most}false{sending.broker_name}"
    )
    return request


_SHORT_CODES: Final = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
)


def decode_send(request: Request) -> Sending:
    """Decode a send in either form. The topic's name is not checked.

    Raises:
        FieldError: a field is missing or malformed.
    """
    if isinstance(request, SendRequest):
        return request.fields
    fields = request.fields
    if request.code not in _SHORT_CODES:
        fields = {_SHORT_NAMES[name]: value for name, value in fields.items() if name in _SHORT_NAMES}
    try:
        # Every field is text; convert all numbers at once, and field by field only if that fails.
        sending: Sending = msgspec.convert(fields, Sending, strict=False)
    except msgspec.ValidationError:
        sending = _read_one_by_one(fields)
    if sending.is_batch or sending.unit_mode:
        sending.is_batch, sending.unit_mode = truth(fields, "m"), truth(fields, "k")  # "1" is not true
    return sending


def _read_one_by_one(fields: Mapping[str, str]) -> Sending:
    named = {name: fields[short] for name, short in _SHORT_NAMES.items() if short in fields}
    for name in _REQUIRED:
        if name not in named:
            raise FieldError(f"{name} is required")
    return Sending(
        named["producerGroup"],
        named["topic"],
        named["defaultTopic"],
        required_int32(named, "defaultTopicQueueNums"),
        required_int32(named, "queueId"),
        required_int32(named, "sysFlag"),
        required_int(named, "bornTimestamp"),
        required_int32(named, "flag"),
        named.get("properties", ""),
        optional_int(named, "reconsumeTimes", 0),
        optional_int(named, "maxReconsumeTimes", 0) if named.get("maxReconsumeTimes") else None,
        truth(named, "batch"),
        truth(named, "unitMode"),
    )


class SendReceipt(msgspec.Struct, frozen=True, gc=False):
    """The response to a send."""

    offset_id: str
    """For a batch, the ids of all messages, separated by commas."""
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    region: str | None = None
    trace_on: bool = True
    recall_handle: str | None = None
    batch_unique_id: str | None = None
    """Of a batch that is stored as one record."""


def region_fields(region: str, *, trace_on: bool) -> dict[str, str]:
    """Return the fields of every response to a send, also of an error."""
    return {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}


def encode_send_receipt(receipt: SendReceipt) -> Response:
    """Encode the response to a stored message."""
    fields = {
        "msgId": receipt.offset_id,
        "queueId": str(receipt.queue_id),
        "queueOffset": str(receipt.queue_offset),
        **region_fields(receipt.region or "", trace_on=receipt.trace_on),
    }
    if receipt.transaction_id is not None:
        fields["transactionId"] = receipt.transaction_id
    if receipt.recall_handle is not None:
        fields["recallHandle"] = receipt.recall_handle
    if receipt.batch_unique_id is not None:
        fields["batchUniqId"] = receipt.batch_unique_id
    return Response(fields=fields)


class ReceiptForm:
    """Encodes like `encode_send_receipt` for a single stored message, at a third of the cost.

    The part that is the same in all responses is encoded once. For requests in JSON only.
    """

    def __init__(self, raw_store_host: bytes, region: str, *, trace_on: bool) -> None:
        same = region_fields(region, trace_on=trace_on)
        start = response_header_start(same).replace(b"%", b"%%")
        self._form = b'%b,"msgId":"%b%%016X","queueId":"%%d","queueOffset":"%%d","transactionId":"%%b"}' % (
            start,
            raw_store_host.hex().upper().encode(),
        )

    def fill(self, log_position: int, queue_id: int, queue_offset: int, transaction_id: bytes) -> Response:
        """Encode the response to a send; the unique id has ASCII letters and digits only."""
        return PreparedResponse(header=self._form % (log_position, queue_id, queue_offset, transaction_id))


def decode_send_receipt(response: Response) -> SendReceipt:
    """Decode the response to a send, for one of `SENT_CODES`.

    Raises:
        FieldError: the offset or id is missing.
    """
    fields = response.fields or {}
    return SendReceipt(
        required_text(fields, "msgId"),
        required_int(fields, "queueId"),
        required_int(fields, "queueOffset"),
        fields.get("transactionId"),
        fields.get("MSG_REGION"),
        fields.get("TRACE_ON") != "false",
        fields.get("recallHandle"),
    )


class PushedReply(msgspec.Struct, frozen=True, gc=False):
    """A reply message that the broker forwards."""

    topic: str
    properties: str
    sys_flag: int
    flag: int
    queue_id: int
    born_at_ms: int
    stored_at_ms: int
    born_host: str
    store_host: str
    body: bytes


def decode_pushed_reply(request: Request) -> PushedReply:
    """Decode a forwarded reply message.

    Raises:
        FieldError: a field is missing.
    """
    fields = request.fields
    return PushedReply(
        topic=required_text(fields, "topic"),
        properties=fields.get("properties", ""),
        sys_flag=required_int(fields, "sysFlag"),
        flag=required_int(fields, "flag"),
        queue_id=required_int(fields, "queueId"),
        born_at_ms=required_int(fields, "bornTimestamp"),
        stored_at_ms=required_int(fields, "storeTimestamp"),
        born_host=required_text(fields, "bornHost"),
        store_host=required_text(fields, "storeHost"),
        body=request.body,
    )


def encode_pushed_reply(
    sending: Sending, body: bytes, properties: str, *, stored_at_ms: int, born_host: str, store_host: str
) -> Request:
    """Encode a forwarded reply message; only its properties differ from those sent."""
    fields = {
        "producerGroup": sending.producer_group,
        "topic": sending.topic,
        "defaultTopic": sending.default_topic,
        "defaultTopicQueueNums": str(sending.default_topic_queues),
        "queueId": str(sending.queue_id),
        "sysFlag": str(sending.sys_flag),
        "bornTimestamp": str(sending.born_at_ms),
        "flag": str(sending.flag),
        "properties": properties,
        "reconsumeTimes": str(sending.reconsume_times),
        "unitMode": "true" if sending.unit_mode else "false",
        "bornHost": born_host,
        "storeHost": store_host,
        "storeTimestamp": str(stored_at_ms),
    }
    return Request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, fields, body=body)
