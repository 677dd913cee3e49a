"""Looks at what an application passes, so that a slip is told where it was made, and not where it first hurts."""

from skyroute.client.errors import ClientError


def check_counts(least: int = 1, /, **counts: object) -> None:
    """Let pass whole numbers that are not too small.

    Raises:
        ClientError: one is too small, or no whole number.
    """
    for name, count in counts.items():
        if not isinstance(count, int) or count < least:
            raise ClientError(f"{name} is a whole number, {least} or more: {count!r}")


def check_times(**times: object) -> None:
    """Let pass times to wait, in seconds.

    Raises:
        ClientError: one is not more than 0, or no number.
    """
    for name, time_s in times.items():
        if not isinstance(time_s, int | float) or not time_s > 0:
            raise ClientError(f"{name} is a time in seconds, more than 0: {time_s!r}")


def check_kind(name: str, value: object, kind: type) -> None:
    """Let pass what is of a kind.

    Raises:
        ClientError: it is not.
    """
    if not isinstance(value, kind):
        raise ClientError(f"{name} is a skyroute.{kind.__name__}: {value!r} is none")
