"""What a store refuses, and what the disk refuses it."""

from skyroute.errors import SkyrouteError


class StoreError(SkyrouteError):
    """The store cannot do what was asked."""


class StoreLockedError(StoreError):
    """Another process, or another store of this one, has the folder open."""


class StoreDamagedError(StoreError):
    """The folder holds files that no recovery may touch without a person's word."""


class StoreClosedError(StoreError):
    """The store is closed, or failed in a way that only opening it again can mend. Reads go on where they can."""


class StoreFullError(StoreError):
    """There is no room left on the disk. Nothing was stored; reads go on."""

    retryable = True


class StoreWriteError(StoreError):
    """The disk refused. Nothing was stored, and the store is as it was before."""

    retryable = True


class StoreReadError(StoreError):
    """A file cannot be read: disk error, or too many open files."""

    retryable = True


class RecordTooLargeError(StoreError):
    """A message, or a batch that has to stay together, is larger than a segment of the log."""
