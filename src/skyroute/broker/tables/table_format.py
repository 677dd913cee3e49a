"""The file format of the broker's tables: data versions, entries, and JSON members that this broker does not know."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.routing.registration import DataVersion
from skyroute.wire.data_version import Version
from skyroute.wire.fastjson import Dialect, dumps, write

Entry = TypeVar("Entry", bound=msgspec.Struct)
Pieces = Iterator[bytes]
"""A JSON text in pieces of about a millisecond each."""

ENTRIES_A_STEP: Final = 1_000
"""Table entries written in one step, which takes about a millisecond."""


CLAIMED_CHANGES: Final = 1_000_000
"""Changes that a missing master may have made since its slave last asked; far more than there can be."""


def next_version(version: DataVersion, now_ms: int) -> DataVersion:
    """Return the data version after a change."""
    return DataVersion(version.state_version, now_ms, version.counter + 1)


def claim_version(version: DataVersion, now_ms: int) -> DataVersion:
    """Return a data version after any that a missing master may have reached since this one."""
    return DataVersion(version.state_version, now_ms, version.counter + CLAIMED_CHANGES)


def read_version(table: Mapping[str, Any]) -> DataVersion | None:
    """Return the data version of a file; None if the file has none.

    Raises:
        StoreDamagedError: the data version is invalid.
    """
    raw = table.get("dataVersion")
    if raw is None:
        return None
    version: Version = read_as(raw, Version, "dataVersion")
    return version.value()


def read_member(table: Mapping[str, Any], name: str, kind: Any) -> Any:
    """Return a required member of a file as a value of `kind`.

    Raises:
        StoreDamagedError: the member is missing, or not of this kind.
    """
    if name not in table:
        raise StoreDamagedError(f"{name} is missing")
    return read_as(table[name], kind, name)


def read_as(raw: object, kind: Any, what: str) -> Any:
    """Return a part of a file as a value of `kind`; a number may be written as text.

    Raises:
        StoreDamagedError: it is not of this kind.
    """
    try:
        return msgspec.convert(raw, kind, strict=False)
    except msgspec.ValidationError as error:
        raise StoreDamagedError(f"{what}: {error}") from None


def read_entries(
    table: Mapping[str, Any], member: str, kind: type[Entry], name_member: str
) -> tuple[dict[str, Entry], dict[str, dict[str, Any]]]:
    """Return the entries of a member by name, and by name their JSON members that this broker does not know.

    `name_member` is the member of an entry that repeats its name.

    Raises:
        StoreDamagedError: the member is missing, or an entry is not of this kind.
    """
    known = frozenset(field.encode_name for field in msgspec.structs.fields(kind))
    entries: dict[str, Entry] = {}
    unknown: dict[str, dict[str, Any]] = {}
    for name, members in read_member(table, member, dict[str, dict[str, Any]]).items():
        entries[name] = read_as({**members, name_member: name}, kind, f"{member} {name[:80]!r}")
        if others := unknown_members(members, known):
            unknown[name] = others
    return entries, unknown


def unknown_members(raw: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Return the members of an object that this broker does not know, to write them back."""
    return {name: value for name, value in raw.items() if name not in known and _is_writable(value)}


def _is_writable(value: object) -> bool:
    try:
        write(value, Dialect.LEGACY)
    except TypeError:
        return False
    return True


def entry_pieces(table: Mapping[str, object], unknown: Mapping[str, Mapping[str, Any]] | None = None) -> Pieces:
    """Write the members of a JSON object, `ENTRIES_A_STEP` per piece, as the table is at the time of the call.

    `unknown` has JSON members that this broker does not know, by the name of their entry.
    """
    return _entry_pieces(list(table), list(table.values()), unknown or {})


def _entry_pieces(names: Sequence[str], values: Sequence[object], unknown: Mapping[str, Mapping[str, Any]]) -> Pieces:
    for start in range(0, len(names), ENTRIES_A_STEP):
        stop = start + ENTRIES_A_STEP
        part = dict(zip(names[start:stop], values[start:stop], strict=True))
        for name in unknown.keys() & part.keys():
            part[name] = {**unknown[name], **msgspec.to_builtins(part[name])}
        yield (b"," if start else b"") + msgspec.json.encode(part)[1:-1]


def object_pieces(members: Mapping[str, object], tables: Mapping[str, Iterable[bytes]]) -> Pieces:
    """Write a JSON object in pieces: first `members`, which must not be empty, then the tables."""
    yield dumps(members, Dialect.LEGACY)[:-1]
    for name, pieces in tables.items():
        yield b',"%b":{' % name.encode()
        yield from pieces
        yield b"}"
    yield b"}"
