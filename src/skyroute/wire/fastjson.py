"""JSON as RocketMQ's Java library reads and writes it, where that differs from the standard.

Java writes maps with unquoted numeric keys (`{0:"10.0.0.1:10911"}`), and reads much more than it writes. Newer clients
request standard JSON, which Java writes with other differences.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from skyroute.wire.errors import WireError

_encode = msgspec.json.Encoder().encode


class JsonError(WireError):
    """The text is not JSON, not even in a form that Java accepts."""


class Dialect(Enum):
    """The form in which a body is written."""

    LEGACY = "legacy"
    """Unquoted numeric keys; text is not escaped. For peers before 4.9.4."""
    STRICT = "strict"
    """Quoted and sorted keys; the slash and everything beyond ASCII are escaped."""


BARE_KEYS_MAX: Final = 500_000
"""Maximum number of unquoted keys in a text. A broker sends one for each queue of its static topics."""

LARGE_BYTES: Final = 24 * 1024 * 1024
"""Maximum length of a text with unquoted keys."""

SMALL_BYTES: Final = 64 * 1024
"""Maximum length of a text in any other form that Java accepts. Known peers send unquoted keys only."""


def loads(data: bytes) -> Any:
    """Decode JSON in any form that Java accepts and peers send.

    Raises:
        JsonError: it is not JSON.
    """
    return decode(data, Any)


def decode(data: bytes, kind: Any, lenient_max: int = LARGE_BYTES) -> Any:
    """Decode JSON in any form that peers send, as a value of `kind`. Numbers may be text.

    A text of more than `lenient_max` bytes must be standard JSON.

    Raises:
        JsonError: it is not JSON, or not of that kind.
    """
    # Each attempt costs more than the one before. Only a syntax error leads to another.
    attempts: list[Callable[[bytes], bytes]] = [bytes, quote_bare_keys, standardise]
    lenient = len(data) <= min(lenient_max, LARGE_BYTES), len(data) <= min(lenient_max, SMALL_BYTES)
    attempts = attempts[: 1 + sum(lenient)]
    reason = ""
    for prepare in attempts:
        try:
            return msgspec.json.decode(prepare(data), type=kind, strict=False)
        except msgspec.ValidationError as error:
            raise JsonError(str(error)) from None
        except RecursionError:
            raise JsonError("it is nested too deeply") from None
        except UnicodeDecodeError:
            raise JsonError("it is not UTF-8") from None
        except msgspec.DecodeError as error:
            reason = reason or str(error)
    raise JsonError(reason)


# All quantifiers are possessive, so the time is linear in the length of any text. There is no alternative inside a
# possessive group: Python 3.11.2 does not try all of them. The patterns are compiled when first used: that takes longer
# than most programs spend on such JSON.
_TEXT_OR_BARE_KEY: Final = r""""[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|(?<=[{,])\s*+([-\w$]++)(?=\s*+:)"""
_TOKEN: Final = (
    r"""(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+")|(?P<single>'[^'\\]*+(?:\\.[^'\\]*+)*+')|(?P<mark>[{}\[\],])|(?P<colon>\s*+:)"""
    r"""|(?P<blank>\s++)|(?P<atom>[^\s{}\[\],:"']++)|(?P<rest>["'].*+)"""
)
_QUOTED: Final = re.compile(r"\\.|\"", re.DOTALL)
_SURROGATES: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\."
_HALF_CHARS: Final = len(r"\ud83d")


def quote_bare_keys(data: bytes) -> bytes:
    """Put quotes around unquoted keys.

    Raises:
        UnicodeDecodeError: the bytes are not UTF-8.
        JsonError: there are more than `BARE_KEYS_MAX`.
    """
    text = data.decode()
    pieces: list[str] = []
    at = 0
    for found in re.finditer(_TEXT_OR_BARE_KEY, text, re.DOTALL):
        if found[1] is not None:
            pieces += (text[at : found.start(1)], '"', found[1], '"')
            at = found.end()
            if len(pieces) > 4 * BARE_KEYS_MAX:
                raise JsonError(f"it has more than {BARE_KEYS_MAX} bare keys")
    pieces.append(text[at:])
    return "".join(pieces).encode()


def standardise(data: bytes) -> bytes:
    """Rewrite what Java accepts as standard JSON: unquoted and single-quoted keys and texts, extra commas.

    A lone surrogate, which JavaScript writes, becomes a question mark, as in Java. What cannot be rewritten stays as it
    is, and the parser rejects it.

    Raises:
        UnicodeDecodeError: the bytes are not UTF-8.
    """
    text = re.sub(_SURROGATES, _replace_half, data.decode(), flags=re.DOTALL)
    return "".join(_standard_tokens(text)).encode("utf-8", "replace")


def _requote(match: re.Match[str]) -> str:
    """Rewrite an escape of a single-quoted text for double quotes."""
    return {'"': '\\"', "\\'": "'"}.get(match.group(), match.group())


def _replace_half(match: re.Match[str]) -> str:
    return "?" if len(match.group()) == _HALF_CHARS else match.group()


def _standard_tokens(text: str) -> Iterator[str]:
    # One token is held back: a comma until a value follows, an atom until it is known whether it is a key.
    held, last = "", "["
    for match in re.compile(_TOKEN, re.DOTALL).finditer(text):
        kind, token = match.lastgroup, match.group()
        if kind == "blank":
            continue
        if kind == "colon":
            if held and held != "," and held[0] != '"':
                held = _encode(held).decode()
            yield held + ":"
            held, last = "", ":"
        elif token == ",":
            if held == "," or (not held and last in "[{"):
                continue
            yield held
            held, last = ",", ","
        else:
            if held == ",":
                yield "" if token in "}]" else ","
            else:
                yield held and held + " "  # the blank that separated two atoms stays
            held, last = "", token
            if kind == "single":
                held = f'"{_QUOTED.sub(_requote, token[1:-1])}"'
            elif kind == "mark":
                yield token
            else:
                held = token
    yield held


_LEGACY_ESCAPES: Final = {
    **{number: f"\\u{number:04X}" for number in range(0x20)},
    **{ord(plain): f"\\{letter}" for plain, letter in zip('"\\\b\f\n\r\t', '"\\bfnrt', strict=True)},
}
_STRICT_ESCAPES: Final = {**_LEGACY_ESCAPES, ord("/"): "\\/"}
_BROWSER_INT_MAX: Final = (1 << 53) - 1
_PLAIN: Final = re.compile(r"[\w.:;,|%@#-]*+", re.ASCII)
"""Text that no dialect escapes: nearly all names and addresses."""
_BEYOND_ASCII: Final = "[\x7f-\U0010ffff]"


def _escape_beyond_ascii(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2]):04X}" for at in range(0, len(units), 2))


def dumps(value: object, dialect: Dialect) -> bytes:
    """Encode a body as Java does. Members that are None are left out, and there is no white space.

    The Go client cuts addresses out of the raw text, so a single blank would break it.
    """
    return write(value, dialect).encode("utf-8", "replace")


def write(value: object, dialect: Dialect) -> str:
    """Encode a value that is part of a larger one, as text."""
    match value:
        case str():
            return write_text(value, dialect)
        case bool():
            return "true" if value else "false"
        case int():
            # Java writes integers beyond JavaScript's exact range as text.
            return f'"{value}"' if dialect is Dialect.STRICT and abs(value) > _BROWSER_INT_MAX else str(value)
        case Mapping():
            items = [(key, member) for key, member in value.items() if member is not None]
            if dialect is Dialect.STRICT:
                items.sort()
            members = [f"{_write_key(key, dialect)}:{write(member, dialect)}" for key, member in items]
            return "{" + ",".join(members) + "}"
        case Sequence():
            return "[" + ",".join(write(item, dialect) for item in value) + "]"
        case _:
            raise TypeError(f"no JSON form for {type(value).__name__}")


def write_numbers(numbers: Mapping[int, int], dialect: Dialect) -> str:
    """Encode a map of 32-bit integers, as `write` does and four times as fast: a static topic may have 100,000."""
    if dialect is Dialect.STRICT:
        return "{" + ",".join([f'"{key}":{value}' for key, value in sorted(numbers.items())]) + "}"
    return "{" + ",".join([f"{key}:{value}" for key, value in numbers.items()]) + "}"


def write_text(text: str, dialect: Dialect) -> str:
    """Encode a text with its quotes."""
    if _PLAIN.fullmatch(text):
        return f'"{text}"'
    if dialect is Dialect.LEGACY:
        return f'"{text.translate(_LEGACY_ESCAPES)}"'
    return f'"{re.sub(_BEYOND_ASCII, _escape_beyond_ascii, text.translate(_STRICT_ESCAPES))}"'


def _write_key(key: object, dialect: Dialect) -> str:
    if isinstance(key, str):
        return write_text(key, dialect)
    return str(key) if dialect is Dialect.LEGACY else f'"{key}"'
