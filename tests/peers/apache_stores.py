"""Makes the stores of Apache's broker that `tests/adversity/test_single_damage.py` damages.

Run from the repository's root with `python -m tests.peers.apache_stores`. It starts Apache's broker twice, stops it
once and kills it once, and packs both folders into one archive.
"""

import shutil
import tarfile
import tempfile
from pathlib import Path

from tests.peers.test_store_files import TOPIC, WHOLE, Asked, write_topics
from tests.support.apache import ApacheBroker, SkyrouteNameServer
from tests.support.raw import RawConnection
from tests.support.single_damage import APACHE_SETTINGS, APACHE_STORES
from tests.support.waiting import wait_until

_FILE_SIZES = {
    "mappedFileSizeCommitLog": str(APACHE_SETTINGS.log_segment_bytes),
    "mappedFileSizeConsumeQueue": str(APACHE_SETTINGS.queue_segment_units * 20),
    "mapperFileSizeBatchConsumeQueue": str(APACHE_SETTINGS.batch_segment_units * 46),
    "maxHashSlotNum": str(APACHE_SETTINGS.index_slots),
    "maxIndexNum": str(APACHE_SETTINGS.index_entries),
    "timerWheelEnable": "false",
}
_KEPT = ("commitlog", "consumequeue", "batchconsumequeue", "index", "config", "checkpoint", "abort")


def make(folder: Path, left: str) -> Path:
    """Return a store that Apache's broker filled and was then stopped, or killed."""
    server = SkyrouteNameServer("names", folder / f"names-{left}")
    broker = ApacheBroker("store-broker", folder / left, [server.address], config=_FILE_SIZES)
    store = broker.home / "store"
    (store / "config").mkdir(parents=True)
    write_topics(store)
    with server, broker:
        with RawConnection(broker.address) as line:
            apache = Asked(line)
            apache.fill()
            wait_until(lambda: apache.max_offset(TOPIC, 2) >= 39, what="the batch is dispatched")
            wait_until(lambda: apache.max_offset(WHOLE, 1) == 9, what="the last whole batch is dispatched")
        (broker.stop if left == "stopped" else broker.kill)()
    return store


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(APACHE_STORES, "w:xz") as archive:
            for left in ("stopped", "killed"):
                store = make(folder, left)
                for path in sorted(store.iterdir()):
                    if path.name in _KEPT:
                        archive.add(path, f"{left}/{path.name}")
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
