"""Send-back of consumers, and recall of delayed messages."""

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
    """Encode a send-back: deliver the message again after a delay, or at level -1 to the dead-letter queue."""
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
    """A consumer's send-back of a message."""

    group: str
    log_position: int
    delay_level: int
    """0: the broker chooses; below 0: to the dead-letter queue."""
    max_reconsume_times: int | None
    unit_mode: bool


def decode_send_back(request: Request) -> SendBack:
    """Decode a send-back.

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
    """Encode the recall of a delayed message."""
    return Request(
        RequestCode.RECALL_MESSAGE, {"producerGroup": producer_group, "topic": topic, "recallHandle": recall_handle}
    )


class Recall(msgspec.Struct, frozen=True, gc=False):
    """A producer's recall of a delayed message."""

    producer_group: str
    topic: str
    handle: str


def decode_recall(request: Request) -> Recall:
    """Decode a recall.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return Recall(
        fields.get("producerGroup", ""), required_name(fields, "topic"), required_text(fields, "recallHandle")
    )


class RecallHandle(msgspec.Struct, frozen=True, gc=False):
    """The fields of a recall handle, which is opaque text to a producer."""

    topic: str
    broker_name: str
    due_ms: int
    """A time in the timer wheel slot of the message; the delete mark gets the same slot."""
    unique_id: str


def encode_recall_handle(handle: RecallHandle) -> str:
    """Encode a recall handle."""
    parts = (_HANDLE_VERSION, handle.topic, handle.broker_name, str(handle.due_ms), handle.unique_id)
    return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()


def decode_recall_handle(text: str) -> RecallHandle:
    """Decode a recall handle.

    Raises:
        FieldError: it is invalid.
    """
    try:
        parts = base64.b64decode(text.encode(), b"-_", validate=True).decode().split(" ")
        due_ms = int(parts[3]) if len(parts) >= _HANDLE_PARTS and parts[0] == _HANDLE_VERSION else -1
    except (binascii.Error, UnicodeError, ValueError):
        raise FieldError("recall handle is invalid") from None
    if due_ms < 0:
        raise FieldError("recall handle is invalid")
    return RecallHandle(parts[1], parts[2], due_ms, parts[4])
