"""Java's maps whose keys are queues: `{{"brokerName":"b","queueId":0,"topic":"T"}:12}`, which is not JSON.

Decoding turns such keys into text, so that msgspec reads a `dict[str, X]`, and `by_queue` turns them into queues.
Encoding keeps Java's form, because old clients and those in other languages read no other.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire import fastjson
from skyroute.wire.command import Int32
from skyroute.wire.errors import BodyError
from skyroute.wire.fastjson import Dialect, JsonError
from skyroute.wire.fields import is_name

OBJECT_KEYS_MAX: Final = 200_000
"""Maximum number of objects as keys in a text. A broker's whole table of queues has fewer."""

KEYS_A_STEP: Final = 1_000
"""Keys that are decoded in one step, and texts that are passed over: a few milliseconds."""

T = TypeVar("T")

_TEXT_START: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+'
_KEY: Final = rf'\{{[^{{}}"]*+(?:{_TEXT_START}"[^{{}}"]*+)*+\}}(?=\s*+:)'
# An object before a colon is a key, except inside a text. All quantifiers are possessive, a text without an end runs to
# the end, and a brace is followed up to the next one only, so the time is linear in the length of any text. There is no
# alternative inside a possessive group: Python 3.11.2 does not try all of them.
_TEXT_OR_KEY: Final = re.compile(rf'{_TEXT_START}(?:"|\\?\Z)|({_KEY})', re.DOTALL)
_REFERENCE: Final = re.compile(r'\{\s*+"\$ref"\s*+:')
_encode_text = msgspec.json.Encoder().encode


class QueueBody(msgspec.Struct, gc=False, rename="camel"):
    """A queue as it is sent."""

    topic: str
    queue_id: Int32
    broker_name: str | None = None

    def value(self) -> QueueRef:
        """Return the queue.

        Raises:
            BodyError: its topic or broker is not a valid name.
        """
        for name in (self.topic, self.broker_name or "?"):
            if not is_name(name):
                raise BodyError(f"a queue's topic or broker is no name: {name[:80]!r}")
        return QueueRef(self.topic, self.broker_name or "", self.queue_id)


_decode_key = msgspec.json.Decoder(QueueBody, strict=False).decode


def quote_object_keys(data: bytes) -> bytes:
    r"""Put objects that are keys into quotes, `{{"a":1}:2}` into `{"{\"a\":1}":2}`.

    Raises:
        JsonError: the bytes are not UTF-8, or there are more than `OBJECT_KEYS_MAX` such keys.
    """
    steps = quote_in_steps(data)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            quoted: bytes = end.value
            return quoted


def quote_in_steps(data: bytes) -> Generator[None, None, bytes]:
    """As `quote_object_keys`, in steps.

    Raises:
        JsonError: as there.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise JsonError("it is not UTF-8") from None
    pieces: list[str] = []
    at = 0
    for number, found in enumerate(_TEXT_OR_KEY.finditer(text), 1):
        if number % KEYS_A_STEP == 0:
            yield
        if found[1] is not None:
            pieces += (text[at : found.start()], _encode_text(found[1]).decode())
            at = found.end()
            if len(pieces) > 2 * OBJECT_KEYS_MAX:
                raise JsonError(f"it has more than {OBJECT_KEYS_MAX} objects as keys")
    if not pieces:
        return data
    pieces.append(text[at:])
    return "".join(pieces).encode()


def decode_with_queue_keys(body: bytes, kind: type[T]) -> T:
    """Decode a body with queues as keys. The type of such a table is `dict[str, X]`; `by_queue` converts it.

    Unquoted numeric keys and numbers as text are accepted.

    Raises:
        BodyError: it cannot be decoded as this type.
    """
    try:
        decoded: T = fastjson.decode(quote_object_keys(body), kind)
    except JsonError as error:
        raise BodyError(f"not a table of queues: {error}") from None
    return decoded


def queue_of_key(key: str) -> QueueRef:
    """Return the queue of a key in a decoded table.

    Raises:
        BodyError: it is not a queue.
    """
    try:
        return _decode_key(key).value()
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BodyError(f"not a queue: {key[:80]!r}: {error}") from None


def by_queue(table: Mapping[str, T] | None) -> dict[QueueRef, T]:
    """Return a decoded table with queues as keys; an absent table is empty.

    Raises:
        BodyError: a key is not a queue.
    """
    # If one object is a key twice, fastjson 1 writes a reference instead, `{"$ref":"$.offsetTable.null"}`. It does not
    # tell the queue, so the entry is skipped.
    return {queue_of_key(key): value for key, value in (table or {}).items() if not _REFERENCE.match(key)}


def queue_members(queue: QueueRef) -> dict[str, str | int]:
    """Return a queue's members as they are sent."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


class QueueKeys:
    """Encodes queues of one topic and broker as keys. Tables may have tens of thousands of them."""

    __slots__ = ("_head", "_tail")

    def __init__(self, topic: str, broker_name: str) -> None:
        self._head = f'{{"brokerName":{write_legacy(broker_name)},"queueId":'
        self._tail = f',"topic":{write_legacy(topic)}}}'

    def write(self, queue_id: int) -> str:
        """Encode one queue."""
        return f"{self._head}{queue_id}{self._tail}"


def write_legacy(value: object) -> str:
    """Encode a value as Java does in all bodies except routes."""
    return fastjson.write(value, Dialect.LEGACY)


def write_queue_map(table: Mapping[QueueRef, Any], write_value: Callable[[Any], str] = write_legacy) -> str:
    """Encode a table with queues as keys in Java's form, as text: it is always part of a larger body."""
    members: Iterable[str] = (
        f"{write_legacy(queue_members(queue))}:{write_value(value)}" for queue, value in table.items()
    )
    return "{" + ",".join(members) + "}"


def separated(parts: Iterable[str]) -> Iterator[str]:
    """Put commas between nonempty parts of a list or a table."""
    separator = ""
    for part in parts:
        if part:
            yield separator + part
            separator = ","
        else:
            yield ""


def encode_queue_map(name: str, table: Mapping[QueueRef, Any]) -> bytes:
    """Encode a body with one member, a table with queues as keys."""
    return f'{{"{name}":{write_queue_map(table)}}}'.encode("utf-8", "replace")
