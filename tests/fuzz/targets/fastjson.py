"""The JSON dialect of Java: standard JSON means the same after each rewriting, and values survive both dialects.

Input: the text.
"""

from contextlib import suppress
from typing import Any

import msgspec

from skyroute.wire.errors import BodyError
from skyroute.wire.fastjson import Dialect, JsonError, dumps, loads, quote_bare_keys, standardise
from skyroute.wire.queue_maps import decode_with_queue_keys, quote_object_keys


def is_writable(value: Any) -> bool:
    """Return whether a value has a form in Java's dialects: no fractions, and null only by absence."""
    match value:
        case str() | bool():
            return True
        case int():
            return abs(value) < 1 << 53  # larger ones are written as text
        case list():
            return all(map(is_writable, value))
        case dict():
            return all(map(is_writable, value.values()))
        case _:
            return False


def check(data: bytes) -> None:
    with suppress(BodyError):
        decode_with_queue_keys(data, Any)
    try:
        value = loads(data)
    except JsonError:
        return
    try:
        standard = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    else:
        for rewrite in (quote_bare_keys, standardise, quote_object_keys):
            rewritten = rewrite(data)
            assert repr(msgspec.json.decode(rewritten)) == repr(standard), (rewrite.__name__, rewritten)
    if is_writable(value):
        for dialect in Dialect:
            assert loads(dumps(value, dialect)) == value, dialect
