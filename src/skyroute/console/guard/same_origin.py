"""Checks that a page of this console sent a request, from the headers that browsers set.

All ports of a host share cookies: a page of another port can set one, so a cookie proves nothing here.
"""

from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

PORTS: Final = {"http": 80, "https": 443}
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
ORIGIN_CHARS_MAX: Final = 200
"""Length of an origin on an error page."""


def own_origin(request: Request) -> str:
    """Return the origin of this console as the browser of a request sees it."""
    return f"{request.scope['scheme']}://{request.headers.get('host', '')}"


def foreign_origin(request: Request) -> str | None:
    """Return the foreign origin of a request that may change something; None if there is no sign of one.

    Programs other than browsers send neither `Origin` nor `Sec-Fetch-Site`: for them only the form's token counts.
    """
    if request.method in SAFE_METHODS:
        return None
    origin = request.headers.get("origin")
    has_valid_token = origin is None or (_parts(origin) is not None and _parts(origin) == _parts(own_origin(request)))
    if has_valid_token and request.headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return None
    return "another site" if origin is None else origin[:ORIGIN_CHARS_MAX]


def _parts(origin: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port; None for `null` and other values without them."""
    try:
        found = urlsplit(origin)
        port = found.port or PORTS.get(found.scheme)
    except ValueError:
        return None
    if port is None or not found.hostname or found.geturl() != f"{found.scheme}://{found.netloc}":
        return None
    return found.scheme, found.hostname, port
