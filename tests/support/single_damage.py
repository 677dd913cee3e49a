"""One damage to one file of a store, and what it may cost.

A store is kept in memory as its files. Each case writes them to a folder, damages one, opens the store, and compares
what it finds with what an undamaged copy holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.settings import StoreSettings
from skyroute.message.errors import MessageError
from skyroute.message.record import decode_record

Files = dict[str, bytes]
"""The files of a folder by their path in it."""
Open = Callable[[Path], MessageStore]

APACHE_STORES = Path(__file__).parents[1] / "golden" / "apache-5.5.0" / "stores.tar.xz"
"""Two folders of Apache's broker: one that it closed, and one that it left when it was killed."""
APACHE_SETTINGS = StoreSettings(
    log_segment_bytes=1 << 14, queue_segment_units=10, batch_segment_units=10, index_slots=16, index_entries=100
)
PAGE = 4096
KINDS = ("bit", "cut", "removed", "zeroed", "zeroed page")


@dataclass(frozen=True)
class Damage:
    """A change of some bytes of one file."""

    kind: str
    file: str
    start: int
    stop: int
    bit: int = 0

    def apply(self, folder: Path) -> None:
        path = folder / self.file
        if self.kind == "removed":
            path.unlink()
            return
        content = bytearray(path.read_bytes())
        if self.kind == "bit":
            content[self.start] ^= 1 << self.bit
        elif self.kind == "cut":
            del content[self.start :]
        else:
            content[self.start : self.stop] = bytes(self.stop - self.start)
        path.write_bytes(content)


@dataclass(frozen=True)
class Kept:
    """One message of a store."""

    topic: str
    queue_id: int
    offset: int
    position: int
    size: int
    record: bytes


@dataclass
class Base:
    """A store before damage, and its messages."""

    name: str
    files: Files
    open: Open
    messages: list[Kept] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    unit_bytes: dict[str, int] = field(default_factory=lambda: {"consumequeue": 20, "batchconsumequeue": 46})

    def __str__(self) -> str:
        return self.name

    def write(self, folder: Path) -> None:
        write_files(self.files, folder)

    def learn(self, folder: Path) -> None:
        """Open an undamaged copy, and expect its messages."""
        self.write(folder)
        store = self.open(folder)
        self.messages = read_store(store)
        self.ends = {
            (topic, queue_id): store.max_offset(topic, queue_id)
            for topic in store.topics()
            for queue_id in store.queue_ids(topic)
        }
        store.kill()

    def touched(self, damage: Damage) -> set[tuple[str, int, int]]:
        """Messages whose own bytes, in the log or in a unit that a bit was flipped in, the damage has changed."""
        parts = damage.file.split("/")
        if parts[0] == "commitlog":
            start = int(parts[1]) + damage.start
            stop = int(parts[1]) + damage.stop
            return {
                (each.topic, each.queue_id, each.offset)
                for each in self.messages
                if each.position < stop and start < each.position + each.size
            }
        if damage.kind == "bit" and parts[0] in self.unit_bytes:
            row = (int(parts[3]) + damage.start) // self.unit_bytes[parts[0]]
            of_queue = sorted(
                (each for each in self.messages if (each.topic, str(each.queue_id)) == (parts[1], parts[2])),
                key=lambda each: each.offset,
            )
            if parts[0] == "consumequeue":
                return {(each.topic, each.queue_id, each.offset) for each in of_queue if each.offset == row}
            return {(each.topic, each.queue_id, each.offset) for each in of_queue[row : row + 1]}
        return set()


def read_folder(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_files(files: Files, folder: Path) -> None:
    folders = {folder / Path(name).parent for name in files}
    for each in folders:
        each.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)


def choose(base: Base, chance: random.Random) -> Damage:
    """Return a random damage of a random file; each kind of file is equally likely."""
    kinds_of_files: dict[str, list[str]] = {}
    for name in base.files:
        kinds_of_files.setdefault(name.split("/")[0], []).append(name)
    name = chance.choice(kinds_of_files[chance.choice(sorted(kinds_of_files))])
    size = len(base.files[name])
    kind = chance.choice(KINDS)
    if kind in ("removed", "zeroed") or not size:
        return Damage(kind if kind != "bit" else "removed", name, 0, size)
    data_bytes = len(base.files[name].rstrip(b"\0")) or size
    at = chance.randrange(data_bytes if chance.random() < 0.9 else size)
    if kind == "bit":
        return Damage(kind, name, at, at + 1, chance.randrange(8))
    if kind == "cut":
        return Damage(kind, name, at, size)
    at -= at % PAGE
    return Damage(kind, name, at, min(at + PAGE, size))


def read_store(store: MessageStore) -> list[Kept]:
    """Return all records that readers get, unit by unit; invalid ones are left out."""
    found: list[Kept] = []
    for topic in sorted(store.topics()):
        for queue_id in store.queue_ids(topic):
            offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
            while offset < end:
                read = store.read_queue(topic, queue_id, offset, 1, 1)
                assert read.next_offset > offset, (topic, queue_id, offset, read)
                for record in map(bytes, read.chunks):
                    try:
                        message = decode_record(record, check_crc=True)
                    except MessageError:
                        continue
                    where = topic, queue_id, message.queue_offset
                    found.append(Kept(*where, message.log_position, len(record), record))
                offset = read.next_offset
    return found


def check_losses(base: Base, damage: Damage, store: MessageStore) -> None:
    """Check that at most the touched messages are lost, and no other has changed."""
    touched = base.touched(damage)
    found = set(read_store(store))
    for each in base.messages:
        key = each.topic, each.queue_id, each.offset
        assert key in touched or each in found, f"lost {key} at {each.position}"
    for (topic, queue_id), end in base.ends.items():
        newest = max(each.offset for each in base.messages if (each.topic, each.queue_id) == (topic, queue_id))
        if (topic, queue_id, newest) not in touched:
            assert store.max_offset(topic, queue_id) >= end, f"{topic} {queue_id} ends before {end}"
