"""Shows a message body as text, JSON or hex, with a bound on the size."""

import re
from codecs import getincrementaldecoder
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Final

import msgspec

TEXT_BYTES_MAX: Final = 256 * 1024
HEX_BYTES_MAX: Final = 16 * 1024
"""A byte takes five characters on the page."""
JSON_DEPTH_MAX: Final = 64
"""Deeper JSON would be mostly indentation."""
PREVIEW_CHARS: Final = 120

_HEX_ROW: Final = 16
_CONTROLS: Final = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"
_BINARY: Final = re.compile(f"[{_CONTROLS}]")
# Characters that change the writing direction can make a text look like another one.
_UNSEEN: Final = re.compile(f"[{_CONTROLS}\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# An unterminated string extends to the end of the body, so that no byte is scanned twice.
_STRING_OR_BRACKET: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


class Form(StrEnum):
    """How a body is shown."""

    TEXT = "text"
    JSON = "json"
    HEX = "hex"


@dataclass(frozen=True, slots=True)
class ShownBody:
    """A body as a page shows it."""

    form: Form
    text: str
    shown_bytes: int
    """Bytes of the body that are shown; fewer than its size if it is truncated."""


def show_body(body: bytes, form: Form | None = None) -> ShownBody:
    """Return a body in a form; None: the form that fits the body. A body that is not JSON is shown as text."""
    if form is not Form.TEXT and form is not Form.HEX and (pretty := _pretty(body)) is not None:
        return ShownBody(Form.JSON, pretty, len(body))
    if form is Form.HEX or (form is None and not _is_text(body, TEXT_BYTES_MAX)):
        return ShownBody(Form.HEX, _hex(body[:HEX_BYTES_MAX]), min(len(body), HEX_BYTES_MAX))
    text = escape_invisible(_decode(body, TEXT_BYTES_MAX, "backslashreplace"))
    return ShownBody(Form.TEXT, text, min(len(body), TEXT_BYTES_MAX))


def preview(body: bytes) -> str:
    """Return the beginning of a text in one line; an empty text for a binary body."""
    bytes_max = 4 * PREVIEW_CHARS
    if not _is_text(body, bytes_max):
        return ""
    line = " ".join(escape_invisible(_decode(body, bytes_max, "strict")).split())
    return line if len(line) <= PREVIEW_CHARS and len(body) <= bytes_max else f"{line[:PREVIEW_CHARS]}…"


def escape_invisible(text: str) -> str:
    """Return a text with escapes for invisible characters that change how others are shown."""
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _is_text(body: bytes, bytes_max: int) -> bool:
    try:
        return _BINARY.search(_decode(body, bytes_max, "strict")) is None
    except UnicodeDecodeError:
        return False


def _decode(body: bytes, bytes_max: int, errors: str) -> str:
    # A character that is cut in two is left out.
    return getincrementaldecoder("utf-8")(errors).decode(body[:bytes_max], final=len(body) <= bytes_max)


def _pretty(body: bytes) -> str | None:
    if len(body) > TEXT_BYTES_MAX or body.lstrip()[:1] not in (b"{", b"["):
        return None
    steps = (1 if found in b"[{" else -1 for found in _STRING_OR_BRACKET.findall(body) if found[:1] != b'"')
    if max(accumulate(steps), default=0) > JSON_DEPTH_MAX:
        return None
    try:
        # Formats the text itself: numbers keep their digits, and duplicate names stay.
        pretty = msgspec.json.format(body, indent=2).decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return escape_invisible(pretty) if len(pretty) <= 4 * TEXT_BYTES_MAX else None


def _hex(body: bytes) -> str:
    lines = []
    for at in range(0, len(body), _HEX_ROW):
        row = body[at : at + _HEX_ROW]
        signs = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        lines.append(f"{at:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {signs}")
    return "\n".join(lines)
