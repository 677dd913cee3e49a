"""The key index: files with a table of slots by key hash, and a linked list of entries for each slot.

An entry has the hash of a key, not the key: the caller compares the keys of the messages that are found.
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
"""Maximum number of messages that one search returns."""

TIME_MS_MAX: Final = 1 << 50
"""Maximum store time in a header; a later one, after the year 30000, is damaged."""

_HEADER: Final = Struct(">qqqqii")
_ENTRY: Final = Struct(">iqii")
_SLOT: Final = Struct(">i")
_INT_MAX: Final = 0x7FFFFFFF
_ENTRIES_READ: Final = 50_000


class KeyMatches(NamedTuple):
    """Log positions of messages that may have a key, oldest first, and the newest message of the index."""

    positions: list[int]
    last_stored_at_ms: int
    last_position: int


class IndexFile:
    """One index file: header, slots, entries. Entry 0 is never used."""

    def __init__(self, path: Path, slots: int, entries: int, disk: Disk) -> None:
        self.path = path
        self._slots = slots
        self._entries = entries
        self._entries_at = _HEADER.size + slots * _SLOT.size
        self._disk = disk
        self.descriptor = disk.open(path, self._entries_at + entries * _ENTRY.size)
        self._map = mmap.mmap(self.descriptor, self._entries_at)
        self._is_allocated = False
        self.is_dirty = False
        self.read_header()
        self.is_new = self.count == 1
        """Its name may not be on disk."""

    def __repr__(self) -> str:
        return f"<IndexFile {self.path.name} {self.count - 1} keys {self.begin}..{self.end}>"

    def read_header(self) -> None:
        """Read the header, which the index process may have changed."""
        numbers: tuple[int, ...] = _HEADER.unpack_from(self._map, 0)
        self.begin_ms, self.end_ms, self.begin, self.end, used, count = numbers
        self.count = max(count, 1)
        self._used = min(max(used, 0), self._slots)  # for tools only: a damaged number does not matter

    @property
    def is_sound(self) -> bool:
        return (
            self.count <= self._entries
            and 0 <= self.begin <= self.end
            and 0 <= self.begin_ms <= TIME_MS_MAX
            and 0 <= self.end_ms <= TIME_MS_MAX
        )

    @property
    def room(self) -> int:
        return self._entries - self.count

    def continue_after(self, last: "IndexFile") -> None:
        """Start at the end of the previous file; the first key replaces this."""
        self.begin = self.end = last.end
        self.begin_ms = self.end_ms = last.end_ms

    def add(self, keys: Sequence[Key]) -> None:
        """Add keys; the caller has checked `room`.

        Raises:
            FileWriteError: no key is added.
        """
        self.allocate()
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
        # The count comes first: readers treat a slot that points beyond the count as empty.
        self.write_header()
        for slot_at, number in heads.items():
            _SLOT.pack_into(view, slot_at, number)
        self.is_dirty = True

    def allocate(self) -> None:
        """Allocate disk space for header and slots: a write through the mapping must not find the disk full.

        Raises:
            FileWriteError: there is not enough space.
        """
        if not self._is_allocated:
            self._disk.reserve(self.descriptor, self._entries_at)
            self._is_allocated = True

    def write_header(self) -> None:
        _HEADER.pack_into(self._map, 0, self.begin_ms, self.end_ms, self.begin, self.end, self._used, self.count)

    def search(self, hash_: int, begin_ms: int, end_ms: int, count_max: int) -> Generator[None, None, list[int]]:
        """Return the positions of messages with this key and stored in this time, newest first; in steps."""
        found: list[int] = []
        (number,) = _SLOT.unpack_from(self._map, _HEADER.size + hash_ % self._slots * 4)
        examined = 0
        while 0 < number < self.count and len(found) < count_max:
            examined += 1
            if examined % SLOT_ENTRIES_A_STEP == 0:
                yield
                if self._map.closed:
                    break  # the file has expired meanwhile
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
        """Drop the keys of messages at or behind a position of the log.

        After a crash of the machine, slots may point to entries that are not on disk; then all slots are rebuilt.
        """
        kept = self._first_behind(position)
        if slots_are_sound:
            self.allocate()
            self._unlink_from(kept)
        self.truncate(kept, position, slots_are_sound=slots_are_sound)

    def truncate(self, kept: int, position: int, *, slots_are_sound: bool) -> None:
        """Keep the first entries, those of messages before a position of the log."""
        self.allocate()
        self.count = kept
        if kept > 1:
            _, self.end, age_s, _ = self._entry(kept - 1)
            self.end_ms = self.begin_ms + max(age_s, 0) * 1000 + 999
        else:
            self.begin = self.end = min(self.begin, position)
            self.end_ms = self.begin_ms
        if not slots_are_sound:
            self._rebuild_slots()
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
        # Newest first, each slot moves back to the previous entry. Slots that a crash left unwritten do not change.
        for number in range(self.count - 1, kept - 1, -1):
            hash_, _, _, previous = self._entry(number)
            self._used -= not previous  # counted when this entry was added; counting all slots takes 70 ms
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
        self._used = len(slots) - slots.count(0)
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
    """All index files, oldest first; keys are added to the last one."""

    def __init__(self, folder: Path, slots: int, entries: int, disk: Disk) -> None:
        self._folder = folder
        self._slots = slots
        self._entries = entries
        self._disk = disk
        self.files: list[IndexFile] = []

    def load(self, newest: int | None = None) -> None:
        """Open the files. A damaged one and all behind it are removed; recovery writes them again.

        `newest` is the name of the last file to trust; files behind it are removed.

        Raises:
            StoreDamagedError: a file is larger than the settings allow.
        """
        paths = sorted(path for path in self._folder.glob("*") if path.name.isdecimal())
        while newest is not None and paths and int(paths[-1].name) > newest:
            self._disk.remove(paths.pop())
        whole_bytes = _HEADER.size + self._slots * _SLOT.size + self._entries * _ENTRY.size
        sizes = [path.stat().st_size for path in paths]
        if sizes and max(sizes) > whole_bytes:
            raise StoreDamagedError(
                f"a file of {self._folder} has {max(sizes)} bytes (expected {whole_bytes}): configure the "
                "maxHashSlotNum and maxIndexNum that the files were written with"
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
            log.warning("damaged index file removed file=%s", path)
            for later in paths[len(self.files) :]:
                self._disk.remove(later)
            break

    def reload(self) -> None:
        """Read what the index process has added."""
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
        """Log position of the newest message in the index."""
        return self.files[-1].end if self.files else 0

    @property
    def end_ms(self) -> int:
        """Store time of that message."""
        return self.files[-1].end_ms if self.files else 0

    def add(self, keys: list[Key], left: int = 0) -> None:
        """Add all keys but the last `left`, and remove the added ones from the list.

        Raises:
            FileWriteError: the keys that are left in the list are not added.
        """
        while len(keys) > left:
            if not self.files or self.files[-1].room <= 0:
                self.begin_file(keys[0][2])
            file = self.files[-1]
            fitting = keys[: min(file.room, len(keys) - left)]
            file.add(fitting)
            del keys[: len(fitting)]

    def begin_file(self, now_ms: int) -> None:
        """Add an empty file, named by the time, as Apache's broker does."""
        try:
            moment = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone()
            name = int(f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}")
        except (ValueError, OverflowError, OSError):
            name = 0  # outside the range of dates
        if self.files:
            # Names are in order, even if the clock steps back.
            name = max(name, int(self.files[-1].path.name) + 1)
        file = IndexFile(self._folder / f"{name:017d}", self._slots, self._entries, self._disk)
        try:
            file.allocate()
        except BaseException:
            file.remove()
            raise
        if self.files:
            file.continue_after(self.files[-1])
            self.files[-1].release_memory()
        file.write_header()
        self.files.append(file)

    def find(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> KeyMatches:
        """Return the positions of messages of a topic that may have a key and were stored in a time range."""
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
                continue  # it expired during the search of a newer file
            if file.has_some_of(begin_ms, end_ms):
                positions += yield from file.search(hash_, begin_ms, end_ms, count_max - len(positions))
            if file.begin_ms < begin_ms or len(positions) >= count_max:
                break
        return KeyMatches(sorted(positions), self.end_ms, self.end)

    def truncate_to(self, position: int, *, slots_are_sound: bool) -> None:
        """Drop the keys of messages at or behind a position of the log."""
        # A file without keys may be without a header: a process that is killed may have just created it.
        while len(self.files) > 1 and (self.files[-1].begin >= position or self.files[-1].count == 1):
            self.files.pop().remove()
        if self.files and (self.files[-1].end >= position or not slots_are_sound):
            self.files[-1].truncate_to(position, slots_are_sound=slots_are_sound)

    @property
    def extent(self) -> tuple[int, int]:
        """The name of the newest file, which is a number, and its number of entries."""
        return (int(self.files[-1].path.name), self.files[-1].count) if self.files else (0, 0)

    def truncate_torn(self, count: int, position: int) -> None:
        """Keep the first entries of the last file; any part of the later ones may be on disk."""
        self.files[-1].truncate(count, position, slots_are_sound=False)

    def remove_expired(self, log_start: int) -> int:
        """Remove files whose messages are no longer in the log, except the last; return their number."""
        removed = 0
        while len(self.files) > 1 and self.files[0].end < log_start:
            self.files.pop(0).remove()
            removed += 1
        return removed

    def remove(self) -> None:
        """Remove all files."""
        while self.files:
            self.files.pop().remove()

    def close(self) -> None:
        while self.files:
            self.files.pop().close()
