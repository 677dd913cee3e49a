"""The archives of earlier versions in `tests/fixtures`."""

import json
import tarfile
from pathlib import Path
from typing import Any, Final

from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.settings import StoreSettings
from tests.support.disks import NoSyncDisk

FOLDER: Final = Path(__file__).parents[1] / "fixtures"
ARCHIVES: Final = sorted(FOLDER.glob("*.tar.xz"))
SETTINGS: Final = StoreSettings(
    log_segment_bytes=8192, queue_segment_units=10, batch_segment_units=2, index_slots=16, index_entries=100
)
"""Those of `write_fixture.py`."""


def unpack(archive: Path, folder: Path) -> dict[str, Any]:
    """Unpack an archive; return what was sent."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    sent: dict[str, Any] = json.loads((folder / "sent.json").read_bytes())
    return sent


def open_store(folder: Path, now_ms: int) -> MessageStore:
    return MessageStore.open(
        folder, SETTINGS, now_ms=now_ms, disk=NoSyncDisk(), is_batch_topic=lambda topic: topic == "Whole"
    )
