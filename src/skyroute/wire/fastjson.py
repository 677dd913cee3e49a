"""JSON as RocketMQ's Java library reads and writes it, where that differs from the standard.

Java writes maps with numeric keys unquoted (`{0:"10.0.0.1:10911"}`), and reads far more than it writes. Newer clients
ask for standard JSON; Java then writes a second dialect with quirks of its own.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import msgspec

from skyroute.wire.errors import WireError

_encode = msgspec.json.Encoder().encode


class JsonError(WireError):
    """Not JSON, not even for Java's lenient reader."""


class Dialect(Enum):
    """How a body is to be written."""

    LEGACY = "legacy"
    """Numeric keys bare, text as it is. What peers before 4.9.4 know."""
    STRICT = "strict"
    """Numeric keys quoted, keys sorted, all but ASCII and the slash escaped."""


BARE_KEYS_MAX: Final = 500_000
"""How many bare keys are quoted in one text: a broker sends one for each queue of its static topics."""

LARGE_BYTES: Final = 24 * 1024 * 1024
"""Up to this length bare keys are allowed for."""

SMALL_BYTES: Final = 64 * 1024
"""Up to this length every leniency of Java's is allowed for; real peers need no more than bare keys."""


def loads(data: bytes) -> Any:
    """Read JSON in any form that Java's reader accepts and that peers send.

    Raises:
        JsonError: it is in none.
    """
    return decode(data, Any)


def decode(data: bytes, kind: Any, lenient_max: int = LARGE_BYTES) -> Any:
    """Read JSON in any form that peers send, as a value of `kind`; a number may come as text.

    Text of more than `lenient_max` bytes has to be standard JSON.

    Raises:
        JsonError: it is not JSON, or not of that kind.
    """
    # Each attempt is dearer than the one before, and only bad syntax is worth another.
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


# Possessive throughout: nothing is tried twice, so the time is linear whatever a peer sends. No choice stands inside of
# what is repeated possessively: Python 3.11.2 does not look at all of them. Compiled when first needed: that takes
# longer than most programs that import this will ever spend on odd JSON.
_TEXT_OR_BARE_KEY: Final = r""""[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|(?<=[{,])\s*+([-\w$]++)(?=\s*+:)"""
_TOKEN: Final = (
    r"""(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+")|(?P<single>'[^'\\]*+(?:\\.[^'\\]*+)*+')|(?P<mark>[{}\[\],])|(?P<colon>\s*+:)"""
    r"""|(?P<blank>\s++)|(?P<atom>[^\s{}\[\],:"']++)|(?P<rest>["'].*+)"""
)
_QUOTED: Final = re.compile(r"\\.|\"", re.DOTALL)
_SURROGATES: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\."
_HALF_CHARS: Final = len(r"\ud83d")


def quote_bare_keys(data: bytes) -> bytes:
    """Put quotes around keys that have none, and leave all else as it is.

    Raises:
        UnicodeDecodeError: the bytes are not UTF-8.
        JsonError: there are more than anybody sends.
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
    """Rewrite Java's lenient JSON as standard JSON: bare and single-quoted keys and texts, superfluous commas.

    Half of a character, which JavaScript's writer lets pass, becomes what Java makes of it in the end: a question mark.
    Whatever it does not understand it leaves for the real parser to refuse.

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
    # One token is held back: a comma until something worth separating follows, an atom until it is known to be a key.
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
                yield held and held + " "  # what a blank kept apart must not grow together
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
"""What no dialect escapes: nearly every name and address."""
_BEYOND_ASCII: Final = "[\x7f-\U0010ffff]"


def _escape_beyond_ascii(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{int.from_bytes(units[at : at + 2]):04X}" for at in range(0, len(units), 2))


def dumps(value: object, dialect: Dialect) -> bytes:
    """Write a body as Java would. Members that are None are left out; nothing is ever indented or spaced.

    The Go client cuts addresses out of the raw text, so a single blank would break it.
    """
    return write(value, dialect).encode("utf-8", "replace")


def write(value: object, dialect: Dialect) -> str:
    """Write a value as text, where it is part of a larger one."""
    match value:
        case str():
            return write_text(value, dialect)
        case bool():
            return "true" if value else "false"
        case int():
            # Beyond what a browser can count to, strict Java writes text.
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


def write_text(text: str, dialect: Dialect) -> str:
    """Write a text with its quotes."""
    if _PLAIN.fullmatch(text):
        return f'"{text}"'
    if dialect is Dialect.LEGACY:
        return f'"{text.translate(_LEGACY_ESCAPES)}"'
    return f'"{re.sub(_BEYOND_ASCII, _escape_beyond_ascii, text.translate(_STRICT_ESCAPES))}"'


def _write_key(key: object, dialect: Dialect) -> str:
    if isinstance(key, str):
        return write_text(key, dialect)
    return str(key) if dialect is Dialect.LEGACY else f'"{key}"'
