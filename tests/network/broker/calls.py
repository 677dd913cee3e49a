"""Raw requests of producers and consumers, encoded by the independent codec of `tests.support.raw`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from skyroute.message.message import StoredMessage
from skyroute.message.record import decode_records
from tests.support.raw import VERSION_5, Command, Request, compact

BORN_MS = 1_758_275_000_000

_LONG_NAMES = {
    **{"a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId"},
    **{"f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes", "k": "unitMode"},
    **{"l": "maxReconsumeTimes", "m": "batch", "n": "bname"},
}

COMMIT, SUSPEND, SUBSCRIPTION, LITE = 1, 2, 4, 16
"""Bits of a pull's sysFlag."""


def properties_text(properties: Mapping[str, str]) -> str:
    return "".join(f"{key}\x01{value}\x02" for key, value in properties.items())


def send(
    topic: str = "T",
    body: bytes = b"body",
    *,
    code: int = 310,
    queue_id: int = 0,
    properties: str | Mapping[str, str] = "",
    version: int = VERSION_5,
    **fields: Any,
) -> Request:
    """A send; `fields` have the one-letter names of the short form (310)."""
    values = {
        **{"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": str(BORN_MS), "h": "0"},
        "i": properties if isinstance(properties, str) else properties_text(properties),
        **{"j": "0", "k": "false", "m": "true" if code == 320 else "false", "n": "broker-a"},
        **{key: str(value) for key, value in fields.items()},
    }
    if code in (10, 324):
        values = {_LONG_NAMES[key]: value for key, value in values.items()}
    return Request(code, values, body, version)


def batch_body(items: Iterable[tuple[bytes, str]]) -> bytes:
    """The body of a batch with these bodies and properties."""
    out = b""
    for body, text in items:
        raw = text.encode()
        rest = struct.pack(">iiii", 0, 0, 0, len(body)) + body + struct.pack(">h", len(raw)) + raw
        out += struct.pack(">i", 4 + len(rest)) + rest
    return out


def pull(
    topic: str = "T",
    offset: int = 0,
    *,
    group: str = "g",
    queue_id: int = 0,
    count: int = 32,
    flag: int = SUBSCRIPTION,
    expression: str = "*",
    suspend_ms: int = 15_000,
    code: int = 11,
    version: int = 0,
    commit: int = 0,
    kind: str = "TAG",
    **more: str,
) -> Request:
    """A pull with its own subscription and without the suspend flag."""
    return Request(
        code,
        {
            **{"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset)},
            **{"maxMsgNums": str(count), "sysFlag": str(flag), "commitOffset": str(commit)},
            **{"suspendTimeoutMillis": str(suspend_ms), "subscription": expression, "subVersion": str(version)},
            **{"expressionType": kind, **more},
        },
    )


def heartbeat(group: str = "g", topic: str = "T", expression: str = "*", *, version: int = 1, **more: Any) -> Request:
    """A heartbeat of one consumer with one subscription, by tags."""
    tags = [] if expression == "*" else expression.split(" || ")
    subscription = {
        **{"classFilterMode": False, "codeSet": [java_hash(tag) for tag in tags], "expressionType": "TAG"},
        **{"subString": expression, "subVersion": version, "tagsSet": tags, "topic": topic},
    }
    consumer = {
        **{"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "consumeType": "CONSUME_PASSIVELY", "groupName": group},
        **{"messageModel": "CLUSTERING", "subscriptionDataSet": [subscription], "unitMode": False, **more},
    }
    body = {"clientID": "10.0.0.1@1#2", "consumerDataSet": [consumer], "producerDataSet": []}
    return Request(34, body=compact(body).encode())


def java_hash(text: str) -> int:
    """The result of Java's `String.hashCode` for ASCII text."""
    value = 0
    for char in text:
        value = (value * 31 + ord(char)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def found(answer: Command) -> list[StoredMessage]:
    """The messages of a pull response."""
    return list(decode_records(answer.body, check_crc=True))


def found_bodies(answer: Command) -> list[bytes]:
    return [message.body for message in found(answer)]


def place(answer: Command) -> Sequence[int]:
    """Next, min and max offset and the suggested broker id of a pull response."""
    names = ("nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId")
    return [int(answer.fields[name]) for name in names]
