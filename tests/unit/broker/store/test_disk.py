"""Errors of system calls, and the limit of open segments."""

import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from skyroute.broker.store.files.segment import OPEN_MAX, OPEN_MIN, OpenSegments, Segment, open_segments_allowed
from skyroute.broker.store.flush import Flush
from skyroute.files.disk import Disk
from skyroute.files.errors import FileReadError, FileWriteError


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
        Flush(Disk(), 0, 0).add(descriptor)


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
