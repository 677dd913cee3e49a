"""Settings of brokers and name servers: search them, and check a change of one."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from skyroute.client.admin.cluster import ServerProperties
from skyroute.console.errors import ConsoleError
from skyroute.settings.secrets import HIDDEN, may_be_secret, shown

VALUE_CHARS_MAX: Final = 4_000


class Setting(NamedTuple):
    """A setting and its values by server address."""

    key: str
    values: dict[str, str]

    @property
    def is_secret(self) -> bool:
        return may_be_secret(self.key)

    @property
    def agreed(self) -> str | None:
        """The value that all servers have, or None if they differ."""
        different = set(self.values.values())
        return different.pop() if len(different) == 1 else None


def find_settings(texts: ServerProperties, wanted: str) -> list[Setting]:
    """Return the settings whose name or value contains a text; values of secrets are not searched."""
    rows: dict[str, dict[str, str]] = {}
    for address, settings in texts.by_address.items():
        for key, value in settings.items():
            rows.setdefault(key, {})[address] = value
    return [
        Setting(key, values)
        for key, values in sorted(rows.items())
        if wanted in key.lower() or any(wanted in shown(key, value).lower() for value in values.values())
    ]


def read_change(fields: Mapping[str, str]) -> tuple[str, str]:
    """Return the name and the new value of the setting that a form changes.

    Raises:
        ConsoleError: the name is empty or a secret, or the value is too long or not printable.
    """
    key, value = fields.get("key", ""), fields.get("value", "")
    if not key:
        raise ConsoleError("key is empty (expected the name of a setting)")
    if may_be_secret(key):
        raise ConsoleError(
            f"{key} is a secret and changes here are written to the audit log: change it in the server's own file"
        )
    if len(value) > VALUE_CHARS_MAX or not value.isprintable():
        raise ConsoleError(
            f"value is not one line of at most {VALUE_CHARS_MAX} printable characters (it has {len(value)})"
        )
    return key, value


def check_applied(texts: ServerProperties, key: str, value: str) -> None:
    """Check that servers applied a change: some ignore names and values they do not know.

    Raises:
        ConsoleError: a server did not apply it.
    """
    for address, settings in texts.by_address.items():
        if settings.get(key, "").strip() not in (value, HIDDEN):
            state = f"still has {key}={settings[key]}" if key in settings else f"has no setting {key}"
            raise ConsoleError(f"{address} accepted the change but {state}: check the spelling and the server's log")
