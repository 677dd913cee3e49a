"""Errors of files: a disk that refuses a call, or a file that cannot be used."""

from skyroute.errors import SkyrouteError


class StorageError(SkyrouteError):
    """Something that is kept in files cannot be read, written or used."""


class FileWriteError(StorageError):
    """A file could not be written. What it held before is still there."""

    retryable = True


class DiskFullError(FileWriteError):
    """The disk has no space left."""


class NoDescriptorError(FileWriteError):
    """No file descriptor is free. Nothing was written or synced, so the call can be repeated."""


class FileReadError(StorageError):
    """A file cannot be read: disk error, or too many open files."""

    retryable = True
