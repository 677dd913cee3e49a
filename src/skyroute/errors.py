"""The base class of all errors of this package."""

from typing import ClassVar


class SkyrouteError(Exception):
    """Base class of all errors that Skyroute raises. The text says what happened and what to do.

    Examples:
        >>> try:
        ...     await producer.send(message)
        ... except SkyrouteError as error:
        ...     if not error.retryable:
        ...         raise
    """

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later."""

    stale_route: ClassVar[bool] = False
    """Refresh the route from a name server before a retry."""
