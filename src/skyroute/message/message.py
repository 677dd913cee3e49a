"""Messages: `Message` as an application sends it, `StoredMessage` as a broker returns it."""

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
    """A message to send.

    Examples:
        >>> message = Message("Orders", b"one coffee", tag="paid", keys="order-17", properties={"shop": "north"})
        >>> message.keys
        ('order-17',)

    Consumers subscribe to `tag`; `keys` find the message in queries. Messages with the same `sharding_key` keep their
    order. One of `delay_level` (from 1), `deliver_after_s` and `deliver_at` delays delivery.

    Raises:
        InvalidMessageError: it breaks a rule, such as a reserved name among `properties`.
        InvalidNameError: the topic's name is invalid.
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
    """For the application; the system does not use it."""
    wait_stored: bool
    """The broker responds only after the flush and replication that it is configured for."""

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
            raise InvalidMessageError(f"flag is not a 32-bit integer: {flag!r}")
        if wait_stored is not True and wait_stored is not False:
            raise InvalidMessageError(f"wait_stored is not True or False: {wait_stored!r}")

    def __repr__(self) -> str:
        # Only the length of the body: it may have megabytes, and messages end up in logs.
        return f"Message(topic={self.topic!r}, body={len(self.body)} bytes, properties={self.to_properties()!r})"

    def _check_delivery(self) -> None:
        if (self.delay_level != 0) + (self.deliver_after_s is not None) + (self.deliver_at is not None) > 1:
            raise InvalidMessageError("delay_level, deliver_after_s and deliver_at exclude each other: give only one")
        level, after_s, at = self.delay_level, self.deliver_after_s, self.deliver_at
        if not _is_whole(level, 0, _INT32_MAX):
            raise InvalidMessageError(f"delay_level is not an integer from 0 up: {level!r}")
        if after_s is not None and not _is_time(after_s):
            raise InvalidMessageError(f"deliver_after_s is not a number of seconds from 0 up: {after_s!r}")
        if at is not None and not isinstance(at, datetime):
            raise InvalidMessageError(f"deliver_at is not a datetime: {at!r}")
        if at is not None and at.utcoffset() is None:
            raise InvalidMessageError(f"deliver_at has no time zone: {at} (use datetime.now(UTC), for example)")

    def to_properties(self) -> dict[str, str]:
        """Return all properties of the request: the application's, and those of the other fields.

        A new dictionary, to which a client adds its own properties.
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
        raise InvalidMessageError(f"a body must be bytes, not {type(body).__name__}")
    return bytes(body)


def _checked_text(what: str, text: object) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidMessageError(f"{what} must be text, not {type(text).__name__}")
    if not text or text.isspace():
        raise InvalidMessageError(f"{what} is blank")
    if NAME_END in text or PAIR_END in text:
        raise InvalidMessageError(f"{what} contains U+0001 or U+0002, which separate properties: {text[:80]!r}")
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
        raise InvalidMessageError(f"keys must be text or a list of texts, not {keys!r}")
    else:
        found = tuple(keys)
    for key in found:
        if _checked_text("a key", key) is None:
            raise InvalidMessageError("a key must be text, not None")
        if names.KEY_SEPARATOR in key:
            raise InvalidMessageError(f"a key contains a blank, which separates keys: {key[:80]!r}")
    return found


def _checked_properties(properties: Mapping[str, str]) -> dict[str, str]:
    if type(properties) is not dict and not isinstance(properties, Mapping):
        raise InvalidMessageError(f"properties must be a mapping from names to texts, not {properties!r}")
    for name, value in properties.items():
        if _checked_text("the name of a property", name) is None or _checked_text(f"property {name!r}", value) is None:
            raise InvalidMessageError(f"property {name!r} is None")
        if name in names.RESERVED_NAMES or name == names.SHARDING_KEY:
            raise InvalidMessageError(f"the property {name} is reserved for the system")
    return dict(properties)


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A record of the commit log, as brokers return it.

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
    """The body as sent: compressed, or a batch, depending on `sys_flag`."""
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
    """For a committed message, the position of its half message in the commit log."""
    body_crc: int
    record_bytes: int
    broker_name: str = ""
    """Broker group that it was read from, if the reader set it. Not in the record."""
    _properties: dict[str, str] | None = None
    _body: bytes | None = None

    @property
    def body(self) -> bytes:
        """The decompressed body.

        Raises:
            CompressionError: it cannot be decompressed.
        """
        if not self.sys_flag & COMPRESSED:
            return self.stored_body
        if self._body is None:
            msgspec.structs.force_setattr(self, "_body", unpack(self.stored_body, self.sys_flag))
        return self._body  # type: ignore[return-value]  # force_setattr is not seen to set it

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, including those of the system."""
        found = self._properties
        if found is None:
            found = decode_properties(self.raw_properties)
            msgspec.structs.force_setattr(self, "_properties", found)
        return found

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that the application set."""
        return {name: value for name, value in self.properties.items() if name not in _NOT_THE_USERS}

    def find_property(self, name: str) -> str | None:
        """Return one property, or None. Faster than `properties` for one or two."""
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
        """The id set by the producer's client; None if the client set none."""
        return self.find_property(names.UNIQUE_ID)

    @property
    def offset_id(self) -> str:
        """The id with broker address and log position; every copy of a message has its own."""
        return encode_offset_id(self.raw_store_host, self.log_position)

    @property
    def message_id(self) -> str:
        """The id to show: the producer's, or else the record's."""
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
            RecordError: the time is not valid.
        """
        return _moment(self.born_at_ms)

    @property
    def stored_at(self) -> datetime:
        """When it was stored, by the broker's clock, in UTC.

        Raises:
            RecordError: the time is not valid.
        """
        return _moment(self.stored_at_ms)

    @property
    def transaction(self) -> TransactionState:
        return transaction_of(self.sys_flag)

    @property
    def is_wrapped_batch(self) -> bool:
        """The body is a batch; `unwrap_batches` returns its messages."""
        return self.sys_flag & WRAPPED_BATCH == WRAPPED_BATCH

    @property
    def queue(self) -> QueueRef:
        return QueueRef(self.topic, self.broker_name, self.queue_id)

    def replace(self, **changes: Any) -> "StoredMessage":
        """Return the message with some fields changed. Size and checksum are not updated."""
        return msgspec.structs.replace(self, **changes, _properties=None, _body=None)

    def with_properties(self, properties: Mapping[str, str]) -> "StoredMessage":
        """Return the message with these properties and no others.

        Raises:
            PropertyError: they cannot be encoded.
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
        raise RecordError(f"not a valid time: {milliseconds} ms") from None
