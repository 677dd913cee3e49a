"""Properties files: what is read survives writing, and any setting is taken or refused.

Input: the text of a properties file.
"""

from contextlib import suppress

from skyroute.settings.errors import MalformedPropertiesError
from skyroute.settings.properties import format_properties, parse_properties
from skyroute.wire.calls.settings import decode_settings
from skyroute.wire.errors import WireError


def check(data: bytes) -> None:
    with suppress(WireError):
        decode_settings(data)
    text = data.decode("utf-8", "replace")
    try:
        properties = parse_properties(text)
    except MalformedPropertiesError:
        return
    assert parse_properties(format_properties(properties)) == properties
