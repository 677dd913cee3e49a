"""A message as an application sends it, and as a broker keeps it and gives it back."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

import msgspec

from skyroute.message import property_names as names
from skyroute.message.compression import unpack
from skyroute.message.errors import InvalidMessageError, RecordError
from skyroute.message.flags import COMPRESSED, WRAPPED_BATCH, TransactionState, transaction_of
from skyroute.message.host import Host, decode_host
from skyroute.message.message_id import encode_offset_id
from skyroute.message.names import check_topic
from skyroute.message.positions import LogPosition, QueueOffset
from skyroute.message.properties import NAME_END, PAIR_END, decode_properties, encode_properties, find_property
from skyroute.message.queue_ref import QueueRef

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_INT32_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Message:
    """What an application sends.

    Examples:
        >>> message = Message("Orders", b"one coffee", tag="paid", keys="order-17", properties={"shop": "north"})
        >>> message.keys
        ('order-17',)

    `tag` is what consumers subscribe to; `keys` are what people look the message up by. Messages with the same
    `sharding_key` keep their order. A message is held back by one of `delay_level` (one of the broker's steps, from 1),
    `deliver_after_s` and `deliver_at`.

    Raises:
        InvalidMessageError: it breaks a rule, such as a reserved name among `properties`.
        InvalidNameError: no topic has this name.
    """

    topic: str
    body: bytes
    tag: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    sharding_key: str | None
    delay_level: int
    deliver_after_s: float | None
    deliver_at: datetime | None
    flag: int
    """The application's own: carried along, and looked at by nobody else."""
    wait_stored: bool
    """The broker answers once the message is as safe as it is set up to make it."""

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        delay_level: int = 0,
        deliver_after_s: float | None = None,
        deliver_at: datetime | None = None,
        flag: int = 0,
        wait_stored: bool = True,
    ) -> None:
        check_topic(topic)
        keep = object.__setattr__
        keep(self, "topic", topic)
        keep(self, "body", _checked_body(body))
        keep(self, "tag", _checked_text("tag", tag))
        keep(self, "keys", _checked_keys(keys) if keys != () else ())
        keep(self, "properties", _checked_properties(properties) if properties is not None else {})
        keep(self, "sharding_key", _checked_text("sharding_key", sharding_key))
        keep(self, "delay_level", delay_level)
        keep(self, "deliver_after_s", deliver_after_s)
        keep(self, "deliver_at", deliver_at)
        keep(self, "flag", flag or 0)
        keep(self, "wait_stored", wait_stored)
        if delay_level != 0 or deliver_after_s is not None or deliver_at is not None:
            self._check_delivery()
        if flag != 0 and not _is_whole(flag, -_INT32_MAX - 1, _INT32_MAX):
            raise InvalidMessageError(f"flag is a whole number that fits into 32 bits: {flag!r}")
        if wait_stored is not True and wait_stored is not False:
            raise InvalidMessageError(f"wait_stored is True or False: {wait_stored!r}")

    def __repr__(self) -> str:
        # As of a stored one: a body may be megabytes, and messages end up in logs.
        return f"Message(topic={self.topic!r}, body={len(self.body)} bytes, properties={self.to_properties()!r})"

    def _check_delivery(self) -> None:
        if (self.delay_level != 0) + (self.deliver_after_s is not None) + (self.deliver_at is not None) > 1:
            raise InvalidMessageError("give one of delay_level, deliver_after_s and deliver_at")
        level, after_s, at = self.delay_level, self.deliver_after_s, self.deliver_at
        if not _is_whole(level, 0, _INT32_MAX):
            raise InvalidMessageError(f"delay_level is 0 or a step from 1 up, a whole number: {level!r}")
        if after_s is not None and not _is_time(after_s):
            raise InvalidMessageError(f"deliver_after_s is not a time to wait, in seconds from 0 up: {after_s!r}")
        if at is not None and not isinstance(at, datetime):
            raise InvalidMessageError(f"deliver_at is a datetime with a time zone, not {at!r}")
        if at is not None and at.utcoffset() is None:
            raise InvalidMessageError(f"deliver_at needs a time zone, and {at} has none")

    def to_properties(self) -> dict[str, str]:
        """Return all that travels as properties: the application's own, and what the other fields say.

        A new dictionary, to which a client adds what is its own to say.
        """
        properties = dict(self.properties)
        if self.tag:
            properties[names.TAGS] = self.tag
        if self.keys:
            properties[names.KEYS] = names.KEY_SEPARATOR.join(self.keys)
        if self.sharding_key:
            properties[names.SHARDING_KEY] = self.sharding_key
        if self.delay_level:
            properties[names.DELAY_LEVEL] = str(self.delay_level)
        if self.deliver_after_s is not None:
            properties[names.TIMER_DELAY_MS] = str(round(self.deliver_after_s * 1000))
        if self.deliver_at is not None:
            properties[names.TIMER_DELIVER_MS] = str((self.deliver_at - _EPOCH) // _MILLISECOND)
        # Absent means true.
        if not self.wait_stored:
            properties[names.WAIT_STORED] = "false"
        return properties


def _checked_body(body: bytes | bytearray | memoryview) -> bytes:
    if isinstance(body, bytes):
        return body
    if not isinstance(body, bytearray | memoryview):
        raise InvalidMessageError(f"a body is bytes, not {type(body).__name__}")
    return bytes(body)


def _checked_text(what: str, text: object) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidMessageError(f"{what} is text, not {type(text).__name__}")
    if not text or text.isspace():
        raise InvalidMessageError(f"{what} is blank")
    if NAME_END in text or PAIR_END in text:
        raise InvalidMessageError(f"{what} holds U+0001 or U+0002: {text[:80]!r}")
    return text


def _is_whole(number: object, least: int, most: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and least <= number <= most


def _is_time(seconds: object) -> bool:
    return isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= _INT32_MAX


def _checked_keys(keys: object) -> tuple[str, ...]:
    if isinstance(keys, str):
        found = (keys,) if keys else ()
    elif keys is None:
        return ()
    elif isinstance(keys, bytes | bytearray) or not isinstance(keys, Iterable):
        raise InvalidMessageError(f"keys is text, or several, such as a list of them: {keys!r} is neither")
    else:
        found = tuple(keys)
    for key in found:
        if _checked_text("a key", key) is None:
            raise InvalidMessageError("a key is text, not None")
        if names.KEY_SEPARATOR in key:
            raise InvalidMessageError(f"a key holds a blank, which parts one key from the next: {key[:80]!r}")
    return found


def _checked_properties(properties: Mapping[str, str]) -> dict[str, str]:
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise InvalidMessageError(f"properties is a mapping from names to texts: {properties!r} is none")
    for name, value in properties.items():
        if _checked_text("the name of a property", name) is None or _checked_text(f"property {name!r}", value) is None:
            raise InvalidMessageError(f"property {name!r} is None")
        if name in names.RESERVED_NAMES or name == names.SHARDING_KEY:
            raise InvalidMessageError(f"the property {name} is the system's own")
    return dict(properties)


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """What a broker gives back: a whole record.

    Examples:
        >>> async def handle(message: StoredMessage) -> None:
        ...     print(message.topic, message.tag, message.keys, message.user_properties, message.body)

    The fields are the record's, in its own terms. What takes work is a property, done when asked for; `body` and
    `properties` are then kept. It is a struct outside the garbage collector's care, because consumers read hundreds of
    thousands a second; nothing in it refers to another message.
    """

    topic: str
    queue_id: int
    queue_offset: QueueOffset
    log_position: LogPosition
    stored_body: bytes
    """The body as it was sent: compressed, or a batch, if `sys_flag` says so."""
    raw_properties: bytes
    sys_flag: int
    flag: int
    born_at_ms: int
    """When it was sent, by the producer's clock."""
    raw_born_host: bytes
    stored_at_ms: int
    """When it was stored, by the broker's clock."""
    raw_store_host: bytes
    reconsume_times: int
    prepared_position: LogPosition
    """Of a committed message, where its half stands in the log."""
    body_crc: int
    record_bytes: int
    broker_name: str = ""
    """Not in the record: which broker group it was read from, where the reader has said so."""
    _properties: dict[str, str] | None = None
    _body: bytes | None = None

    @property
    def body(self) -> bytes:
        """The body as its sender had it.

        Raises:
            CompressionError: it cannot be unpacked.
        """
        if not self.sys_flag & COMPRESSED:
            return self.stored_body
        if self._body is None:
            msgspec.structs.force_setattr(self, "_body", unpack(self.stored_body, self.sys_flag))
        return self._body  # type: ignore[return-value]  # force_setattr is not seen to set it

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, the system's too."""
        found = self._properties
        if found is None:
            found = decode_properties(self.raw_properties)
            msgspec.structs.force_setattr(self, "_properties", found)
        return found

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that the application gave."""
        return {name: value for name, value in self.properties.items() if name not in _NOT_THE_USERS}

    def find_property(self, name: str) -> str | None:
        """Return one property, or None. Quicker than `properties` for the first one or two."""
        found = self._properties
        return find_property(self.raw_properties, name) if found is None else found.get(name)

    @property
    def tag(self) -> str | None:
        return self.find_property(names.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.find_property(names.KEYS) or "").split(names.KEY_SEPARATOR)))

    @property
    def sharding_key(self) -> str | None:
        return self.find_property(names.SHARDING_KEY)

    @property
    def unique_id(self) -> str | None:
        """The id its producer gave it; None if that was not a RocketMQ client."""
        return self.find_property(names.UNIQUE_ID)

    @property
    def offset_id(self) -> str:
        """The id that says where the record is; every copy of a message has its own."""
        return encode_offset_id(self.raw_store_host, self.log_position)

    @property
    def message_id(self) -> str:
        """The id to show people: the producer's, or else the record's."""
        return self.unique_id or self.offset_id

    @property
    def born_host(self) -> Host:
        return decode_host(self.raw_born_host)

    @property
    def store_host(self) -> Host:
        return decode_host(self.raw_store_host)

    @property
    def born_at(self) -> datetime:
        """When it was sent, by the producer's clock, in UTC.

        Raises:
            RecordError: at a time no calendar has.
        """
        return _moment(self.born_at_ms)

    @property
    def stored_at(self) -> datetime:
        """When it was stored, by the broker's clock, in UTC.

        Raises:
            RecordError: at a time no calendar has.
        """
        return _moment(self.stored_at_ms)

    @property
    def transaction(self) -> TransactionState:
        return transaction_of(self.sys_flag)

    @property
    def is_wrapped_batch(self) -> bool:
        """The body is a batch that a consumer has to take apart with `unwrap_batches`."""
        return self.sys_flag & WRAPPED_BATCH == WRAPPED_BATCH

    @property
    def queue(self) -> QueueRef:
        return QueueRef(self.topic, self.broker_name, self.queue_id)

    def replace(self, **changes: Any) -> "StoredMessage":
        """Return the message with some fields changed. Size and checksum follow only if they are among them."""
        return msgspec.structs.replace(self, **changes, _properties=None, _body=None)

    def with_properties(self, properties: Mapping[str, str]) -> "StoredMessage":
        """Return the message with these properties and no others.

        Raises:
            PropertyError: they cannot be written.
        """
        return self.replace(raw_properties=encode_properties(properties))

    def __eq__(self, other: object) -> bool:
        return _CONTENT(self) == _CONTENT(other) if isinstance(other, StoredMessage) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.topic, self.queue_id, self.queue_offset, self.log_position))

    def __repr__(self) -> str:
        return (
            f"StoredMessage(topic={self.topic!r}, broker_name={self.broker_name!r}, queue_id={self.queue_id}, "
            f"queue_offset={self.queue_offset}, log_position={self.log_position}, body={len(self.stored_body)} bytes, "
            f"properties={dict(self.properties)!r})"
        )


_CONTENT: Final = attrgetter(*(name for name in StoredMessage.__struct_fields__ if not name.startswith("_")))
_NOT_THE_USERS: Final = names.RESERVED_NAMES | {
    names.SHARDING_KEY,
    names.TRANSACTION_ID,
    names.TRANSACTION_CHECK_TIMES,
    names.TRANSACTION_OFFSET,
    names.TIMER_ROLL_LABEL,
    names.INNER_COUNT,
    names.INNER_BASE,
}


def _moment(milliseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        raise RecordError(f"no calendar has the time {milliseconds} ms") from None
