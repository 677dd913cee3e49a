"""How consumers of a group fetch messages of a topic if the broker assigns queues: pull or pop."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.table_file import TableFile
from skyroute.broker.tables.table_format import ENTRIES_A_STEP, entry_pieces, read_as, read_member
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.groups import RequestMode
from skyroute.wire.codes import ResponseCode

REQUEST_MODES_MAX: Final = 100_000
"""Pairs of topic and group with a mode."""


def read_request_modes(raw: object) -> dict[tuple[str, str], RequestMode]:
    """Parse the file of request modes: modes by topic and group.

    Raises:
        StoreDamagedError: it is not a table of request modes.
    """
    stored = read_as(raw, dict[str, Any], "the table of request modes")
    by_topic = read_member(stored, "messageRequestModeMap", dict[str, dict[str, RequestMode]])
    return {(mode.topic, mode.group): mode for groups in by_topic.values() for mode in groups.values()}


class RequestModes:
    """The modes by topic and group, and their file."""

    def __init__(self, file: JsonFile) -> None:
        self._table: dict[tuple[str, str], RequestMode] = {}
        self.table_file = TableFile(file, self.pieces)

    def __repr__(self) -> str:
        return f"<RequestModes {len(self._table)}>"

    def load(self) -> None:
        """Read the file.

        Raises:
            StoreDamagedError: neither the file nor its backup can be used.
        """
        self._table = self.table_file.load(read_request_modes) or {}

    def take_over(self, table: dict[tuple[str, str], RequestMode]) -> None:
        """Take over the table of a master."""
        if table != self._table and len(table) <= REQUEST_MODES_MAX:
            self._table = table
            self.table_file.touch()

    def all(self) -> Mapping[tuple[str, str], RequestMode]:
        """Return all modes by topic and group."""
        return MappingProxyType(self._table)

    def put(self, mode: RequestMode) -> None:
        """Set the mode of a group for a topic.

        Raises:
            RefusedError: the table is full.
        """
        key = (mode.topic, mode.group)
        if key not in self._table and len(self._table) >= REQUEST_MODES_MAX:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"this broker has {REQUEST_MODES_MAX} request modes, and takes no more"
            )
        self._table[key] = mode
        self.table_file.touch()

    def pieces(self) -> Iterator[bytes]:
        """Return the table as its file has it, in pieces."""
        table: dict[str, dict[str, RequestMode]] = {}
        for at, ((topic, group), mode) in enumerate(list(self._table.items())):
            table.setdefault(topic, {})[group] = mode
            if at % ENTRIES_A_STEP == 0:
                yield b""
        yield b'{"messageRequestModeMap":{'
        yield from entry_pieces(table)
        yield b"}}"
