"""Disks that fail, and small stores on them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from skyroute.broker.store.draft import Draft
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.settings import StoreSettings
from skyroute.files.disk import Disk
from skyroute.files.errors import DiskFullError, FileWriteError
from skyroute.message.host import encode_host
from skyroute.message.message import StoredMessage
from skyroute.message.properties import encode_properties
from skyroute.message.record import decode_records

NOW_MS: Final = 1_700_000_000_000
BORN: Final = encode_host("10.0.0.1", 40_000)
HERE: Final = encode_host("127.0.0.1", 10_911)

SMALL: Final = StoreSettings(
    log_segment_bytes=4096, queue_segment_units=10, batch_segment_units=10, index_slots=16, index_entries=32
)
"""Small files: a few messages reach every boundary."""


BLOCK_TIMEOUT_S: Final = 30.0


class FailingDisk(Disk):
    """Fails once, at the n-th call that changes a file; calls before and after it succeed."""

    def __init__(self, fail_at: int = -1, *, full: bool = False, half: bool = False) -> None:
        self.calls = 0
        self.fail_at = fail_at
        self.failed = ""
        self._full = full
        self._half = half
        self.counts: Counter[str] = Counter()

    def _count(self, what: str) -> None:
        self.calls += 1
        self.counts[what] += 1
        if self.calls == self.fail_at:
            self.failed = what
            raise (DiskFullError if self._full else FileWriteError)(f"this {what} fails, in this test")

    def open(self, path: Path, size: int) -> int:
        self._count("open")
        return super().open(path, size)

    def create(self, path: Path, *, like: Path | None = None) -> int:
        self._count("create")
        return super().create(path, like=like)

    def write(self, descriptor: int, data: bytes | bytearray, at: int) -> None:
        if self._half and self.calls + 1 == self.fail_at:
            super().write(descriptor, data[: len(data) // 2], at)
        self._count("write")
        super().write(descriptor, data, at)

    def reserve(self, descriptor: int, size: int) -> None:
        self._count("reserve")
        super().reserve(descriptor, size)

    def cut(self, descriptor: int, at: int, size: int) -> None:
        self._count("cut")
        super().cut(descriptor, at, size)

    def make_folder(self, folder: Path) -> None:
        self._count("make_folder")
        super().make_folder(folder)

    def sync(self, descriptor: int) -> None:
        self._count("sync")

    def sync_folder(self, folder: Path) -> None:
        pass

    def remove(self, path: Path) -> None:
        self._count("remove")
        super().remove(path)

    def replace(self, source: Path, target: Path) -> None:
        self._count("replace")
        super().replace(source, target)

    def link(self, source: Path, target: Path) -> bool:
        self._count("link")
        return super().link(source, target)


class KilledError(BaseException):
    """The process is killed here."""


class KillingDisk(FailingDisk):
    """Kills the process at the n-th call that changes a file: neither it nor any later one has an effect."""

    def _count(self, what: str) -> None:
        self.calls += 1
        if self.calls >= self.fail_at:
            self.failed = what
            raise KilledError


class RestartedMachineKillingDisk(KillingDisk):
    """As `KillingDisk`, after a restart of the machine."""

    def boot_id(self) -> str:
        return "another-boot"


class FullDisk(Disk):
    """Has no space while `is_full`: writes fail, all else succeeds."""

    is_full = False

    def write(self, descriptor: int, data: bytes | bytearray, at: int) -> None:
        if self.is_full:
            raise DiskFullError("no space left, in this test")
        super().write(descriptor, data, at)

    def reserve(self, descriptor: int, size: int) -> None:
        if self.is_full:
            raise DiskFullError("no space left, in this test")
        super().reserve(descriptor, size)


class BlockingDisk(Disk):
    """Blocks every sync between `block` and `unblock`."""

    def __init__(self) -> None:
        self._unblocked = threading.Event()
        self._unblocked.set()

    def block(self) -> None:
        self._unblocked.clear()

    def unblock(self) -> None:
        self._unblocked.set()

    def sync(self, descriptor: int) -> None:
        assert self._unblocked.wait(BLOCK_TIMEOUT_S), "the test did not call unblock()"


class FailingSyncDisk(Disk):
    """Fails every sync while `fails`."""

    fails = False

    def sync(self, descriptor: int) -> None:
        if self.fails:
            raise FileWriteError("this sync fails, in this test")


class NoSyncDisk(Disk):
    """Skips every sync, for speed: tests do not crash the machine."""

    def sync(self, descriptor: int) -> None:
        pass


class FillingDisk(NoSyncDisk):
    """Reports `used` as its use."""

    used = 0.0

    def used_ratio(self, folder: Path) -> float:
        return self.used


class RestartedMachineDisk(NoSyncDisk):
    """The disk after a restart of the machine: only flushed data can be trusted."""

    def boot_id(self) -> str:
        return "another-boot"


def small_store(
    folder: Path,
    disk: Disk | None = None,
    *,
    now_ms: int = NOW_MS,
    is_batch_topic: Callable[[str], bool] | None = None,
    **changes: Any,
) -> MessageStore:
    settings = replace(SMALL, **changes)
    return MessageStore.open(folder, settings, now_ms=now_ms, disk=disk, is_batch_topic=is_batch_topic)


def draft(
    topic: str = "T",
    queue_id: int = 0,
    body: bytes = b"body",
    properties: Mapping[str, str] | None = None,
    **changes: Any,
) -> Draft:
    raw_properties = encode_properties(properties or {})
    return Draft(topic, queue_id, body, raw_properties, NOW_MS, BORN, HERE, **changes)


def read_all(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
    """Return all messages of a queue, read as a consumer reads them."""
    found: list[StoredMessage] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        read = store.read_queue(topic, queue_id, offset, 32, 1 << 20)
        found += decode_records(b"".join(read.chunks), check_crc=True)
        assert read.next_offset > offset
        offset = read.next_offset
    return found


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in read_all(store, topic, queue_id)]
