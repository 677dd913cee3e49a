"""What is wrong with settings, and with the files that hold them."""

from skyroute.errors import SkyrouteError


class ConfigError(SkyrouteError):
    """A setting, or a file that holds settings, is wrong; one line says which, why and where it came from."""


class MalformedPropertiesError(ConfigError):
    """A text does not follow the syntax of Java properties."""


class StartOnlyError(ConfigError):
    """An update names settings that take effect only when the server starts."""


class BlackListedError(SkyrouteError):
    """An update names a setting that may only be changed where the server runs."""

    def __init__(self, keys: frozenset[str]) -> None:
        super().__init__(f"settings that may not be updated: {', '.join(sorted(keys))}")
        self.keys = keys
