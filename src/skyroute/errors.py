"""The root of every error this package raises on purpose."""

from typing import ClassVar


class SkyrouteError(Exception):
    """Something we foresaw went wrong; the text says what, and what to do about it.

    Examples:
        >>> try:
        ...     await producer.send(message)
        ... except SkyrouteError as error:
        ...     if not error.retryable:
        ...         raise
    """

    retryable: ClassVar[bool] = False
    """The same call may work later."""

    stale_route: ClassVar[bool] = False
    """Ask a name server for the route before trying again."""
