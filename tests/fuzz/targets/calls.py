"""Headers and bodies of all requests and responses: each is decoded, or refused as malformed.

Input: a line with the name of the decoder (all are tried if there is no such one); fields as `name=value` lines; an
empty line; the body.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

from skyroute.message.errors import MessageError
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import WireError

MODULES: Final = (
    *("clients", "connections", "consumers", "groups", "kv", "offsets", "progress", "pull", "query"),
    *("registration", "route", "send", "send_back", "settings", "topics", "transaction", "watch"),
)


def find_decoders() -> dict[str, Callable[..., Any]]:
    """Return every decoder of a request, a response or a body."""
    found: dict[str, Callable[..., Any]] = {}
    for name in MODULES:
        module = import_module(f"skyroute.wire.calls.{name}")
        for each, value in vars(module).items():
            if each.startswith("decode_") and inspect.isfunction(value) and value.__module__ == module.__name__:
                parameters = list(inspect.signature(value).parameters.values())
                if len(parameters) == 1:
                    found[f"{name}.{each}"] = value
    return found


DECODERS: Final = dict(sorted(find_decoders().items()))


def argument(decode: Callable[..., Any], fields: dict[str, str], body: bytes) -> Request | Response | bytes | str:
    (parameter,) = inspect.signature(decode).parameters.values()
    match parameter.annotation:
        case kind if kind is Request:
            return Request(fields=fields, body=body, version=479)
        case kind if kind is Response:
            return Response(fields=fields, body=body)
        case kind if kind is bytes:
            return body
        case kind if kind is str:
            return body.decode("utf-8", "replace")
        case kind:
            raise TypeError(f"{decode.__name__} takes {kind}, which this target does not know")


def check(data: bytes) -> None:
    name, _, rest = data.partition(b"\n")
    lines, _, body = rest.partition(b"\n\n")
    fields = dict(line.split("=", 1) for line in lines.decode("utf-8", "replace").split("\n") if "=" in line)
    chosen = DECODERS.get(name.decode("utf-8", "replace"))
    for decode in DECODERS.values() if chosen is None else (chosen,):
        with suppress(WireError, MessageError):
            found = decode(argument(decode, fields, body))
            if isinstance(found, Iterator):
                list(found)
