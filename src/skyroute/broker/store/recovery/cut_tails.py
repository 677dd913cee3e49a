"""Keeps what is cut off the end of the log, within bounds, for an operator who doubts a cut."""

import logging
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from skyroute.broker.store.commit_log import CommitLog
from skyroute.broker.store.files.sparse import data_chunks, last_data
from skyroute.broker.store.recovery.damage import CUT_FOLDER, CutTail
from skyroute.files.disk import Disk

logger = logging.getLogger(__name__)

CUT_FILES_MAX: Final = 100
CUT_BYTES_MAX: Final = 1 << 30
"""Files in `commitlog.cut`, and their bytes. The oldest are removed first; those of the newest cut always stay."""


def save_tail(log: CommitLog, end: int, now_ms: int, disk: Disk) -> list[CutTail]:
    """Copy the bytes behind the end of the log to separate files; return the copies.

    Raises:
        FileWriteError: some bytes are not copied.
    """
    cuts: list[CutTail] = []
    for segment in log.segments:
        at = max(end - segment.start, 0)
        if at >= segment.size or not (stop := last_data(segment, at)) > at:
            continue
        folder = segment.path.parent.with_name(CUT_FOLDER)
        disk.make_folder(folder)
        path = folder / f"{segment.path.name}.cut-{now_ms}"
        copy = disk.open(path, stop - at)
        try:
            for low, high in data_chunks(segment, at):
                disk.write(copy, segment.read(low, min(high, stop) - low), low - at)
            disk.sync(copy)
        finally:
            os.close(copy)
        disk.sync_folder(folder)
        cuts.append(CutTail(segment.start + at, stop - at, segment.path, path))
    if cuts:
        _remove_oldest(cuts[0].kept_in.parent, {cut.kept_in for cut in cuts}, disk)
    return cuts


def _remove_oldest(folder: Path, newest: Collection[Path], disk: Disk) -> None:
    """Remove the oldest files of earlier cuts until the folder is within its bounds.

    Raises:
        FileWriteError: a file cannot be removed.
    """
    sizes = {path: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    files, kept_bytes = len(sizes), sum(sizes.values())
    for path in sorted(sizes.keys() - newest, key=_cut_at_ms):
        if files <= CUT_FILES_MAX and kept_bytes <= CUT_BYTES_MAX:
            return
        disk.remove(path)
        files, kept_bytes = files - 1, kept_bytes - sizes[path]
        logger.warning("old tail of the log removed file=%s bytes=%d", path, sizes[path])


def _cut_at_ms(path: Path) -> tuple[int, str]:
    text = path.name.rpartition("-")[2]
    return int(text) if text.isascii() and text.isdigit() else 0, path.name
