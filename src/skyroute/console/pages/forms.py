"""What people type into forms, read: the fields of a request's body, numbers and moments."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from http import HTTPStatus
from typing import Final
from urllib.parse import unquote_to_bytes
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from skyroute.console.errors import ConsoleError
from skyroute.nameserver.journal.times import parse_moment

FORM_TYPE: Final = "application/x-www-form-urlencoded"
FIELDS_MAX: Final = 200
DECODED_AT_ONCE: Final = 64 * 1024
QUICK_BYTES: Final = 64 * 1024
"""A body up to this size is decoded in about a millisecond; larger ones in a thread."""
ZONE_MINUTES_MAX: Final = 18 * 60
MOMENT_MS_MAX: Final = 253_402_300_799_999
"""The last one with a year of four digits."""


async def read_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form; the last one, where a name comes twice. Its size is `FormLimit`'s business.

    Raises:
        HTTPException: the body is no form as browsers send them without files, or has too many fields.
    """
    sent_type = request.headers.get("content-type", FORM_TYPE).partition(";")[0].strip().lower()
    if sent_type != FORM_TYPE:
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"forms are read as {FORM_TYPE} only, not as {sent_type[:100]}"
        )
    body = await request.body()
    try:
        return _fields_of(body) if len(body) <= QUICK_BYTES else await run_in_threadpool(_fields_of, body)
    except ValueError:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"a form has at most {FIELDS_MAX} fields") from None


def _fields_of(body: bytes) -> dict[str, str]:
    if body.count(b"&") >= FIELDS_MAX:
        raise ValueError
    pairs = (pair.partition(b"=") for pair in body.split(b"&") if pair)
    return {_unescape(name): _unescape(value) for name, _, value in pairs}


def _unescape(text: bytes) -> str:
    """Decode a name or value in steps, because urllib needs fifty bytes of memory for an escaped one."""
    decoded, start = [], 0
    while start < len(text):
        stop = start + DECODED_AT_ONCE
        if (escape := text.rfind(b"%", stop - 2, stop)) >= 0:  # which must not be cut
            stop = escape
        decoded.append(unquote_to_bytes(text[start:stop].replace(b"+", b" ")))
        start = stop
    return b"".join(decoded).decode("utf-8", "replace")


def whole(fields: Mapping[str, str], name: str, label: str, least: int, most: int) -> int:
    """Return a whole number.

    Raises:
        ConsoleError: it is none, or not one that is allowed.
    """
    text = fields.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise ConsoleError(f"{label}: a whole number from {least} to {most}, not “{text[:40]}”.")
    return int(text)


def moment(fields: Mapping[str, str], name: str, label: str, now_s: float) -> int | None:
    """Return a moment in milliseconds; None: nothing was typed. Without a zone, it is of that of the reader.

    Raises:
        ConsoleError: it is no moment that there can be.
    """
    text = fields.get(name, "").strip()
    if not text:
        return None
    try:
        found_ms = parse_moment(text, datetime.fromtimestamp(now_s, _zone(fields)))
    except (ValueError, OverflowError):
        raise ConsoleError(
            f"{label}: write 2026-11-15 11:00, 11:00 for today, or 10m for ten minutes ago, not “{text[:40]}”."
        ) from None
    if not 0 <= found_ms <= MOMENT_MS_MAX:
        raise ConsoleError(f"{label}: “{text[:40]}” is not between 1970, when brokers begin to count, and 9999.")
    return found_ms


def _zone(fields: Mapping[str, str]) -> tzinfo:
    """Return the zone that the page's script told: by its name, or as it is now where the name is unknown here."""
    name, minutes = fields.get("zone", ""), fields.get("zone_minutes", "")
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    try:
        return timezone(timedelta(minutes=max(-ZONE_MINUTES_MAX, min(ZONE_MINUTES_MAX, int(minutes)))))
    except ValueError:
        raise ConsoleError(
            f"the zone “{name[:40]}” is unknown here: write times like 2026-11-15T11:00+08:00."
        ) from None


def in_field(moment_ms: int | None) -> str:
    """Return a moment as its field holds it: in UTC, from which the page's script goes to the reader's zone."""
    if moment_ms is None:
        return ""
    return datetime.fromtimestamp(moment_ms // 1000, UTC).replace(tzinfo=None).isoformat(timespec="seconds")
