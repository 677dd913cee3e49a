"""Whether a page of this console sent a request, by what browsers say of it.

Cookies are shared by all ports of a host: a page of another port can plant one, so a cookie proves nothing here.
"""

from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

PORTS: Final = {"http": 80, "https": 443}
SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
ORIGIN_CHARS_MAX: Final = 200
"""Of an origin that is shown to people."""


def own_origin(request: Request) -> str:
    """Return the origin of our pages, as the browser that sent this request sees it."""
    return f"{request.scope['scheme']}://{request.headers.get('host', '')}"


def foreign_origin(request: Request) -> str | None:
    """Return which other origin sent a request that may change something; None if nothing says that one did.

    Programs other than browsers send neither `Origin` nor `Sec-Fetch-Site`: for them the form's token decides alone.
    """
    if request.method in SAFE_METHODS:
        return None
    origin = request.headers.get("origin")
    is_ours = origin is None or (_parts(origin) is not None and _parts(origin) == _parts(own_origin(request)))
    if is_ours and request.headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
        return None
    return "another site" if origin is None else origin[:ORIGIN_CHARS_MAX]


def _parts(origin: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port; None for `null` and whatever else has none."""
    try:
        found = urlsplit(origin)
        port = found.port or PORTS.get(found.scheme)
    except ValueError:
        return None
    if port is None or not found.hostname or found.geturl() != f"{found.scheme}://{found.netloc}":
        return None
    return found.scheme, found.hostname, port
