"""The key-value config of operators and its JSON file.

Brokers do not repeat it, unlike routes, so a change is on disk before it is visible. Apache's name server reads the
same format: `{"configTable":{namespace:{key:value}}}`.
"""

import asyncio
import logging
from collections.abc import Generator
from pathlib import Path

import msgspec

from skyroute.files.replace import backup_path, damaged_path, replace_file
from skyroute.nameserver.errors import KvConfigRefusedError
from skyroute.settings.errors import ConfigError
from skyroute.wire.calls.kv import encode_kv_table

log = logging.getLogger(__name__)

Table = dict[str, dict[str, str]]


class _KvFile(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    config_table: dict[str, dict[str, str | None]] | None = None


class KvConfig:
    """The table by namespace and key. The key-value handlers write it, the route handlers read it.

    Changes are made one after the other; a thread writes the file, so that nobody waits for the disk but their clients.
    A namespace whose last key was deleted still exists.
    """

    def __init__(self, path: str | Path, bytes_max: int = 16 * 1024 * 1024) -> None:
        self._path = Path(path)
        self._bytes_max = bytes_max
        self._table: Table = {}
        self._bodies: dict[str, bytes] = {}
        """Encoded namespaces, cached until the next change."""
        self._changing = asyncio.Lock()

    def __repr__(self) -> str:
        entry_count = sum(map(len, self._table.values()))
        return f"<KvConfig {self._path} namespaces={len(self._table)} entries={entry_count}>"

    def load(self) -> None:
        """Read the file, or its backup if it is missing or damaged; without both, the table is empty.

        A damaged file is kept as `NAME.damaged-TIME`. Called by the server once, before it serves.

        Raises:
            ConfigError: the file or its backup is damaged, and the other cannot be used.
        """
        backup = backup_path(self._path)
        try:
            table = self._read(self._path)
            if table is None and (table := self._read(backup)) is not None:
                log.warning("kv config file missing, its backup is used file=%s backup=%s", self._path, backup)
        except ConfigError as damage:
            table = self._read_backup(damage)
            kept = self._keep_damaged()
            log.warning(
                "kv config file damaged, its backup is used file=%s backup=%s kept_as=%s reason=%s",
                *(self._path, backup, kept, damage),
            )
        self._table = table or {}
        self._bodies.clear()

    def _read_backup(self, damage: ConfigError) -> Table:
        """Return the table in the backup of a damaged file."""
        advice = "restore it from a copy, or move it away to start without its entries"
        try:
            table = self._read(backup_path(self._path))
        except ConfigError as backup_damage:
            raise ConfigError(f"{damage}; and {backup_damage}: {advice}") from damage
        if table is None:
            raise ConfigError(f"{damage}; and no backup {backup_path(self._path).name} exists: {advice}") from damage
        return table

    def _keep_damaged(self) -> Path:
        """Rename the damaged file: the next change must not replace the intact backup with it."""
        try:
            kept = damaged_path(self._path)
            self._path.replace(kept)
        except OSError as error:
            raise ConfigError(f"cannot move the damaged {self._path} away: {error.strerror}") from error
        return kept

    def get(self, namespace: str, key: str) -> str | None:
        """Return the value, or None if there is no such entry."""
        return self._table.get(namespace, {}).get(key)

    def write_namespace(self, namespace: str) -> Generator[None, None, bytes | None]:
        """Return one namespace, encoded and cached; None if it was never used."""
        entries, body = self._table.get(namespace), self._bodies.get(namespace)
        if entries is not None and body is None:
            body = yield from encode_kv_table(entries)  # a change replaces the table and does not modify this one
            if self._table.get(namespace) is entries:
                self._bodies[namespace] = body
        return body

    @property
    def entry_count(self) -> int:
        """Number of entries in all namespaces."""
        return sum(map(len, self._table.values()))

    def tables(self) -> Table:
        """Return a copy of all namespaces."""
        return {namespace: dict(entries) for namespace, entries in self._table.items()}

    async def put(self, namespace: str, key: str, value: str) -> str | None:
        """Set one entry, and create its namespace if needed. Return its previous value.

        Raises:
            KvConfigRefusedError: the table would exceed its bound.
            FileWriteError: the file cannot be written; nothing was changed.
        """
        async with self._changing:
            before = self.get(namespace, key)
            await self._store({**self._table, namespace: {**self._table.get(namespace, {}), key: value}})
            return before

    async def delete(self, namespace: str, key: str) -> str | None:
        """Remove one entry, and return its value. Return None, and write nothing, if it does not exist.

        Raises:
            FileWriteError: the file cannot be written; nothing was changed.
        """
        async with self._changing:
            if (before := self.get(namespace, key)) is None:
                return None
            # A copy, then one deletion: a loop takes 0.2 s with a million entries.
            entries = dict(self._table[namespace])
            del entries[key]
            await self._store({**self._table, namespace: entries})
            return before

    async def _store(self, table: Table) -> None:
        try:
            content = msgspec.json.encode({"configTable": table})
        except UnicodeEncodeError as error:
            raise KvConfigRefusedError("a namespace, key or value is not valid text") from error
        if len(content) > self._bytes_max:
            raise KvConfigRefusedError(
                f"the table would take {len(content)} bytes, more than kvConfigMaxBytes={self._bytes_max}"
            )
        await asyncio.to_thread(replace_file, self._path, content)
        self._table = table
        self._bodies.clear()

    def _read(self, path: Path) -> Table | None:
        """Return the table in a file, or None if there is no file."""
        try:
            with path.open("rb") as file:
                content = file.read(self._bytes_max + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from error
        if len(content) > self._bytes_max:
            raise ConfigError(f"{path} is larger than kvConfigMaxBytes={self._bytes_max}")
        try:
            stored = msgspec.json.decode(content, type=_KvFile)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is not a key-value table in JSON: {error}") from error
        return {
            namespace: {key: value for key, value in entries.items() if value is not None}
            for namespace, entries in (stored.config_table or {}).items()
        }
