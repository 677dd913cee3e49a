"""What does the broker's store cost for each message: to append, to read, to find again after a crash?

Run from the repository's root: `make bench-store`. One process, one thread, no network: processor time, since
that is what a busy machine does not falsify much. The folder is a temporary one on the disk that TMPDIR names.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.machine import resident_mb
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.recovery.log_scan import scan_log
from skyroute.files.disk import Disk
from skyroute.message.batch import BatchItem
from skyroute.message.host import encode_host
from skyroute.message.properties import encode_properties

QUEUES = 8
BODY = bytes(1024)
BORN = encode_host("10.0.0.1", 40_000)
HERE = encode_host("127.0.0.1", 10_911)
NOW_MS = 1_700_000_000_000


class OtherBoot(Disk):
    """A machine that was started anew: what was left behind is trusted as far as it was flushed."""

    def boot_id(self) -> str:
        return "another"


def raw_properties(number: int) -> bytes:
    """What a producer of one message sends, and what a broker adds to it."""
    unique_id = f"7F000001ABCD18B4AAC2{number:012X}"
    added = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "WAIT": "true"}
    return encode_properties({"UNIQ_KEY": unique_id, **added, "TAGS": "TagA"})


@contextmanager
def measured(what: str, count: int) -> Iterator[None]:
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    yield
    cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
    print(f"{what:54} {cpu_s / count * 1e6:8.2f} µs cpu  {wall_s / count * 1e6:8.2f} µs wall  each of {count:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000)
    count = parser.parse_args().messages
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        drafts = [
            Draft("Bench", number % QUEUES, BODY, raw_properties(number), NOW_MS, BORN, HERE) for number in range(1000)
        ]
        with measured("open an empty folder", 1):
            store = MessageStore.open(folder, now_ms=NOW_MS)
        append(store, drafts, count)
        read(store, count)
        print(f"{'resident memory':54} {resident_mb(os.getpid()):8.0f} MB")
        with measured("flush", 1):
            store.flush()
        store.kill()
        with measured("open after the process died", 1):
            store = MessageStore.open(folder, now_ms=NOW_MS)
        store.kill()
        with measured("open after the machine stopped", 1):
            store = MessageStore.open(folder, now_ms=NOW_MS, disk=OtherBoot())
        store.kill()
        (folder / "checkpoint").unlink()
        with measured("open where nothing says what was written, per message", count):
            store = MessageStore.open(folder, now_ms=NOW_MS)
        print(f"{'resident memory':54} {resident_mb(os.getpid()):8.0f} MB")
        scan(store, count)
        store.close()
        with measured("open after it was closed", 1):
            store = MessageStore.open(folder, now_ms=NOW_MS)
        store.close()


def append(store: MessageStore, drafts: list[Draft], count: int) -> None:
    single = count // 2
    unique = [
        Draft("Bench", number % QUEUES, BODY, raw_properties(number), NOW_MS, BORN, HERE) for number in range(single)
    ]
    for turn in (1, 16):
        half = unique[: single // 2]
        with measured(f"append, and a look at the queue after every {turn}", len(half)):
            for at in range(0, len(half), turn):
                for draft in half[at : at + turn]:
                    store.append(draft, NOW_MS + at // 100)
                store.max_offset("Bench", 0)
            store.dispatch()
    items = [BatchItem(draft.body, draft.raw_properties) for draft in drafts[:100]]
    with measured("append in batches of 100, per message", count - single):
        for at in range(0, count - single, 100):
            store.append_batch(drafts[at // 100 % QUEUES], items, NOW_MS + at // 100)
        store.dispatch()


def read(store: MessageStore, count: int) -> None:
    for count_max in (32, 1000):
        reads = bytes_read = 0
        with measured(f"read {count_max} of a queue among {QUEUES}, per message", count // 2):
            for queue_id in range(QUEUES):
                offset = 0
                while offset < count // 2 // QUEUES:
                    found = store.read_queue("Bench", queue_id, offset, count_max, 4 << 20)
                    bytes_read += len(b"".join(found.chunks))
                    offset = found.next_offset
                    reads += 1
    with measured("find by key", 1000):
        for number in range(1000):
            store.find_by_key("Bench", f"7F000001ABCD18B4AAC2{number:012X}", 32, 0, 1 << 60)
    with measured("find by time", 1000):
        for number in range(1000):
            store.offset_at("Bench", 0, NOW_MS + number)


def scan(store: MessageStore, count: int) -> None:
    log = store._log  # noqa: SLF001 - the walk alone, without what follows from it
    with measured("walk over the log, checksums and all", count):
        found = sum(1 for _ in scan_log(log, log.start))
    print(f"{'':54} {found:,} records")


if __name__ == "__main__":
    main()
