"""Errors of system calls, and the limit of open segments."""

import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skyroute.broker.store.files.segment import OPEN_MAX, OPEN_MIN, OpenSegments, Segment, open_segments_allowed
from skyroute.broker.store.flush import Flush
from skyroute.files.disk import Disk
from skyroute.files.errors import FileReadError, FileWriteError, NoDescriptorError
from tests.support.disks import NOW_MS, NoSyncDisk, draft, small_store


@pytest.mark.parametrize(
    "refused",
    [
        lambda disk, descriptor: disk.write(descriptor, b"x", 0),
        lambda disk, descriptor: disk.reserve(descriptor, 100),
        lambda disk, descriptor: disk.cut(descriptor, 0, 100),
    ],
)
def test_an_error_names_the_file_and_not_its_descriptor(tmp_path: Path, refused: Callable[[Disk, int], None]) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with pytest.raises(FileWriteError, match=f"cannot write {path}: "):
            refused(Disk(), descriptor)
    finally:
        os.close(descriptor)


def test_the_error_of_a_closed_descriptor_has_its_number(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    os.close(descriptor)
    with pytest.raises(FileWriteError, match=rf"cannot write a file \(descriptor {descriptor}\): Bad file descriptor"):
        Flush(Disk(), 0, 0).add(descriptor, tmp_path)


@contextmanager
def no_free_descriptor() -> Iterator[Callable[[], None]]:
    """Leave this process no free descriptor; yields a function that ends it earlier."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def end() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    newest = os.open("/dev/null", os.O_RDONLY)  # the smallest free number
    os.close(newest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (newest, limits[1]))
    try:
        yield end
    finally:
        end()


def test_a_flush_without_free_descriptors_waits_for_one(tmp_path: Path) -> None:
    synced: list[str] = []

    class Watched(Disk):
        def sync_path(self, path: Path) -> None:
            super().sync_path(path)
            synced.append(path.name)

        def sync_folder(self, folder: Path) -> None:
            super().sync_folder(folder)
            synced.append(folder.name)

    disk, path = Watched(), tmp_path / "file"
    descriptor = disk.open(path, 10)
    flush = Flush(disk, 0, 0)
    with no_free_descriptor() as end:
        with pytest.raises(NoDescriptorError, match=f"cannot write {tmp_path}: Too many open files"):
            disk.sync_folder(tmp_path)
        flush.add(descriptor, path)
        flush.add_folder(tmp_path)
        timer = threading.Timer(0.2, end)
        timer.start()
        flush.run()
        timer.join()
    assert synced == [path.name, tmp_path.name]
    os.close(descriptor)


def test_a_flush_syncs_the_new_names_around_a_new_queue(tmp_path: Path) -> None:
    folders: list[Path] = []

    class Watched(NoSyncDisk):
        def sync_folder(self, folder: Path) -> None:
            folders.append(folder)

    store = small_store(tmp_path, Watched())
    store.flush()
    folders.clear()
    store.append(draft("T", 3), NOW_MS)
    store.flush()
    queues = tmp_path / "consumequeue"
    assert {queues / "T" / "3", queues / "T", queues, tmp_path} <= set(folders)
    folders.clear()
    store.append(draft("T", 3), NOW_MS)
    store.flush()
    assert queues / "T" / "3" not in folders
    store.close()


def test_the_error_of_an_unreadable_segment_has_its_path(tmp_path: Path) -> None:
    segment = Segment(tmp_path / "00000000000000000000", 0, 4096, Disk(), OpenSegments())
    os.close(segment.descriptor)
    with pytest.raises(FileReadError, match=f"cannot read {segment.path}: Bad file descriptor"):
        segment.read(0, 10)
    with pytest.raises(FileReadError, match=f"cannot map {segment.path}: Bad file descriptor"):
        _ = segment.content


@pytest.mark.parametrize(
    ("limit", "segments"), [(16, OPEN_MIN), (64, 8), (256, 48), (1024, 240), (4096, OPEN_MAX), (-1, OPEN_MAX)]
)
def test_the_number_of_open_segments_follows_the_limit_of_open_files(
    monkeypatch: pytest.MonkeyPatch, limit: int, segments: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert open_segments_allowed() == segments
