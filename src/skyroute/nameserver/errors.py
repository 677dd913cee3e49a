"""Errors of the name server's files."""

from skyroute.errors import SkyrouteError


class KvConfigRefusedError(SkyrouteError):
    """An entry is refused: the key-value table would exceed its bound, or the entry is not valid text."""


class SnapshotError(SkyrouteError):
    """A snapshot of the route table cannot be used; the text says why."""


class StateFolderError(SkyrouteError):
    """The folder of journal and snapshot cannot be used; the text says why."""


class FolderInUseError(StateFolderError):
    """Another name server uses the same folder."""


class DamagedJournalError(SkyrouteError):
    """A line of a journal is not a record; the text says which."""
