"""The string of all properties of a message: text in a request, bytes in a record.

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
"""Records have two signed bytes for the length."""


def join_properties(properties: Mapping[str, str]) -> str:
    """Encode properties as the text of a request.

    Raises:
        PropertyError: a name or value would not be decoded as it is.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    pairs = len(properties)
    # Count separators once for the usual case; check each property only if the count is wrong.
    if text.count(PAIR_END) != pairs or text.count(NAME_END) != pairs or "\x01\x02" in text or "" in properties:
        _refuse_unreadable(properties)
    return text


def _refuse_unreadable(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if not name or not value:
            raise PropertyError(f"a property has an empty name or value, which readers would drop: {name[:80]!r}")
        if NAME_END in name or PAIR_END in name:
            raise PropertyError(f"the name of a property contains a separator: {name[:80]!r}")
        # U+0001 is allowed in a value: only the first one ends a name, and other clients' messages may have it.
        if PAIR_END in value:
            raise PropertyError(f"the value of property {name[:80]!r} contains a separator")


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode properties as the bytes of a record or batch item.

    Raises:
        PropertyError: a name or value would not be decoded as it is, or they are too long together.
    """
    try:
        raw = join_properties(properties).encode()
    except UnicodeEncodeError as error:
        raise PropertyError("a property contains a lone surrogate, which UTF-8 cannot encode") from error
    if len(raw) > PROPERTIES_BYTES_MAX:
        raise PropertyError(f"the properties take {len(raw)} bytes (expected at most {PROPERTIES_BYTES_MAX})")
    return raw


def split_properties(text: str) -> dict[str, str]:
    """Decode properties as Apache's clients do: incomplete pairs are dropped, and the last value of a name wins."""
    pairs = [piece.partition(NAME_END) for piece in text.split(PAIR_END)]
    return {name: value for name, _, value in pairs if name and value}


def decode_properties(raw: bytes) -> dict[str, str]:
    """Decode properties of a record. Bytes that are not UTF-8 become U+FFFD."""
    return split_properties(_text(raw))


def _text(raw: bytes) -> str:
    # Passing an errors argument doubles the time, and errors are rare.
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


@lru_cache(maxsize=1024)
def _start_of_pair(name: str) -> bytes | None:
    """Return the bytes that start a pair of this name, or None for an invalid name."""
    if not name or NAME_END in name or PAIR_END in name:
        return None
    return f"{name}\x01".encode("utf-8", "surrogatepass")


def find_property(raw: bytes, name: str) -> str | None:
    """Return one property, or None, without decoding the others. The result is that of `decode_properties`."""
    wanted = _start_of_pair(name)
    if wanted is None:
        return None
    end = len(raw)
    # From the end, because the last value of a name wins.
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
    """Return the bytes with properties appended, which override earlier ones of the same name.

    Raises:
        PropertyError: a name or value would not be decoded as it is, or all are too long together.
    """
    added = encode_properties(more)
    # Clients before 5.0 omit the last separator.
    whole = raw + b"\x02" + added if raw and added and not raw.endswith(b"\x02") else raw + added
    if len(whole) > PROPERTIES_BYTES_MAX:
        raise PropertyError(f"the properties take {len(whole)} bytes (expected at most {PROPERTIES_BYTES_MAX})")
    return whole


def delete_property(raw: bytes, name: str) -> bytes:
    """Return the bytes without properties of this name."""
    wanted = _start_of_pair(name)
    if wanted is None or wanted not in raw:
        return raw
    *pieces, last = raw.split(b"\x02")
    kept = [piece + b"\x02" for piece in pieces if not piece.startswith(wanted)]
    if not last.startswith(wanted):
        kept.append(last)
    return b"".join(kept)
