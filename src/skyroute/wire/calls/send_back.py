"""Messages to be dealt with anew: a consumer sends one back, a producer recalls one."""

import base64
import binascii
from typing import Final

import msgspec

from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request
from skyroute.wire.errors import FieldError
from skyroute.wire.fields import optional_int, required_int, required_int32, required_name, required_text, truth

_HANDLE_VERSION: Final = "v1"
_HANDLE_PARTS: Final = 5


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


class SendBack(msgspec.Struct, frozen=True, gc=False):
    """A consumer's wish to be given a message again."""

    group: str
    log_position: int
    delay_level: int
    """0 leaves it to the broker; below 0 the message goes to dead letters."""
    max_reconsume_times: int | None
    unit_mode: bool


def decode_send_back(request: Request) -> SendBack:
    """Read which message a consumer sends back.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return SendBack(
        required_name(fields, "group"),
        required_int(fields, "offset"),
        required_int32(fields, "delayLevel"),
        optional_int(fields, "maxReconsumeTimes", 0) if fields.get("maxReconsumeTimes") else None,
        truth(fields, "unitMode"),
    )


def encode_recall(producer_group: str, topic: str, recall_handle: str) -> Request:
    """Ask for a message that waits for its time never to be delivered."""
    return Request(
        RequestCode.RECALL_MESSAGE, {"producerGroup": producer_group, "topic": topic, "recallHandle": recall_handle}
    )


class Recall(msgspec.Struct, frozen=True, gc=False):
    """A producer's wish that a message which waits is never delivered."""

    producer_group: str
    topic: str
    handle: str


def decode_recall(request: Request) -> Recall:
    """Read which message a producer recalls.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return Recall(
        fields.get("producerGroup", ""), required_name(fields, "topic"), required_text(fields, "recallHandle")
    )


class RecallHandle(msgspec.Struct, frozen=True, gc=False):
    """What a producer needs to know to recall a message; for the producer itself it is mere text."""

    topic: str
    broker_name: str
    due_ms: int
    """Any time at which the message and the mark that withdraws it come to lie in the same slot."""
    unique_id: str


def encode_recall_handle(handle: RecallHandle) -> str:
    """Write a handle as the producer is given it."""
    parts = (_HANDLE_VERSION, handle.topic, handle.broker_name, str(handle.due_ms), handle.unique_id)
    return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Read a handle that a producer gives back.

    Raises:
        FieldError: it is none.
    """
    try:
        parts = base64.b64decode(text.encode(), b"-_", validate=True).decode().split(" ")
        due_ms = int(parts[3]) if len(parts) >= _HANDLE_PARTS and parts[0] == _HANDLE_VERSION else -1
    except (binascii.Error, UnicodeError, ValueError):
        raise FieldError("recall handle is invalid") from None
    if due_ms < 0:
        raise FieldError("recall handle is invalid")
    return RecallHandle(parts[1], parts[2], due_ms, parts[4])
