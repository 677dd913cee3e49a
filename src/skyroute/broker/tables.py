"""What the broker's tables of topics, groups and offsets have in common: editions, and members that we do not know."""

from collections.abc import Mapping
from typing import Any

import msgspec

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.routing.registration import DataVersion
from skyroute.wire.calls.topics import Version
from skyroute.wire.fastjson import Dialect, write


def next_version(version: DataVersion, now_ms: int) -> DataVersion:
    """Return the edition that follows on one."""
    return DataVersion(version.state_version, now_ms, version.counter + 1)


def version_members(version: DataVersion) -> dict[str, int]:
    """Return an edition as Apache's files hold it."""
    return {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp_ms}


def read_version(table: Mapping[str, Any]) -> DataVersion | None:
    """Return the edition that a file says it is; None where it says none.

    Raises:
        StoreDamagedError: it says nonsense.
    """
    raw = table.get("dataVersion")
    if raw is None:
        return None
    version = read_as(raw, Version, "dataVersion")
    return DataVersion(version.state_version, version.timestamp, version.counter)


def read_member(table: Mapping[str, Any], name: str, kind: Any) -> Any:
    """Return a member that every such file has, as a value of `kind`.

    Raises:
        StoreDamagedError: it is missing, or no such value.
    """
    if name not in table:
        raise StoreDamagedError(f"{name} is missing")
    return read_as(table[name], kind, name)


def read_as(raw: object, kind: Any, what: str) -> Any:
    """Return a part of a file as a value of `kind`; a number may come as text.

    Raises:
        StoreDamagedError: it is no such value.
    """
    try:
        return msgspec.convert(raw, kind, strict=False)
    except msgspec.ValidationError as error:
        raise StoreDamagedError(f"{what}: {error}") from None


def unknown_members(raw: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Return the members of an object that we have no use for, so that they can be written back for those who have."""
    return {name: value for name, value in raw.items() if name not in known and _is_writable(value)}


def _is_writable(value: object) -> bool:
    try:
        write(value, Dialect.LEGACY)
    except TypeError:
        return False
    return True


def member_names(kind: type[msgspec.Struct]) -> frozenset[str]:
    """Return the names that the members of a struct have in files."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))
