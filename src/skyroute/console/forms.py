"""What people type into forms, read: numbers and moments."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from skyroute.console.errors import ConsoleError
from skyroute.nameserver.journal.times import parse_moment

ZONE_MINUTES_MAX: Final = 18 * 60
MOMENT_MS_MAX: Final = 253_402_300_799_999
"""The last one with a year of four digits."""


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
