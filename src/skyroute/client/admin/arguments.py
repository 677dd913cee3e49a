"""Checks of arguments that only the admin takes. The others are in `skyroute.client.arguments`."""

from collections.abc import Mapping
from typing import Final

from skyroute.client.arguments import check_texts, listed
from skyroute.client.errors import ArgumentError
from skyroute.routing.topology import Permission
from skyroute.wire.calls.groups import GroupConfig

_ALL_PERMISSIONS: Final = int(Permission.READ | Permission.WRITE | Permission.INHERIT)


def check_strings(**strings: object) -> None:
    """Accept strings, also empty ones.

    Raises:
        ArgumentError: one is not a string.
    """
    for name, value in strings.items():
        if not isinstance(value, str):
            raise ArgumentError(f"{name} is {value!r}: expected a string")


def check_permission(permission: object) -> None:
    """Accept a `Permission`, or its number.

    Raises:
        ArgumentError: it is neither.
    """
    if not isinstance(permission, int) or isinstance(permission, bool) or not 0 <= permission <= _ALL_PERMISSIONS:
        raise ArgumentError(f"permission is {permission!r}: expected a Permission (2 to write, 4 to read, 6 for both)")


def check_settings(settings: object) -> None:
    """Accept a mapping of names to strings that is not empty.

    Raises:
        ArgumentError: it is anything else.
    """
    if not isinstance(settings, Mapping) or not settings:
        raise ArgumentError(f"settings is {settings!r}: expected a mapping of names to strings with an entry or more")
    for key, value in settings.items():
        if not isinstance(key, str) or not key or not isinstance(value, str):
            raise ArgumentError(f"settings has {key!r}: {value!r}: expected a mapping of names to strings")


def check_attributes(attributes: object) -> None:
    """Accept None, or a mapping of names to strings or None.

    Raises:
        ArgumentError: it is anything else.
    """
    if attributes is None:
        return
    if not isinstance(attributes, Mapping):
        raise ArgumentError(f"attributes is {attributes!r}: expected a mapping of names to strings or None")
    for key, value in attributes.items():
        if not isinstance(key, str) or not key or not isinstance(value, str | None):
            raise ArgumentError(f"attributes has {key!r}: {value!r}: expected a mapping of names to strings or None")


def check_client_ids(client_ids: object) -> None:
    """Accept several client ids.

    Raises:
        ArgumentError: they are not a collection of strings.
    """
    for client_id in listed("client_ids", client_ids, "client ids"):
        check_texts(**{"each of client_ids": client_id})


def check_group_config(config: object) -> None:
    """Accept the settings of a consumer group.

    Raises:
        ArgumentError: it is not a `GroupConfig`.
    """
    if not isinstance(config, GroupConfig):
        raise ArgumentError(f"config is {config!r}: expected a GroupConfig")
