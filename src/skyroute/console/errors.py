"""What the console refuses."""

from skyroute.errors import SkyrouteError


class ConsoleError(SkyrouteError):
    """The console cannot do what it was asked to; the text says why, and what would help."""


class UsersError(ConsoleError):
    """The file of those who may sign in cannot be used, or would have to hold what it cannot."""
