"""Errors of settings and of their files."""

from skyroute.errors import SkyrouteError


class ConfigError(SkyrouteError):
    """A setting or a settings file is wrong. The text is one line with the setting, the reason and the origin."""


class MalformedPropertiesError(ConfigError):
    """A text is not in the syntax of Java properties."""


class StartOnlyError(ConfigError):
    """An update has settings that take effect only at the start."""


class BlackListedError(SkyrouteError):
    """An update has a setting that cannot be changed remotely."""

    def __init__(self, keys: frozenset[str]) -> None:
        super().__init__(f"settings that cannot be changed remotely: {', '.join(sorted(keys))}")
        self.keys = keys
