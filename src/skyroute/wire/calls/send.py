"""Sending messages, and replies: requests and their answers."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import DEFAULT_TOPIC
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import FLAG_RESPONSE, Int32, Int64, Request, Response
from skyroute.wire.errors import FieldError
from skyroute.wire.fast_path import PreparedRequest, PreparedResponse, request_header_start, response_header_start
from skyroute.wire.fields import optional_int, required_int, required_int32, required_text, truth

STARTS_MAX: Final = 4_096
"""Queues for which the start of a send is remembered."""
_CHANGING: Final = "fghi"
"""The fields of a send that differ from message to message."""

_encode_json = msgspec.json.Encoder().encode

SENT_CODES: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Answers to a send that say where the message is: it is stored, if perhaps less safely than wanted."""


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
    """Write a send in its short form, which every broker since 4.0 reads."""
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
def _start_of_send(  # names of arguments would cost the cache more than all else
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
    """Say what `encode_send` says, at a third of the cost; but nobody can sign it any more.

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
"""What the long form of a send calls its fields, and the short one."""
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
    """A message, or a batch of them, as a broker is asked to take it."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queues: Int32
    queue_id: Int32
    """Negative where the broker is to choose."""
    sys_flag: Int32
    born_at_ms: Int64
    flag: Int32
    properties: str = ""
    reconsume_times: Int32 = 0
    max_reconsume_times: Int32 | None = None
    is_batch: bool = False
    unit_mode: bool = False


class SendRequest(Request, kw_only=True, gc=False):
    """The commonest request of all, a send in its short form, with its fields as the handler wants them."""

    fields: Sending = msgspec.field(name="extFields")  # type: ignore[assignment]  # nobody else looks at them


_decode_send_request: Final = msgspec.json.Decoder(SendRequest, strict=False).decode


def read_send_header(header: bytes) -> SendRequest | None:
    """Decode the JSON header of a SEND_MESSAGE_V2 in one step; None if it must be decoded in the ordinary way."""
    try:
        request = _decode_send_request(header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    sending = request.fields
    return None if sending.is_batch or sending.unit_mode or request.flag & FLAG_RESPONSE else request


_SHORT_CODES: Final = frozenset(
    {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2}
)


def decode_send(request: Request) -> Sending:
    """Read a send in either form. The topic's name may be empty, or any other nonsense.

    Raises:
        FieldError: a field is missing or malformed.
    """
    if isinstance(request, SendRequest):
        return request.fields
    fields = request.fields
    if request.code not in _SHORT_CODES:
        fields = {_SHORT_NAMES[name]: value for name, value in fields.items() if name in _SHORT_NAMES}
    try:
        # Every field is text, of which numbers are made in one go. What is odd is looked at again, one by one.
        sending: Sending = msgspec.convert(fields, Sending, strict=False)
    except msgspec.ValidationError:
        sending = _read_one_by_one(fields)
    if sending.is_batch or sending.unit_mode:
        sending.is_batch, sending.unit_mode = truth(fields, "m"), truth(fields, "k")  # "1" is not true
    return sending


def _read_one_by_one(fields: Mapping[str, str]) -> Sending:
    said = {name: fields[short] for name, short in _SHORT_NAMES.items() if short in fields}
    for name in _REQUIRED:
        if name not in said:
            raise FieldError(f"{name} is required")
    return Sending(
        said["producerGroup"],
        said["topic"],
        said["defaultTopic"],
        required_int32(said, "defaultTopicQueueNums"),
        required_int32(said, "queueId"),
        required_int32(said, "sysFlag"),
        required_int(said, "bornTimestamp"),
        required_int32(said, "flag"),
        said.get("properties", ""),
        optional_int(said, "reconsumeTimes", 0),
        optional_int(said, "maxReconsumeTimes", 0) if said.get("maxReconsumeTimes") else None,
        truth(said, "batch"),
        truth(said, "unitMode"),
    )


class SendReceipt(msgspec.Struct, frozen=True, gc=False):
    """What a broker says of a message it has taken."""

    offset_id: str
    """Of a batch, the ids of all its messages with commas between them."""
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    region: str | None = None
    trace_on: bool = True
    recall_handle: str | None = None
    batch_unique_id: str | None = None
    """Of a batch that is stored as one record."""


def region_fields(region: str, *, trace_on: bool) -> dict[str, str]:
    """Return what every answer to a send says, be it taken or refused."""
    return {"MSG_REGION": region, "TRACE_ON": "true" if trace_on else "false"}


def encode_send_receipt(receipt: SendReceipt, code: int = ResponseCode.SUCCESS) -> Response:
    """Say that a message was taken, and with one of the other `SENT_CODES`, what is missing."""
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
    return Response(code, fields=fields)


class ReceiptForm:
    """Says what `encode_send_receipt` says of a single message that was taken, at a third of the cost.

    What is the same in all answers of a broker is written once. For requests in JSON only.
    """

    def __init__(self, raw_store_host: bytes, region: str, *, trace_on: bool) -> None:
        same = region_fields(region, trace_on=trace_on)
        start = response_header_start(same).replace(b"%", b"%%")
        self._form = b'%b,"msgId":"%b%%016X","queueId":"%%d","queueOffset":"%%d","transactionId":"%%b"}' % (
            start,
            raw_store_host.hex().upper().encode(),
        )

    def fill(self, log_position: int, queue_id: int, queue_offset: int, transaction_id: bytes) -> Response:
        """Answer a send; the id, the sender's own, consists of ASCII letters and digits."""
        return PreparedResponse(header=self._form % (log_position, queue_id, queue_offset, transaction_id))


def decode_send_receipt(response: Response) -> SendReceipt:
    """Read the answer to a send, for one of `SENT_CODES`.

    Raises:
        FieldError: it does not say where the message is.
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
    """The reply to one of our requests, as the broker passes it on."""

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
    """Read a reply that a broker passes on.

    Raises:
        FieldError: something is missing.
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
    """Pass a reply on to the one who asked; it travels as it was sent, but for its properties."""
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
