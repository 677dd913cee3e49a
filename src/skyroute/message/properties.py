"""The one string that holds all properties of a message, as text in a request and as bytes in a record.

Each pair is a name, U+0001, a value, U+0002. There is no escaping. The names that mean something to brokers and clients
are in `property_names`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from skyroute.message.errors import PropertyError

NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"
PROPERTIES_BYTES_MAX: Final = 32767
"""Records hold the length in two signed bytes."""


def join_properties(properties: Mapping[str, str]) -> str:
    """Write properties as the text that a request carries.

    Raises:
        PropertyError: a name or value would not be read back as it is.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    pairs = len(properties)
    # One look at the whole settles the ordinary case; only what looks odd is taken apart.
    if text.count(PAIR_END) != pairs or text.count(NAME_END) != pairs or "\x01\x02" in text or "" in properties:
        _refuse_unreadable(properties)
    return text


def _refuse_unreadable(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if not name or not value:
            raise PropertyError(f"readers drop a property whose name or value is empty: {name[:80]!r}")
        if NAME_END in name or PAIR_END in name:
            raise PropertyError(f"the name of a property holds a separator: {name[:80]!r}")
        # U+0001 is read back in a value, since only the first one ends a name, and messages of others may have it.
        if PAIR_END in value:
            raise PropertyError(f"the value of property {name[:80]!r} holds a separator")


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Write properties as the bytes that a record or a batch item holds.

    Raises:
        PropertyError: a name or value would not be read back as it is, or they are too long together.
    """
    try:
        raw = join_properties(properties).encode()
    except UnicodeEncodeError as error:
        raise PropertyError("a property holds half a surrogate pair, which no UTF-8 has") from error
    if len(raw) > PROPERTIES_BYTES_MAX:
        raise PropertyError(f"the properties take {len(raw)} bytes; at most {PROPERTIES_BYTES_MAX} are allowed")
    return raw


def split_properties(text: str) -> dict[str, str]:
    """Read properties as all readers do: drop what is no pair or has an empty half; the last of a name wins."""
    pairs = [piece.partition(NAME_END) for piece in text.split(PAIR_END)]
    return {name: value for name, _, value in pairs if name and value}


def decode_properties(raw: bytes) -> dict[str, str]:
    """Read properties from a record. What is not UTF-8 reads as U+FFFD: a message must not be lost for it."""
    return split_properties(_text(raw))


def _text(raw: bytes) -> str:
    # Naming the way to handle errors costs as much again as decoding, and there hardly ever are any.
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


@lru_cache(maxsize=1024)
def _start_of_pair(name: str) -> bytes | None:
    """Return the bytes that start a pair of this name, or None where no pair can have it."""
    if not name or NAME_END in name or PAIR_END in name:
        return None
    return f"{name}\x01".encode("utf-8", "surrogatepass")


def find_property(raw: bytes, name: str) -> str | None:
    """Return one property without reading the others: the same that `decode_properties` would give, or None."""
    wanted = _start_of_pair(name)
    if wanted is None:
        return None
    end = len(raw)
    # From the back, because the last of a name wins.
    while (at := raw.rfind(wanted, 0, end)) >= 0:
        if at == 0 or raw[at - 1] == 2:
            start = at + len(wanted)
            stop = raw.find(b"\x02", start)
            value = raw[start:] if stop < 0 else raw[start:stop]
            if value:
                return _text(value)
        end = at + len(wanted) - 1
    return None


def add_properties(raw: bytes, more: Mapping[str, str]) -> bytes:
    """Return the bytes with further properties behind them, which win over earlier ones of the same name.

    Raises:
        PropertyError: a name or value would not be read back as it is, or all are too long together.
    """
    added = encode_properties(more)
    # Clients before 5.0 leave out the last separator.
    whole = raw + b"\x02" + added if raw and added and not raw.endswith(b"\x02") else raw + added
    if len(whole) > PROPERTIES_BYTES_MAX:
        raise PropertyError(f"the properties take {len(whole)} bytes; at most {PROPERTIES_BYTES_MAX} are allowed")
    return whole


def delete_property(raw: bytes, name: str) -> bytes:
    """Return the bytes without any property of this name, and everything else untouched."""
    wanted = _start_of_pair(name)
    if wanted is None or wanted not in raw:
        return raw
    *pieces, last = raw.split(b"\x02")
    kept = [piece + b"\x02" for piece in pieces if not piece.startswith(wanted)]
    if not last.startswith(wanted):
        kept.append(last)
    return b"".join(kept)
