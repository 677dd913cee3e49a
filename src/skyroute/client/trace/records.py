"""The records of a message trace, and their text format, which Apache's tools read."""

import logging
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any, Final

import msgspec

from skyroute.client.errors import ClientError
from skyroute.message import property_names as names
from skyroute.wire.calls.transaction import TransactionOutcome

log = logging.getLogger(__name__)

DEFAULT_REGION: Final = "DefaultRegion"
"""The region of a broker that sends none."""

_FIELD_END: Final = "\x01"
_RECORD_END: Final = "\x02"
_NOTHING: Final = "null"


class TraceError(ClientError):
    """The text of a trace is damaged."""


class TracedKind(IntEnum):
    """The kind of a message."""

    NORMAL = 0
    HALF = 1
    COMMITTED = 2
    DELAYED = 3
    ORDERED = 4
    """Apache's clients never use it."""


def kind_of(properties: Mapping[str, str]) -> TracedKind:
    """Return the kind of a message with these properties."""
    if not _DELAYING.isdisjoint(properties):
        return TracedKind.DELAYED
    return TracedKind.HALF if properties.get(names.TRANSACTION_PREPARED) == "true" else TracedKind.NORMAL


_DELAYING: Final = frozenset(
    {
        names.DELAY_LEVEL,
        names.START_DELIVER_TIME,
        names.TIMER_DELAY_SEC,
        names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS,
    }
)


class TracedReturn(IntEnum):
    """How a handler ended."""

    SUCCESS = 0
    TIMED_OUT = 1
    """It ran longer than the consume timeout, even if it succeeded."""
    RAISED = 2
    RETURNED_NOTHING = 3
    FAILED = 4
    """It requested a retry."""


# The fields of each record are in the order of the text.


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A broker has stored a message."""

    at_ms: int
    """When the send began."""
    region: str = DEFAULT_REGION
    group: str
    topic: str
    message_id: str
    tag: str | None = None
    keys: tuple[str, ...] = ()
    store_host: str
    """The broker's address, `host:port`."""
    body_bytes: int
    cost_ms: int
    kind: TracedKind = TracedKind.NORMAL
    offset_id: str | None = None
    success: bool = True
    """False if the broker stored it less safely than configured."""


class ConsumeStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A handler starts with a message."""

    at_ms: int
    region: str = DEFAULT_REGION
    group: str
    request_id: str
    """The same for all messages of one handler call, and for their `ConsumeEnded` records."""
    message_id: str
    reconsume_times: int = 0
    keys: tuple[str, ...] = ()


class ConsumeEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A handler ended."""

    request_id: str
    message_id: str
    cost_ms: int
    success: bool
    keys: tuple[str, ...] = ()
    returned: TracedReturn = TracedReturn.SUCCESS
    at_ms: int = 0
    """0 from old clients."""
    group: str = ""
    """Empty from old clients."""


class TransactionEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A producer has sent the outcome of a transaction."""

    at_ms: int
    region: str = DEFAULT_REGION
    group: str
    topic: str
    message_id: str
    tag: str | None = None
    keys: tuple[str, ...] = ()
    store_host: str
    kind: TracedKind = TracedKind.COMMITTED
    """Apache's clients use COMMITTED for every outcome."""
    transaction_id: str | None = None
    outcome: TransactionOutcome
    from_check: bool = False
    """Whether the outcome is the result of a transaction check."""


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """A producer has recalled a delayed message."""

    at_ms: int
    region: str = DEFAULT_REGION
    group: str
    topic: str
    message_id: str
    success: bool = True


TraceRecord = Sent | ConsumeStarted | ConsumeEnded | TransactionEnded | Recalled

_TYPES: Final[dict[str, type[TraceRecord]]] = {
    "Pub": Sent,
    "SubBefore": ConsumeStarted,
    "SubAfter": ConsumeEnded,
    "EndTransaction": TransactionEnded,
    "Recall": Recalled,
}
_TYPE_NAMES: Final = {type_: name for name, type_ in _TYPES.items()}
_OUTCOMES: Final = {
    "COMMIT_MESSAGE": TransactionOutcome.COMMIT,
    "ROLLBACK_MESSAGE": TransactionOutcome.ROLLBACK,
    "UNKNOW": TransactionOutcome.UNKNOWN,
}
_OUTCOME_NAMES: Final = {outcome: name for name, outcome in _OUTCOMES.items()}


def encode_record(record: TraceRecord) -> str:
    """Return the text of one record; a body is the concatenation of several."""
    fields = (_encode_field(getattr(record, name)) for name in record.__struct_fields__)
    return _FIELD_END.join((_TYPE_NAMES[type(record)], *fields)) + _RECORD_END


def _encode_field(value: object) -> str:
    match value:
        case None | ():
            return _NOTHING
        case bool():
            return "true" if value else "false"
        case tuple():
            return names.KEY_SEPARATOR.join(value)
        case TransactionOutcome():
            return _OUTCOME_NAMES[value]
        case _:
            return str(value)


def decode_trace(body: bytes) -> list[TraceRecord]:
    """Decode the body of a trace message. Unknown types of records are skipped.

    `null` means absent, so that a tag or key of that name is lost.

    Raises:
        TraceError: a record of a known type is truncated or malformed.
    """
    return [
        _decode_record(_TYPES[name], row.rstrip(_FIELD_END).split(_FIELD_END)[1:])
        for row in body.decode("utf-8", "replace").split(_RECORD_END)
        if (name := row.partition(_FIELD_END)[0]) in _TYPES
    ]


def _decode_record(type_: type[TraceRecord], texts: list[str]) -> TraceRecord:
    fields = type_.__struct_fields__
    if type_ is Sent and len(texts) == len(fields) - 1:
        # Old clients send no offset id.
        texts.insert(-1, _NOTHING)
    try:
        return type_(**{name: _READERS.get(name, str)(text) for name, text in zip(fields, texts, strict=False)})
    except (ValueError, KeyError, TypeError) as error:
        raise TraceError(f"damaged trace record {texts!r:.200}: expected a {type_.__name__} ({error})") from None


def _decode_keys(text: str) -> tuple[str, ...]:
    return () if text == _NOTHING else tuple(filter(None, text.split(names.KEY_SEPARATOR)))


def _decode_nullable(text: str) -> str | None:
    return None if text == _NOTHING else text


def _decode_truth(text: str) -> bool:
    return text.lower() == "true"


_READERS: Final[dict[str, Callable[[str], Any]]] = {
    "at_ms": int,
    "tag": _decode_nullable,
    "keys": _decode_keys,
    "body_bytes": int,
    "cost_ms": int,
    "kind": lambda text: TracedKind(int(text)),
    "offset_id": _decode_nullable,
    "success": _decode_truth,
    "reconsume_times": int,
    "returned": lambda text: TracedReturn(int(text)),
    "transaction_id": _decode_nullable,
    "outcome": _OUTCOMES.__getitem__,
    "from_check": _decode_truth,
}
