"""What a name server refuses to store, and what it cannot keep."""

from skyroute.errors import SkyrouteError


class KvConfigRefusedError(SkyrouteError):
    """The key-value table cannot take this entry: it would grow past its bound, or is not text."""


class SnapshotError(SkyrouteError):
    """A snapshot of the route table cannot be used; the text says why."""


class StateFolderError(SkyrouteError):
    """The folder of journal and snapshot cannot be used; the text says why."""


class FolderInUseError(StateFolderError):
    """Another name server keeps its journal and snapshot in the same folder."""


class DamagedJournalError(SkyrouteError):
    """A line of a journal is no record; the text says which."""
