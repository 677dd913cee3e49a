"""Any single damage to a store loses at most the records it touches.

`make test-damage` runs longer; SKYROUTE_SEED=... repeats a run, and a failure names its case.
"""

import os
import random
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest

from skyroute.broker.store.message_store import MessageStore
from skyroute.files.disk import Disk
from skyroute.message.batch import BatchItem, encode_batch
from skyroute.message.flags import TransactionState
from skyroute.message.host import encode_host
from skyroute.message.properties import encode_properties
from skyroute.message.reserved_topics import HALF_TOPIC, SCHEDULE_TOPIC
from tests.support.disks import (
    NOW_MS,
    KilledError,
    KillingDisk,
    NoSyncDisk,
    RestartedMachineDisk,
    RestartedMachineKillingDisk,
    draft,
    small_store,
)
from tests.support.single_damage import (
    APACHE_SETTINGS,
    APACHE_STORES,
    Base,
    Damage,
    Files,
    check_losses,
    choose,
    read_folder,
)

CASES = int(os.environ.get("SKYROUTE_DAMAGE_CASES") or 10_000)
PARTS = 20
"""Number of tests that share the cases; they may run in parallel."""
REOPENED_EVERY = 7
WHOLE = "Whole"
"""A batch topic."""
MEMORY = Path("/dev/shm")


def open_small(disk: Callable[[], Disk], folder: Path) -> MessageStore:
    return small_store(folder, disk(), is_batch_topic=lambda topic: topic == WHOLE)


def open_apaches(folder: Path) -> MessageStore:
    return MessageStore.open(
        folder, APACHE_SETTINGS, now_ms=NOW_MS, disk=NoSyncDisk(), is_batch_topic=lambda topic: topic == "StoreBatches"
    )


def fill(store: MessageStore, first: int, count: int) -> None:
    """All kinds of records, over several segments of log, queues and index."""
    for number in range(first, first + count):
        now_ms = NOW_MS + number * 500
        named = {"UNIQ_KEY": f"id-{number}", "KEYS": f"k{number}", "TAGS": f"t{number % 3}"}
        made = draft("T", number % 2, b"%d " % number + b"x" * (number * 37 % 120), named)
        if number % 4 == 0:
            made = msgspec.structs.replace(made, raw_born_host=encode_host("::1", 4000))
        store.append(made, now_ms)
        if number % 3 == 0:
            batch = encode_batch([BatchItem(b"%d" % number), BatchItem(b"more")])
            store.append_inner_batch(draft(WHOLE, 0, batch, {"UNIQ_KEY": f"batch-{number}"}), 2, now_ms)
        if number % 9 == 0:
            half = store.append(draft(HALF_TOPIC, 0, b"half", {"REAL_TOPIC": "T"}), now_ms)
            committed = int(TransactionState.COMMITTED)
            store.append(draft("T", 1, b"whole", sys_flag=committed, prepared_position=half.log_position), now_ms)
            store.append(draft("T", 1, b"never", sys_flag=int(TransactionState.ROLLED_BACK)), now_ms)
            store.append(draft(SCHEDULE_TOPIC, 2, b"later", {"DELAY": "3", "REAL_TOPIC": "T"}), now_ms)
        if number % 10 == 5:
            items = [BatchItem(b"in a batch", encode_properties({"KEYS": f"b{number}"})) for _ in range(3)]
            store.append_batch(draft("T", 0), items, now_ms)


def make_closed(folder: Path) -> None:
    store = open_small(NoSyncDisk, folder)
    fill(store, 0, 40)
    store.close()


def make_dead(folder: Path) -> None:
    store = open_small(NoSyncDisk, folder)
    fill(store, 0, 30)
    store.flush()
    fill(store, 30, 6)
    store.dispatch()
    fill(store, 36, 4)
    store.kill()


def make_stopped(folder: Path, chance: random.Random) -> Files:
    """Make a store after a machine crash: of the pages written after the flush, only some are on disk."""
    store = open_small(NoSyncDisk, folder)
    fill(store, 0, 30)
    store.flush()
    flushed = read_folder(folder)
    fill(store, 30, 10)
    store.dispatch()
    store.kill()
    written = read_folder(folder)
    mixed: Files = {}
    for name, content in written.items():
        before = flushed.get(name, b"").ljust(len(content), b"\0")
        pages = [(before if chance.random() < 0.4 else content)[at : at + 64] for at in range(0, len(content), 64)]
        if name in flushed or chance.random() < 0.7:
            mixed[name] = b"".join(pages)
    return mixed


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def bases(folder: Path) -> list[Base]:
    """Return stores of both brokers, after every kind of shutdown."""
    found: list[Base] = []
    makers: list[tuple[str, Callable[[Path], None], type[Disk]]] = [
        ("closed", make_closed, NoSyncDisk),
        ("process died", make_dead, NoSyncDisk),
        ("machine stopped", make_dead, RestartedMachineDisk),
    ]
    for name, make, disk in makers:
        make(folder / name)
        found.append(Base(name, read_folder(folder / name), partial(open_small, disk)))
    mixed = make_stopped(folder / "mixed", random.Random(5))
    found.append(Base("machine stopped in the middle", mixed, partial(open_small, RestartedMachineDisk)))
    with tarfile.open(APACHE_STORES) as archive:
        archive.extractall(folder / "apache", filter="data")
    for left in ("stopped", "killed"):
        found.append(Base(f"Apache's, {left}", read_folder(folder / "apache" / left), open_apaches))
    for number, base in enumerate(found):
        base.learn(folder / f"truth-{number}")
        assert len(base.messages) >= 60
    return found


@pytest.mark.parametrize("part", range(PARTS))
def test_any_single_damage_loses_at_most_the_records_it_touches(
    folder: Path, bases: list[Base], chance: random.Random, part: int
) -> None:
    for number in range(CASES // PARTS):
        base = bases[number % len(bases)]
        damage = choose(base, chance)
        copy = folder / f"case-{part}"
        base.write(copy)
        damage.apply(copy)
        try:
            store = base.open(copy)
            check_losses(base, damage, store)
            if number % REOPENED_EVERY == 0:
                store = check_continues(base, copy, store)
                check_losses(base, damage, store)
            store.kill()
        except Exception as error:
            raise AssertionError(f"case {number} of part {part}: {base}, {damage}") from error
        shutil.rmtree(copy)


@pytest.mark.parametrize(
    ("name", "damaged", "disk"),
    [
        ("process died", "commitlog/00000000000000008192", KillingDisk),
        ("machine stopped", "commitlog/00000000000000008192", RestartedMachineKillingDisk),
        ("machine stopped in the middle", "queues", RestartedMachineKillingDisk),
        ("closed", "consumequeue/T/0/00000000000000000200", KillingDisk),
    ],
)
@pytest.mark.parametrize("half", [False, True])
def test_a_recovery_killed_at_any_call_loses_nothing(
    folder: Path, bases: list[Base], name: str, damaged: str, disk: type[KillingDisk], *, half: bool
) -> None:
    """Damage makes gaps in queues; the next record confirms the offset of a record behind a gap."""
    base = next(each for each in bases if each.name == name)
    size = len(base.files[damaged])
    damage = Damage("zeroed", damaged, 0, size)
    copy = folder / "killed"
    is_done = False
    for at in range(4, 200):
        base.write(copy)
        damage.apply(copy)
        try:
            open_small(partial(disk, at, half=half), copy).kill()
            is_done = True
        except KilledError:
            pass
        store = base.open(copy)
        check_losses(base, damage, store)
        store.kill()
        shutil.rmtree(copy)
        if is_done:
            break
    assert is_done
    assert at > 20


def check_continues(base: Base, folder: Path, store: MessageStore) -> MessageStore:
    """Check that each queue accepts one more message, and keeps it after a close."""
    topics = ("T", WHOLE, "StoreTopic", "StoreBatches")
    appended = {key: store.append(draft(*key, b"more"), NOW_MS * 2) for key in base.ends if key[0] in topics}
    store.close()
    again = base.open(folder)
    for (topic, queue_id), each in appended.items():
        read = again.read_queue(topic, queue_id, each.queue_offset, 1, 1)
        assert b"more" in b"".join(read.chunks)
    return again
