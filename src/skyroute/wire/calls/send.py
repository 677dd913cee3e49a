"""Sending messages, sending them back, and replies: requests and their answers."""

from typing import Final

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import DEFAULT_TOPIC
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.fields import required_int, required_text

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


def encode_send_back(
    group: str,
    *,
    log_position: int,
    delay_level: int,
    origin_message_id: str,
    origin_topic: str,
    max_reconsume_times: int,
    broker_name: str,
) -> Request:
    """Ask the broker that delivered a message to deliver it again: after a while, or, at level -1, to dead letters."""
    fields = {
        "group": group,
        "offset": str(log_position),
        "delayLevel": str(delay_level),
        "originMsgId": origin_message_id,
        "originTopic": origin_topic,
        "unitMode": "false",
        "maxReconsumeTimes": str(max_reconsume_times),
        "bname": broker_name,
    }
    return Request(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


def encode_recall(producer_group: str, topic: str, recall_handle: str) -> Request:
    """Ask for a message that waits for its time never to be delivered."""
    return Request(
        RequestCode.RECALL_MESSAGE, {"producerGroup": producer_group, "topic": topic, "recallHandle": recall_handle}
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
