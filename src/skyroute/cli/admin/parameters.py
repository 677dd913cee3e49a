"""Parameter types of mqadmin's options: times, charsets, attribute changes and JSON.

Each is a function for click's `type`: it takes the text and returns the value.
"""

import codecs
import time
from datetime import datetime
from typing import Any, Final

import click
import msgspec

MOMENT_FORM: Final = "now|MS|yyyy-MM-dd#HH:mm:ss:SSS"


def moment(text: str) -> int:
    """Return a time in milliseconds since 1970; a date is in the local time zone.

    Raises:
        BadParameter: it is not a time.
    """
    text = text.strip()
    if text == "now":
        return time.time_ns() // 1_000_000
    try:
        return int(text)
    except ValueError:
        pass
    try:
        when = datetime.strptime(text, "%Y-%m-%d#%H:%M:%S:%f").astimezone()
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time (expected {MOMENT_FORM.replace('|', ', ')})") from None
    return int(when.timestamp() * 1000)


def attribute_changes(text: str) -> dict[str, str | None]:
    """Return attribute changes: `+name=value` sets an attribute, `-name` deletes it (None).

    Raises:
        BadParameter: an entry has another form.
    """
    changes: dict[str, str | None] = {}
    for change in text.split(","):
        name, equals, value = change.strip().partition("=")
        if len(name) > 1 and name[0] == "+" and equals:
            changes[name[1:]] = value
        elif len(name) > 1 and name[0] == "-" and not equals:
            changes[name[1:]] = None
        else:
            raise click.BadParameter(f"{change!r} is not a change (expected +name=value or -name)")
    return changes


def json_object(text: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        BadParameter: it is not a JSON object.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"not a JSON object: {error}") from None


def charset(text: str) -> str:
    """Return Python's name of a charset.

    Raises:
        BadParameter: the charset is unknown.
    """
    try:
        return codecs.lookup(text).name
    except LookupError:
        raise click.BadParameter(f"unknown charset {text!r} (expected a name like UTF-8)") from None
