"""A folder for the files that a target writes: in memory where possible, and emptied for each input."""

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")


@cache
def _root(process: int) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"skyroute-fuzz-{process}-", dir=MEMORY if MEMORY.is_dir() else None))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def empty_folder() -> Path:
    """Return an empty folder; the one of the last call is gone."""
    folder = _root(os.getpid()) / "files"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
