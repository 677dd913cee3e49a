"""Settings of brokers and name servers, as a list that can be searched and changed one at a time."""

from typing import Final, NamedTuple

from skyroute.client.admin.cluster import ServerProperties
from skyroute.console.errors import ConsoleError
from skyroute.console.pages.actions import Fields
from skyroute.settings.secrets import HIDDEN, may_be_secret, shown

VALUE_CHARS_MAX: Final = 4_000


class Setting(NamedTuple):
    """A setting, and what each server that has it has set it to."""

    key: str
    values: dict[str, str]

    @property
    def is_secret(self) -> bool:
        return may_be_secret(self.key)

    @property
    def agreed(self) -> str | None:
        """What all servers have, or None if they differ."""
        different = set(self.values.values())
        return different.pop() if len(different) == 1 else None


def find_settings(texts: ServerProperties, wanted: str) -> list[Setting]:
    """Return the settings with a text in their name or, unless it is a secret, in their value."""
    rows: dict[str, dict[str, str]] = {}
    for address, settings in texts.by_address.items():
        for key, value in settings.items():
            rows.setdefault(key, {})[address] = value
    return [
        Setting(key, values)
        for key, values in sorted(rows.items())
        if wanted in key.lower() or any(wanted in shown(key, value).lower() for value in values.values())
    ]


def read_change(fields: Fields) -> tuple[str, str]:
    """Return which setting a form changes, and to what.

    Raises:
        ConsoleError: it cannot be meant.
    """
    key, value = fields.get("key", ""), fields.get("value", "")
    if not key:
        raise ConsoleError("key is the name of a setting: it is empty")
    if may_be_secret(key):
        raise ConsoleError(
            f"{key} is a secret: change it in the server's own file, since what is done here is recorded"
        )
    if len(value) > VALUE_CHARS_MAX or not value.isprintable():
        raise ConsoleError(f"value is one line of at most {VALUE_CHARS_MAX} characters")
    return key, value


def check_took(texts: ServerProperties, key: str, value: str) -> None:
    """Make sure that servers have a setting as it was asked for: some pass over names and values they do not know.

    Raises:
        ConsoleError: they have not.
    """
    for address, settings in texts.by_address.items():
        if settings.get(key, "").strip() not in (value, HIDDEN):
            said = f"still says {key}={settings[key]}" if key in settings else f"has no setting {key}"
            raise ConsoleError(f"{address} raised no objection, but {said}: look at the spelling, and at its log")
