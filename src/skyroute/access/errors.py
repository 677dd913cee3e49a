"""Errors of access control."""

from skyroute.errors import SkyrouteError


class AccessError(SkyrouteError):
    """Access control refuses something, or cannot use what it was given. No text has a password in it."""


class RulesError(AccessError):
    """A user, policy or source address is invalid, or a change of them is impossible."""


class SettingsError(AccessError):
    """The settings contradict each other: the server must not start."""
