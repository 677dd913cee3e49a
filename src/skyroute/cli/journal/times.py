"""Times as options of a command."""

from datetime import UTC, datetime

import click

from skyroute.nameserver.journal.times import parse_moment


def as_moment(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    """Return the value of a time option in milliseconds since 1970."""
    if text is None:
        return None
    try:
        return parse_moment(text, datetime.now(UTC).astimezone())
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is not a time (expected 2026-11-15T11:00, 11:00, or 10m for ten minutes ago)"
        ) from error
