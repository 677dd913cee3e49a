"""What Spark's worker processes do about memory before each task."""

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from skyroute.pipeline.worker_memory import prepare_worker


@pytest.fixture(autouse=True)
def collected_as_before() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_objects_are_exempt_from_collection_again_only_after_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare_worker()
    gc.unfreeze()
    prepare_worker()
    assert gc.get_freeze_count() == 0  # a task must not exempt what tasks before it have left
    monkeypatch.setitem(sys.modules, "imported_by_a_task", ModuleType("imported_by_a_task"))
    before = len(gc.get_objects())
    prepare_worker()
    assert gc.get_freeze_count() >= before
