"""Parses and formats times."""

import re
from datetime import UTC, datetime, time, timedelta
from typing import Final

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_moment(text: str, now: datetime) -> int:
    """Return milliseconds since the epoch.

    Accepts `2026-11-15 11:00`, `11:00` (today), `90s`, `10m`, `2h` or `1d` (ago), and milliseconds since the epoch.
    Times without a zone are in the zone of `now`.

    Raises:
        ValueError: the text has another form.
    """
    text = text.strip()
    try:
        if ago := _AGO.fullmatch(text):
            return _to_ms(now - timedelta(seconds=float(ago[1]) * _UNITS[ago[2]]))
        if text.isdigit():
            return int(text)
        try:
            moment = datetime.combine(now.date(), time.fromisoformat(text))
        except ValueError:
            moment = datetime.fromisoformat(text)
        return _to_ms(moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo))
    except OverflowError as error:
        raise ValueError(f"{text} is out of range") from error


def _to_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def show_moment(milliseconds: int) -> str:
    """Return the local time, with milliseconds; the number itself if it is outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
