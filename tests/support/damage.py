"""Stores with several files of each kind, and fingerprints that show any change."""

from __future__ import annotations

import hashlib
from pathlib import Path

from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.store.message_store import MessageStore
from tests.support.disks import NOW_MS, SMALL, NoSyncDisk, draft

BATCHES = "Whole"
"""A batch topic."""
QUEUES = {"T": 3, "Other": 1, BATCHES: 1}
TOPICS = {topic: {"readQueueNums": queues, "writeQueueNums": queues} for topic, queues in QUEUES.items()}


def open_store(folder: Path) -> MessageStore:
    return MessageStore.open(
        folder, SMALL, now_ms=NOW_MS, disk=NoSyncDisk(), is_batch_topic=lambda name: name == BATCHES
    )


def fill_store(folder: Path, *, count: int = 60, close: bool = True) -> None:
    """Write several segments of log and queues, several files of the index, and tables.

    Without `close`, the store is left as by a process that died, with a record that has no unit yet.
    """
    store = open_store(folder)
    for number in range(count):
        now_ms = NOW_MS + number * 500
        properties = {"KEYS": f"k{number} all", "UNIQ_KEY": f"u{number}", "TAGS": f"t{number % 3}"}
        store.append(draft("T", number % 3, b"%d " % number + b"x" * (number * 37 % 200), properties), now_ms)
        if number % 7 == 0:
            store.append(draft("Other", 0, b"", {}), now_ms)
        if number % 10 == 0:
            store.append_inner_batch(draft(BATCHES, 0, b"batch", {"KEYS": f"b{number}"}), 3, now_ms)
    tables = {
        "topics.json": {"topicConfigTable": TOPICS},
        "subscriptionGroup.json": {"subscriptionGroupTable": {"g": {"retryMaxTimes": 3}}},
        "consumerOffset.json": {"offsetTable": {"T@g": {0: 3, 1: 4}}},
        "delayOffset.json": {"offsetTable": {1: 3}},
    }
    for name, table in tables.items():
        for _ in range(2):
            JsonFile(folder / "config" / name, NoSyncDisk()).save(table)
    store.dispatch()
    if close:
        store.close()
    else:
        store.flush()
        store.append(draft("T", 0, b"not derived", {"KEYS": "late"}), NOW_MS + count * 500)
        store.kill()


def checksum(folder: Path) -> dict[str, tuple[str, int]]:
    """Return content and modification time of every file."""
    return {
        str(path.relative_to(folder)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
