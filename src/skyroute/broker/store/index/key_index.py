"""Finds messages by key: files with a table of slots, by the key's hash, and chains of entries behind each.

An entry knows the hash of its key and not the key: whoever asks has to look whether the messages found are meant.
"""

import logging
import mmap
import os
from array import array
from collections.abc import Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.index.keys import Key, key_hash
from skyroute.files.disk import Disk

log = logging.getLogger(__name__)
SLOT_ENTRIES_A_STEP: Final = 2_000
"""Entries of one slot read in one step. Many messages may share a key."""

MATCHES_MAX: Final = 64
"""How many messages one question finds at most."""

_HEADER: Final = Struct(">qqqqii")
_ENTRY: Final = Struct(">iqii")
_SLOT: Final = Struct(">i")
_INT_MAX: Final = 0x7FFFFFFF
_ENTRIES_READ: Final = 50_000


class KeyMatches(NamedTuple):
    """Where messages lie whose keys may be the one asked for, oldest first, and how far the index has come."""

    positions: list[int]
    last_stored_at_ms: int
    last_position: int


class IndexFile:
    """One file: a header, the slots, the entries. Entry 0 is never used."""

    def __init__(self, path: Path, slots: int, entries: int, disk: Disk) -> None:
        self.path = path
        self._slots = slots
        self._entries = entries
        self._entries_at = _HEADER.size + slots * _SLOT.size
        self._disk = disk
        self.descriptor = disk.open(path, self._entries_at + entries * _ENTRY.size)
        self._map = mmap.mmap(self.descriptor, self._entries_at)
        self._has_room = False
        self.is_dirty = False
        self.read_header()
        self.is_new = self.count == 1
        """Its name may not be on the disk."""

    def __repr__(self) -> str:
        return f"<IndexFile {self.path.name} {self.count - 1} keys {self.begin}..{self.end}>"

    def read_header(self) -> None:
        """Look how far the file has come, which may be the work of another process."""
        numbers: tuple[int, ...] = _HEADER.unpack_from(self._map, 0)
        self.begin_ms, self.end_ms, self.begin, self.end, self._used, count = numbers
        self.count = max(count, 1)

    @property
    def is_sound(self) -> bool:
        return self.count <= self._entries and self.begin >= 0 and self.end >= self.begin

    @property
    def room(self) -> int:
        return self._entries - self.count

    def continue_after(self, last: "IndexFile") -> None:
        """Begin where another file ended, until the first key says better."""
        self.begin = self.end = last.end
        self.begin_ms = self.end_ms = last.end_ms

    def add(self, keys: Sequence[Key]) -> None:
        """Add keys for which there is room.

        Raises:
            FileWriteError: none is added.
        """
        self.make_room()
        slots, count, view = self._slots, self.count, self._map
        heads: dict[int, int] = {}
        entries: list[bytes] = []
        if count == 1:
            _, self.begin, self.begin_ms = keys[0]
        begin_ms = self.begin_ms
        used = age_s = last_ms = 0
        number = count
        for hash_, position, stored_at_ms in keys:
            slot_at = _HEADER.size + hash_ % slots * 4
            previous = heads.get(slot_at, 0)
            if not previous:
                (previous,) = _SLOT.unpack_from(view, slot_at)
                if not 0 < previous < count:
                    previous = 0
                    used += 1
            heads[slot_at] = number
            if stored_at_ms != last_ms:
                last_ms = stored_at_ms
                age_s = min(max((stored_at_ms - begin_ms) // 1000, 0), _INT_MAX)
            entries.append(_ENTRY.pack(hash_, position, age_s, previous))
            number += 1
        self._disk.write(self.descriptor, b"".join(entries), self._entries_at + count * _ENTRY.size)
        self.count += len(keys)
        self._used += used
        _, self.end, self.end_ms = keys[-1]
        # A reader takes a slot that points beyond the count for an empty one, so the count comes first.
        self.write_header()
        for slot_at, number in heads.items():
            _SLOT.pack_into(view, slot_at, number)
        self.is_dirty = True

    def make_room(self) -> None:
        """Take room on the disk for header and slots, which are written through a mapping that must not find it full.

        Raises:
            FileWriteError: there is none.
        """
        if not self._has_room:
            self._disk.reserve(self.descriptor, self._entries_at)
            self._has_room = True

    def write_header(self) -> None:
        _HEADER.pack_into(self._map, 0, self.begin_ms, self.end_ms, self.begin, self.end, self._used, self.count)

    def search(self, hash_: int, begin_ms: int, end_ms: int, count_max: int) -> Generator[None, None, list[int]]:
        """Return the positions of messages with this key and stored in this time, newest first; in steps."""
        found: list[int] = []
        (number,) = _SLOT.unpack_from(self._map, _HEADER.size + hash_ % self._slots * 4)
        looked_at = 0
        while 0 < number < self.count and len(found) < count_max:
            looked_at += 1
            if looked_at % SLOT_ENTRIES_A_STEP == 0:
                yield
                if self._map.closed:
                    break  # the file expired since
            entry_hash, position, age_s, previous = self._entry(number)
            at_ms = self.begin_ms + age_s * 1000
            if entry_hash == hash_ and begin_ms <= at_ms <= end_ms:
                found.append(position)
            if at_ms < begin_ms or previous >= number:
                break
            number = previous
        return found

    def has_some_of(self, begin_ms: int, end_ms: int) -> bool:
        return begin_ms <= self.end_ms and end_ms >= self.begin_ms

    def truncate_to(self, position: int, *, slots_are_sound: bool) -> None:
        """Forget the keys of messages at or behind a position of the log.

        After a machine's crash slots may know of entries that never came to the disk; then all are made anew.
        """
        kept = self._first_behind(position)
        if slots_are_sound:
            self.make_room()
            self._unlink_from(kept)
        self.truncate(kept, position, slots_are_sound=slots_are_sound)

    def truncate(self, kept: int, position: int, *, slots_are_sound: bool) -> None:
        """Have so many entries, those of messages before a position of the log."""
        self.make_room()
        self.count = kept
        if kept > 1:
            _, self.end, age_s, _ = self._entry(kept - 1)
            self.end_ms = self.begin_ms + age_s * 1000 + 999
        else:
            self.begin = self.end = min(self.begin, position)
            self.end_ms = self.begin_ms
        if not slots_are_sound:
            self._rebuild_slots()
        slots = array("i", self._map[_HEADER.size : self._entries_at])
        self._used = len(slots) - slots.count(0)
        self.write_header()
        self.is_dirty = True

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        return _ENTRY.unpack(os.pread(self.descriptor, _ENTRY.size, self._entries_at + number * _ENTRY.size))

    def _first_behind(self, position: int) -> int:
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            if self._entry(middle)[1] >= position:
                high = middle
            else:
                low = middle + 1
        return low

    def _unlink_from(self, kept: int) -> None:
        # Newest first, each slot steps back to the entry before. A slot that a dying process never came to stays.
        for number in range(self.count - 1, kept - 1, -1):
            hash_, _, _, previous = self._entry(number)
            slot_at = _HEADER.size + hash_ % self._slots * 4
            if _SLOT.unpack_from(self._map, slot_at)[0] == number:
                _SLOT.pack_into(self._map, slot_at, previous)

    def _rebuild_slots(self) -> None:
        slots = array("i", bytes(self._slots * 4))
        for first in range(1, self.count, _ENTRIES_READ):
            stop = min(first + _ENTRIES_READ, self.count)
            raw = os.pread(self.descriptor, (stop - first) * _ENTRY.size, self._entries_at + first * _ENTRY.size)
            words = array("i", raw)
            words.byteswap()
            for number, hash_ in enumerate(words[:: _ENTRY.size // _SLOT.size], first):
                slots[hash_ % self._slots] = number
        slots.byteswap()
        self._map[_HEADER.size : self._entries_at] = slots.tobytes()

    def note_flushed(self) -> None:
        """Note that a flush includes its content and its name."""
        self.is_dirty = self.is_new = False

    def release_memory(self) -> None:
        self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self._map.close()
        os.close(self.descriptor)

    def remove(self) -> None:
        self.close()
        self._disk.remove(self.path)


class KeyIndex:
    """All files of the index, oldest first; keys go into the last."""

    def __init__(self, folder: Path, slots: int, entries: int, disk: Disk) -> None:
        self._folder = folder
        self._slots = slots
        self._entries = entries
        self._disk = disk
        self.files: list[IndexFile] = []

    def load(self, newest: int | None = None) -> None:
        """Open the files. One that makes no sense is removed with those behind it, and recovery writes them again.

        `newest` is the name of the last one to be trusted; those behind it are removed.

        Raises:
            StoreDamagedError: they are larger than the settings say.
        """
        paths = sorted(path for path in self._folder.glob("*") if path.name.isdecimal())
        while newest is not None and paths and int(paths[-1].name) > newest:
            self._disk.remove(paths.pop())
        whole_bytes = _HEADER.size + self._slots * _SLOT.size + self._entries * _ENTRY.size
        sizes = [path.stat().st_size for path in paths]
        if sizes and max(sizes) > whole_bytes:
            raise StoreDamagedError(
                f"a file of {self._folder} has {max(sizes)} bytes, but the settings make them {whole_bytes}: set the "
                "numbers of slots and entries that the files were written with"
            )
        end = 0
        for path, size in zip(paths, sizes, strict=True):
            if size == whole_bytes:
                file = IndexFile(path, self._slots, self._entries, self._disk)
                is_filled = file.count > 1 or path is paths[-1]
                if file.is_sound and file.begin >= end and is_filled:
                    self.files.append(file)
                    end = file.end
                    continue
                file.close()
            log.warning("damaged file of the key index removed file=%s", path)
            for later in paths[len(self.files) :]:
                self._disk.remove(later)
            break

    def reload(self) -> None:
        """Take note of what another process has added."""
        newest = int(self.files[-1].path.name) if self.files else -1
        names = sorted(path.name for path in self._folder.glob("*") if path.name.isdecimal())
        for file in self.files[-1:]:
            file.read_header()
            file.is_dirty = True
        for name in names:
            if int(name) > newest:
                file = IndexFile(self._folder / name, self._slots, self._entries, self._disk)
                file.is_dirty = file.is_new = True
                self.files.append(file)

    @property
    def end(self) -> int:
        """The position of the newest message that has a key here."""
        return self.files[-1].end if self.files else 0

    @property
    def end_ms(self) -> int:
        """When that message was stored."""
        return self.files[-1].end_ms if self.files else 0

    def add(self, keys: list[Key]) -> None:
        """Add keys; those that are added leave the list.

        Raises:
            FileWriteError: those that are left are not added.
        """
        while keys:
            if not self.files or self.files[-1].room <= 0:
                self.begin_file(keys[0][2])
            file = self.files[-1]
            fitting = keys[: file.room]
            file.add(fitting)
            del keys[: len(fitting)]

    def begin_file(self, now_ms: int) -> None:
        """Add an empty file, named by the time, as Apache's are."""
        try:
            moment = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone()
            name = int(f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}")
        except (ValueError, OverflowError, OSError):
            name = 0  # no calendar has that time
        if self.files:
            # Their order is that of their names, also when a clock steps back.
            name = max(name, int(self.files[-1].path.name) + 1)
        file = IndexFile(self._folder / f"{name:017d}", self._slots, self._entries, self._disk)
        try:
            file.make_room()
        except BaseException:
            file.remove()
            raise
        if self.files:
            file.continue_after(self.files[-1])
            self.files[-1].release_memory()
        file.write_header()
        self.files.append(file)

    def find(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> KeyMatches:
        """Return where messages of a topic lie that may have this key and were stored in this time."""
        search = self.search(topic, key, count_max, begin_ms, end_ms)
        while True:
            try:
                next(search)
            except StopIteration as end:
                found: KeyMatches = end.value
                return found

    def search(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> Generator[None, None, KeyMatches]:
        """As `find`, in steps."""
        count_max = min(count_max, MATCHES_MAX)
        hash_ = key_hash(topic, key.encode("utf-8", "replace"))
        positions: list[int] = []
        for file in self.files[::-1]:
            if file not in self.files:
                continue  # it expired while a newer file was searched
            if file.has_some_of(begin_ms, end_ms):
                positions += yield from file.search(hash_, begin_ms, end_ms, count_max - len(positions))
            if file.begin_ms < begin_ms or len(positions) >= count_max:
                break
        return KeyMatches(sorted(positions), self.end_ms, self.end)

    def truncate_to(self, position: int, *, slots_are_sound: bool) -> None:
        """Forget the keys of messages at or behind a position of the log."""
        while len(self.files) > 1 and self.files[-1].begin >= position:
            self.files.pop().remove()
        if self.files and (self.files[-1].end >= position or not slots_are_sound):
            self.files[-1].truncate_to(position, slots_are_sound=slots_are_sound)

    @property
    def extent(self) -> tuple[int, int]:
        """How far it has come: the name of the newest file, which is a number, and its count."""
        return (int(self.files[-1].path.name), self.files[-1].count) if self.files else (0, 0)

    def truncate_torn(self, count: int, position: int) -> None:
        """Have so many entries in the last file; any part of those that came later may be on the disk."""
        self.files[-1].truncate(count, position, slots_are_sound=False)

    def remove_expired(self, log_start: int) -> int:
        """Remove the files, but for the last, whose messages are no longer in the log; return how many."""
        removed = 0
        while len(self.files) > 1 and self.files[0].end < log_start:
            self.files.pop(0).remove()
            removed += 1
        return removed

    def remove(self) -> None:
        """Remove all of it from the disk."""
        while self.files:
            self.files.pop().remove()

    def close(self) -> None:
        while self.files:
            self.files.pop().close()
