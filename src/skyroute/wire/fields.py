"""Reads a request's fields, which are all text, as numbers, names and booleans."""

import re
from collections.abc import Mapping
from typing import Final

from skyroute.wire.errors import FieldError

NAME_CHARS_MAX: Final = 512
"""Maximum length of a name. Java allows 255 characters in topics, groups and hosts."""
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1


def is_name(text: str) -> bool:
    """Return whether a text is a valid name: not empty, not too long, without control characters."""
    # isprintable is fast and a little too strict, so only its False is checked again.
    return 0 < len(text) <= NAME_CHARS_MAX and (text.isprintable() or _UNFIT.search(text) is None)


def required_text(fields: Mapping[str, str], name: str) -> str:
    """Return a required field.

    Raises:
        FieldError: it is missing or empty.
    """
    value = fields.get(name)
    if not value:
        raise FieldError(f"{name} is required")
    return value


def required_name(fields: Mapping[str, str], name: str) -> str:
    """Return a required field that is a name.

    Raises:
        FieldError: it is missing, or not a valid name.
    """
    value = required_text(fields, name)
    if not is_name(value):
        raise FieldError(f"{name} is too long, or has control characters: {value[:80]!r}")
    return value


def optional_name(fields: Mapping[str, str], name: str) -> str | None:
    """Return a field that is a name, or None if it is missing.

    Raises:
        FieldError: it is not a valid name.
    """
    return required_name(fields, name) if fields.get(name) else None


def required_int(fields: Mapping[str, str], name: str) -> int:
    """Return a required 64-bit number.

    Raises:
        FieldError: it is missing or not a number.
    """
    value = fields.get(name)
    if value and len(value) < 10 and value.isdigit() and value.isascii():
        return int(value)  # the usual case
    return _parse_int(name, required_text(fields, name), INT64_MAX)


def required_int32(fields: Mapping[str, str], name: str) -> int:
    """Return a required 32-bit number.

    Raises:
        FieldError: it is missing or not such a number.
    """
    return _parse_int(name, required_text(fields, name), _INT32_MAX)


def optional_int(fields: Mapping[str, str], name: str, default: int, largest: int = _INT32_MAX) -> int:
    """Return a number, or the default if the field is missing.

    Raises:
        FieldError: it is not a number.
    """
    value = fields.get(name)
    return _parse_int(name, value, largest) if value else default


def _parse_int(name: str, value: str, largest: int) -> int:
    # int() alone also accepts blanks, underscores and digits of other scripts.
    if value.isdigit() and value.isascii() and len(value) < 10:
        return int(value)
    if not (value.isascii() and value.lstrip("+-").isdigit()) or len(value) > 20:
        raise FieldError(f"{name} is not a number: {value[:40]!r}")
    try:
        number = int(value)
    except ValueError:
        raise FieldError(f"{name} is not a number: {value[:40]!r}") from None
    if not -largest - 1 <= number <= largest:
        raise FieldError(f"{name} is out of range: {value}")
    return number


def truth(fields: Mapping[str, str], name: str) -> bool:
    """Return whether a field is "true", in any case of letters."""
    value = fields.get(name)
    return value is not None and value.lower() == "true"
