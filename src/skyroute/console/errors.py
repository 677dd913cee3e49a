"""Errors of the console."""

from skyroute.errors import SkyrouteError


class ConsoleError(SkyrouteError):
    """A request to the console cannot be fulfilled; the text says why and what to do."""


class UsersError(ConsoleError):
    """The users file cannot be read or written, or a user name or password is not allowed."""
