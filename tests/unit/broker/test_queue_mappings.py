"""The table of mappings of static topics."""

from pathlib import Path

import pytest

from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables import queue_mappings
from skyroute.broker.tables.queue_mappings import QueueMappings
from skyroute.wire.calls.static_topics import MappingItem, QueueMapping

LONG = (MappingItem(0, 0, "b"), MappingItem(1, 0, "a", 10))


@pytest.fixture
def mappings(tmp_path: Path) -> QueueMappings:
    table = QueueMappings(JsonFile(tmp_path / "mappings.json"), "a", lambda: 1_000)
    table.put(QueueMapping("S", "a", 2, 1, hosted={0: LONG, 1: LONG}), force=False)
    return table


def test_a_shorter_mapping_makes_room_for_others(mappings: QueueMappings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_mappings, "ITEMS_MAX", 4)
    before, version = mappings.all()["S"], mappings.version
    assert mappings.shorten(before, {0: LONG[1:]})
    assert mappings.all()["S"].hosted == {0: LONG[1:]}
    assert mappings.version.counter > version.counter
    mappings.put(QueueMapping("T", "a", 3, 1, hosted={0: LONG, 1: LONG[1:]}), force=False)


def test_a_mapping_that_has_changed_is_not_shortened(mappings: QueueMappings) -> None:
    before = mappings.all()["S"]
    mappings.put(QueueMapping("S", "a", 2, 2, hosted={0: LONG}), force=False)
    assert not mappings.shorten(before, {})
    assert mappings.all()["S"].hosted == {0: LONG, 1: LONG}
