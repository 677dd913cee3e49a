"""Saves Spark's Python processes from reading the directories of Spark's own archives before every task."""

import sys
from pathlib import PurePath
from typing import Final
from zipimport import zipimporter

_NAMES: Final = ("pyspark.zip", "py4j-*.zip", "spark-core_*.jar")
"""Archives that Spark puts on the path of its Python processes. They do not change while one runs."""


def forget_importers() -> None:
    """Drop the importers of Spark's archives. An import that needs one creates it again, with the known directory.

    Before each task, Spark calls `importlib.invalidate_caches`. Each importer then reads the directory of its archive
    again, with thousands of names. There is an importer for each package: together they took 0.1 s of every task.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter) and any(map(PurePath(finder.archive).match, _NAMES)):
            del sys.path_importer_cache[path]
