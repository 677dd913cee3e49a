"""Apache's answers and bytes, and messages to try things on."""

import json
from pathlib import Path
from typing import Any, Final

from hypothesis import strategies as st

from skyroute.message.host import encode_host
from skyroute.message.message import StoredMessage
from skyroute.message.positions import LogPosition, QueueOffset
from skyroute.message.properties import encode_properties
from skyroute.message.record import body_crc

_FOLDER: Final = Path(__file__).parents[2] / "golden" / "message"

FACTS: Final[dict[str, Any]] = json.loads((_FOLDER / "facts.json").read_text("utf-8"))

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12)
PROPERTIES = st.dictionaries(TEXT, TEXT, max_size=4)
HOSTS = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)


def golden(name: str) -> bytes:
    """The bytes of a golden file of this room."""
    return bytes.fromhex((_FOLDER / f"{name}.hex").read_text("ascii"))


def stored(**changes: Any) -> StoredMessage:
    """The message that most golden records hold."""
    properties = {
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "7F000001ABCD18B4AAC2000000000001",
        "color": "红色",
        "WAIT": "true",
    }
    message = StoredMessage(
        topic="TopicTest",
        queue_id=3,
        queue_offset=QueueOffset(42),
        log_position=LogPosition(123456789),
        stored_body=b"hello",
        raw_properties=encode_properties(properties),
        sys_flag=0,
        flag=7,
        born_at_ms=1700000000000,
        raw_born_host=encode_host("10.0.0.1", 54321),
        stored_at_ms=1700000000123,
        raw_store_host=encode_host("10.0.0.2", 10911),
        reconsume_times=1,
        prepared_position=LogPosition(77),
        body_crc=body_crc(b"hello"),
        record_bytes=191,
    )
    return message.replace(**changes)


@st.composite
def stored_messages(draw: st.DrawFn) -> StoredMessage:
    """Any message that a record can hold, with its size and address bits as the record will have them."""
    body = draw(st.binary(max_size=40))
    return stored(
        topic=draw(TEXT) * draw(st.sampled_from([1, 1, 1, 30])),
        queue_id=draw(INT32),
        queue_offset=draw(INT64),
        log_position=draw(INT64),
        stored_body=body,
        raw_properties=encode_properties(draw(PROPERTIES)),
        sys_flag=draw(INT32),
        flag=draw(INT32),
        born_at_ms=draw(INT64),
        raw_born_host=draw(HOSTS),
        stored_at_ms=draw(INT64),
        raw_store_host=draw(HOSTS),
        reconsume_times=draw(INT32),
        prepared_position=draw(INT64),
        body_crc=body_crc(body),
    )
