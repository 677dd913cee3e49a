"""What mqadmin's flags can hold besides text and numbers: moments, charsets, changes of attributes, JSON.

Each is a function for click's `type`, which takes what was written and returns what it means.
"""

import codecs
import time
from datetime import datetime
from typing import Any, Final

import click
import msgspec

MOMENT_FORM: Final = "now|MS|yyyy-MM-dd#HH:mm:ss:SSS"


def moment(text: str) -> int:
    """Return a time as milliseconds since 1970; a date is of this machine's zone.

    Raises:
        BadParameter: it is none.
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
        raise click.BadParameter(f"{text!r} is no time: write {MOMENT_FORM.replace('|', ', ')}") from None
    return int(when.timestamp() * 1000)


def attribute_changes(text: str) -> dict[str, str | None]:
    """Return changes of attributes: `+name=value` sets one, `-name` drops one, for which None stands.

    Raises:
        BadParameter: it says no such thing.
    """
    changes: dict[str, str | None] = {}
    for change in text.split(","):
        name, equals, value = change.strip().partition("=")
        if len(name) > 1 and name[0] == "+" and equals:
            changes[name[1:]] = value
        elif len(name) > 1 and name[0] == "-" and not equals:
            changes[name[1:]] = None
        else:
            raise click.BadParameter(f"{change!r} is no change: write +name=value or -name")
    return changes


def json_object(text: str) -> dict[str, Any]:
    """Return a JSON object.

    Raises:
        BadParameter: it is none.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"not a JSON object: {error}") from None


def charset(text: str) -> str:
    """Return the name under which Python knows a charset.

    Raises:
        BadParameter: it does not.
    """
    try:
        return codecs.lookup(text).name
    except LookupError:
        raise click.BadParameter(f"{text!r} is no charset that is known here; try UTF-8") from None
