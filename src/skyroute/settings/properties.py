r"""Java's properties syntax: text to settings and back.

It knows nothing of what the settings mean. A file is meant to be ISO-8859-1 with `\uXXXX` for the rest, but people
save UTF-8; bytes that form valid UTF-8 are read as UTF-8, and anything else as ISO-8859-1. Both agree on ASCII, and
ISO-8859-1 prose practically never happens to be valid UTF-8.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from skyroute.settings.errors import ConfigError, MalformedPropertiesError

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n?|\n")
_ENTRY = re.compile(
    r"([^\\=: \t\f]*(?:\\.[^\\=: \t\f]*)*)"  # the key, up to the first separator that is not escaped
    r"[ \t\f]*(?:[=:][ \t\f]*)?"
    r"(.*)",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_UNESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"} | {c: f"\\{c}" for c in "=:#!"}
_NEEDS_ESCAPE = re.compile(r"[^ -~]|[\\=:#!]")


def parse_properties(text: str) -> dict[str, str]:
    """Return the settings of a text, in the order of first appearance; the last duplicate wins.

    Raises:
        MalformedPropertiesError: an escape is not four hexadecimal digits, or half of a surrogate pair stands alone.
    """
    properties = {}
    for line in _logical_lines(text):
        entry = _ENTRY.fullmatch(line)
        assert entry is not None, "a logical line never ends inside an escape"
        properties[_unescape(entry[1])] = _unescape(entry[2])
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """Return ASCII lines that `parse_properties` and Java read back as the same settings."""
    lines = []
    for key, value in properties.items():
        blank_count = len(value) - len(value.lstrip(" "))
        # A reader skips unescaped blanks in a key and at the start of a value.
        escaped_value = "\\ " * blank_count + _escape(value[blank_count:])
        lines.append(f"{_escape(key).replace(' ', chr(92) + ' ')}={escaped_value}\n")
    return "".join(lines)


def read_properties(path: str | Path) -> dict[str, str]:
    """Return the settings of a file.

    Raises:
        ConfigError: the file cannot be read, or is malformed.
    """
    try:
        text = _decode(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read properties file {path}: {reason}") from error
    try:
        return parse_properties(text)
    except MalformedPropertiesError as error:
        raise MalformedPropertiesError(f"{error}, in {path}") from error


def _decode(content: bytes) -> str:
    try:
        # Some editors write a byte order mark, which would become part of the first key.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("iso-8859-1")


def _logical_lines(text: str) -> Iterator[str]:
    """Give lines with continuations joined, without comments and blank lines.

    A line that continues another is never a comment, and its indentation is dropped.
    """
    pending: list[str] = []
    for natural_line in _LINE_END.split(text):
        line = natural_line.lstrip(_BLANKS)
        if not pending and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2 == 1:
            pending.append(line[:-1])
            continue
        if joined := "".join([*pending, line]):
            yield joined
        pending = []
    if joined := "".join(pending):
        yield joined


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    unescaped = _ESCAPE.sub(_unescape_one, text)
    try:
        # Java writes a character beyond the basic plane as two escapes.
        return unescaped.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise MalformedPropertiesError(f"half of a surrogate pair in {text[:80]!r}") from error


def _unescape_one(escape: re.Match[str]) -> str:
    if escape[1] is not None:
        return chr(int(escape[1], 16))
    if escape[2] == "u":
        raise MalformedPropertiesError(f"malformed \\uXXXX escape in {escape.string[:80]!r}")
    return _UNESCAPED.get(escape[2], escape[2])


def _escape(text: str) -> str:
    return _NEEDS_ESCAPE.sub(_escape_one, text)


def _escape_one(found: re.Match[str]) -> str:
    character = found[0]
    if character in _ESCAPED:
        return _ESCAPED[character]
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
