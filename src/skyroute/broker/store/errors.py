"""Errors of a store; those of its files are in `skyroute.files.errors`."""

from skyroute.files.errors import StorageError


class StoreLockedError(StorageError):
    """Another process, or another store of this process, has the folder open."""


class StoreDamagedError(StorageError):
    """The folder holds files that recovery must not change; an operator has to decide."""


class StoreClosedError(StorageError):
    """The store is closed, or a flush failed; only opening it again helps. Reads may still work."""


class RecordTooLargeError(StorageError):
    """A message, or a batch that must stay together, is larger than a segment of the log."""


class ForeignLogError(StorageError):
    """Bytes of another broker's log do not continue this one, or belong to files of another size."""
