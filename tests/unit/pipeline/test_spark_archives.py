"""Importers of Spark's archives, whose directories Python reads again before every task."""

import importlib
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from skyroute.pipeline.short_errors import short_errors
from skyroute.pipeline.spark_archives import forget_importers

PACKAGES = ("first", "second")


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Archives on the path of this process: one of Spark's, and one that a program sends. Each has two packages."""
    paths = [tmp_path / name for name in ("pyspark.zip", "sent.zip")]
    for path in paths:
        with ZipFile(path, "w") as archive:
            for package in PACKAGES:
                archive.writestr(f"{package}_of_{path.stem}/__init__.py", "")
    for path in paths:
        monkeypatch.syspath_prepend(path)
    for path in paths:
        importlib.import_module(f"first_of_{path.stem}")
    return list(map(str, paths))


def test_a_call_of_spark_leaves_no_importer_of_its_archives(archives: list[str]) -> None:
    assert set(archives) <= sys.path_importer_cache.keys()
    assert short_errors(lambda: 7)() == 7
    assert [path for path in archives if path in sys.path_importer_cache] == archives[1:]


def test_packages_of_an_archive_can_still_be_imported(archives: list[str]) -> None:
    forget_importers()
    importlib.invalidate_caches()
    for path in archives:
        module = importlib.import_module(f"second_of_{Path(path).stem}")
        assert str(module.__file__).startswith(path)
