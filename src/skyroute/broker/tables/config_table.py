"""A table of topics or groups by name, kept in one JSON file."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.table_file import TableFile
from skyroute.broker.tables.table_format import (
    Entry,
    Pieces,
    entry_pieces,
    next_version,
    object_pieces,
    read_as,
    read_entries,
    read_version,
    unknown_members,
)
from skyroute.remoting.errors import RefusedError
from skyroute.routing.registration import DataVersion
from skyroute.wire.codes import ResponseCode
from skyroute.wire.data_version import version_members


class StoredConfigs(NamedTuple, Generic[Entry]):
    """The content of the file."""

    configs: dict[str, Entry]
    unknown: dict[str, dict[str, Any]]
    """By entry, JSON members that this broker does not know. They are written back."""
    others: dict[str, Any]
    """All members of the file besides the table and its data version."""
    version: DataVersion | None


def read_configs(raw: object, kind: type[Entry], *, what: str, table: str, name: str) -> StoredConfigs[Entry]:
    """Parse the file: the member `table` has the entries, and `name` in an entry repeats its name.

    Raises:
        StoreDamagedError: it is not a table of `what`.
    """
    stored = read_as(raw, dict[str, Any], f"the table of {what}")
    configs, unknown = read_entries(stored, table, kind, name)
    others = unknown_members(stored, frozenset({table, "dataVersion"}))
    return StoredConfigs(configs, unknown, others, read_version(stored))


class ConfigTable(ABC, Generic[Entry]):
    """Entries by name. A caller that changes one calls `table_file.save`."""

    def __init__(
        self, file: JsonFile, initial: Mapping[str, Entry], now_ms: Callable[[], int], *, what: str, entries_max: int
    ) -> None:
        self._now_ms = now_ms
        self._what = what
        self._entries_max = entries_max
        self._table = dict(initial)
        self._unknown: dict[str, dict[str, Any]] = {}
        self._others: dict[str, Any] = {}
        self.version = DataVersion(timestamp_ms=now_ms())
        self.table_file = TableFile(file, self.pieces)
        self.get: Callable[[str], Entry | None] = self._table.get

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {len(self._table)} version={self.version.counter}>"

    @abstractmethod
    def pieces(self) -> Pieces:
        """Return the table as its file has it, in pieces, all of one data version."""

    def _object_pieces(self, table: str, **others: Pieces) -> Pieces:
        members = {**self._others, "dataVersion": version_members(self.version)}
        return object_pieces(members, {**others, table: entry_pieces(self._table, self._unknown)})

    def _restore(self, stored: StoredConfigs[Entry]) -> None:
        self._table.update(stored.configs)
        if len(self._table) > self._entries_max:
            raise StoreDamagedError(f"the table of {self._what} has more than {self._entries_max}")
        self._unknown, self._others = stored.unknown, stored.others
        self.version = stored.version or self.version

    def replace_all(self, stored: StoredConfigs[Entry]) -> list[Entry]:
        """Take over the table of a master with its data version; return new and changed entries.

        Raises:
            StoreDamagedError: it has too many entries; nothing has changed.
        """
        if len(stored.configs) > self._entries_max:
            raise StoreDamagedError(f"the table of {self._what} has more than {self._entries_max}")
        changed = [entry for name, entry in stored.configs.items() if self._table.get(name) != entry]
        for name in self._table.keys() - stored.configs.keys():
            del self._table[name]
        self._table.update(stored.configs)
        self._unknown = stored.unknown
        self.version = stored.version or self.version
        self.table_file.touch()
        return changed

    def all(self) -> Mapping[str, Entry]:
        """Return a live view of all entries."""
        return MappingProxyType(self._table)

    def check_room(self, more: int) -> None:
        """Check that the table has room for `more` entries.

        Raises:
            RefusedError: the table is full.
        """
        if len(self._table) + more > self._entries_max:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"this broker has {self._entries_max} {self._what}, and takes no more"
            )

    def _put(self, name: str, config: Entry) -> None:
        if name not in self._table:
            self.check_room(1)
        self._table[name] = config
        self._changed()

    def _changed(self) -> None:
        self.version = next_version(self.version, self._now_ms())
        self.table_file.touch()
