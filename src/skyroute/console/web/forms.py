"""Reads forms: the fields of a request's body, numbers and times."""

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
"""A body up to this size is decoded in about a millisecond; larger ones are decoded in a thread."""
ZONE_MINUTES_MAX: Final = 18 * 60
TIME_MS_MAX: Final = 253_402_300_799_999
"""The last time with a year of four digits."""


async def read_fields(request: Request) -> dict[str, str]:
    """Return the fields of a form; of two with the same name, the last one. `FormLimit` bounds the size.

    Raises:
        HTTPException: the body is not URL-encoded, or has too many fields.
    """
    sent_type = request.headers.get("content-type", FORM_TYPE).partition(";")[0].strip().lower()
    if sent_type != FORM_TYPE:
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"the form has the type {sent_type[:100]} (expected {FORM_TYPE})"
        )
    body = await request.body()
    try:
        return _fields_of(body) if len(body) <= QUICK_BYTES else await run_in_threadpool(_fields_of, body)
    except ValueError:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the form has too many fields (at most {FIELDS_MAX})") from None


def _fields_of(body: bytes) -> dict[str, str]:
    if body.count(b"&") >= FIELDS_MAX:
        raise ValueError
    pairs = (pair.partition(b"=") for pair in body.split(b"&") if pair)
    return {_unescape(name): _unescape(value) for name, _, value in pairs}


def _unescape(text: bytes) -> str:
    """Decode a name or value in steps: urllib needs fifty bytes of memory for an escaped byte."""
    decoded, start = [], 0
    while start < len(text):
        stop = start + DECODED_AT_ONCE
        if (escape := text.rfind(b"%", stop - 2, stop)) >= 0:  # do not cut an escape in two
            stop = escape
        decoded.append(unquote_to_bytes(text[start:stop].replace(b"+", b" ")))
        start = stop
    return b"".join(decoded).decode("utf-8", "replace")


def read_int(fields: Mapping[str, str], name: str, label: str, least: int, most: int) -> int:
    """Return a whole number.

    Raises:
        ConsoleError: it is not a number from `least` to `most`.
    """
    text = fields.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise ConsoleError(f"{label}: “{text[:40]}” is not a whole number from {least} to {most}.")
    return int(text)


def read_time_ms(fields: Mapping[str, str], name: str, label: str, now_s: float) -> int | None:
    """Return a time in milliseconds, or None for an empty field. A time without a zone is in the browser's.

    Raises:
        ConsoleError: it is not a time, or not between 1970 and 9999.
    """
    text = fields.get(name, "").strip()
    if not text:
        return None
    try:
        found_ms = parse_moment(text, datetime.fromtimestamp(now_s, _zone(fields)))
    except (ValueError, OverflowError):
        raise ConsoleError(
            f"{label}: “{text[:40]}” is not a time (expected 2026-11-15 11:00, 11:00, or 10m for ten minutes ago)."
        ) from None
    if not 0 <= found_ms <= TIME_MS_MAX:
        raise ConsoleError(f"{label}: “{text[:40]}” is not between the years 1970 and 9999.")
    return found_ms


def _zone(fields: Mapping[str, str]) -> tzinfo:
    """Return the browser's time zone: by its name, or its current offset if the name is unknown here."""
    name, minutes = fields.get("zone", ""), fields.get("zone_minutes", "")
    try:
        return ZoneInfo(name) if name else UTC
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    try:
        return timezone(timedelta(minutes=max(-ZONE_MINUTES_MAX, min(ZONE_MINUTES_MAX, int(minutes)))))
    except ValueError:
        raise ConsoleError(
            f"The time zone “{name[:40]}” is unknown: write times like 2026-11-15T11:00+08:00."
        ) from None


def in_field(time_ms: int | None) -> str:
    """Return a time for a form field: in UTC, which the page's script converts to the browser's time zone."""
    if time_ms is None:
        return ""
    return datetime.fromtimestamp(time_ms // 1000, UTC).replace(tzinfo=None).isoformat(timespec="seconds")
