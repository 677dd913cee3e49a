"""Checks the key index: its entries against the log, its slots and linked lists against its entries.

Entries are in the order of the log, so both are read together while the log is scanned.
"""

from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from skyroute.broker.store.commit_log import ScannedTuple
from skyroute.broker.store.files.read_only import segments_in
from skyroute.broker.store.files.segment import OpenSegments, Segment
from skyroute.broker.store.index.keys import Key, collect_keys, key_hash
from skyroute.broker.store.settings import StoreSettings
from skyroute.broker.store.verification.findings import Report
from skyroute.broker.store.verification.verify_queues import KnownLog
from skyroute.message.properties import find_property
from skyroute.message.property_names import TAGS

_HEADER: Final = Struct(">qqqqii")
_ENTRY: Final = Struct(">iqii")
_ENTRY_WORDS: Final = _ENTRY.size // 4
_ENTRIES_READ: Final = 10_000
_INT_MAX: Final = 0x7FFFFFFF
_KEYS_MAX: Final = 1 << 15
"""More keys than fit into a record."""

_COST: Final = "searches by key miss some messages, or return others; queues and records are not affected"
_ADVICE: Final = "stop the broker and remove the folder index: the next start rebuilds it from the log"


class _Entry(NamedTuple):
    """An entry of an index file."""

    file: "_File"
    number: int
    hash: int
    position: int
    age_s: int


class _File:
    """One file of the index."""

    __slots__ = ("begin_ms", "count", "entries_at", "name", "segment", "slots")

    def __init__(self, segment: Segment, name: str, slots: int, entries: int) -> None:
        self.segment = segment
        self.name = name
        self.slots = slots
        self.entries_at = _HEADER.size + slots * 4
        header = segment.read(0, _HEADER.size).ljust(_HEADER.size, b"\0")
        self.begin_ms, _, _, _, _, count = _HEADER.unpack(header)
        room = max(0, min(entries, (segment.size - self.entries_at) // _ENTRY.size))
        self.count = min(max(count, 1), max(room, 1))

    def entry_at(self, number: int) -> int:
        """Return the offset of an entry in the file."""
        return self.entries_at + number * _ENTRY.size

    def raw_entries(self) -> Iterator[tuple[int, bytes]]:
        """Yield the entries in chunks, each with the number of its first entry."""
        for first in range(1, self.count, _ENTRIES_READ):
            stop = min(first + _ENTRIES_READ, self.count)
            yield first, self.segment.read(self.entry_at(first), (stop - first) * _ENTRY.size)


class _Fault:
    """The first of several similar findings, and their number."""

    __slots__ = ("count", "file", "offset", "what")

    def __init__(self) -> None:
        self.count = 0
        self.file = self.what = ""
        self.offset: int | None = None

    def note(self, file: str, offset: int | None, what: str) -> None:
        if not self.count:
            self.file, self.offset, self.what = file, offset, what
        self.count += 1


class IndexCheck:
    """Compares the index with the log, record by record."""

    def __init__(
        self, folder: Path, opened: OpenSegments, report: Report, log: KnownLog, settings: StoreSettings
    ) -> None:
        """Open the index files; the settings have their sizes."""
        self._report = report
        self._log_start, self._derived_end, _ = log
        self._pending = 0
        self._missing, self._extra, self._wrong_age = _Fault(), _Fault(), _Fault()
        self._keys = 0
        self._is_enabled = settings.index_enabled
        segments = segments_in(folder / "index", opened)
        whole = _HEADER.size + settings.index_slots * 4 + settings.index_entries * _ENTRY.size
        self._files: list[_File] = []
        for segment in segments:
            name = f"index/{segment.path.name}"
            if segment.size != whole:
                what = f"the file has {segment.size} bytes, with {settings.index_slots} slots and "
                what += f"{settings.index_entries} entries (expected {whole} bytes)"
                report.add("index", name, None, what, _COST, _ADVICE)
            self._files.append(_File(segment, name, settings.index_slots, settings.index_entries))
        self._entries = self._read_entries()
        self._ahead = [entry for _ in range(2) if (entry := next(self._entries, None))]

    def _read_entries(self) -> Iterator[_Entry]:
        for file in self._files:
            for first, raw in file.raw_entries():
                for number, (hash_, position, age_s, _) in enumerate(_ENTRY.iter_unpack(raw), first):
                    yield _Entry(file, number, hash_, position, age_s)

    def _next(self) -> None:
        self._ahead.pop(0)
        if (entry := next(self._entries, None)) is not None:
            self._ahead.append(entry)

    # ------------------------------------------------------------------------------------------------ log against index

    def check(self, record: ScannedTuple, is_damaged: Callable[[int], bool]) -> None:
        """Compare the entries of an intact record."""
        position, _, topic, _, _, sys_flag, stored_at_ms, raw = record
        keys: list[Key] = []
        collect_keys(keys, topic, raw, sys_flag, position, stored_at_ms)
        self._keys += len(keys)
        self._skip_to(position, is_damaged)
        found: set[int] = set()
        file = None
        while self._ahead and self._ahead[0].position == position and len(found) < _KEYS_MAX:
            entry = self._ahead[0]
            file = entry.file
            age_s = min(max((stored_at_ms - file.begin_ms) // 1000, 0), _INT_MAX)
            if entry.age_s != age_s:
                what = f"entry {entry.number} has {entry.age_s} s after the first entry (expected {age_s})"
                self._wrong_age.note(file.name, file.entry_at(entry.number), what)
            if entry.hash not in {key[0] for key in keys} and not _is_tag(entry.hash, topic, raw):
                what = f"entry {entry.number} has a hash that matches no key of its record at {position}"
                self._extra.note(file.name, file.entry_at(entry.number), what)
            found.add(entry.hash)
            self._next()
        missing = {key[0] for key in keys} - found
        if not missing:
            return
        if self._derived_end is not None and position >= self._derived_end and not self._ahead:
            self._pending += 1
        else:
            file = file or (self._ahead[0].file if self._ahead else None)
            name = "index" if file is None else file.name
            self._missing.note(name, None, f"{len(missing)} keys of the record at {position} are missing")

    def _skip_to(self, position: int, is_damaged: Callable[[int], bool]) -> None:
        """Skip entries of earlier records, and entries with a damaged position."""
        while self._ahead:
            entry = self._ahead[0]
            is_damaged_entry = len(self._ahead) > 1 and position <= self._ahead[1].position < entry.position
            if entry.position >= position and not is_damaged_entry:
                return
            if entry.position >= self._log_start and not is_damaged(entry.position):
                self._note_extra(entry)
            self._next()

    def _note_extra(self, entry: _Entry) -> None:
        what = f"entry {entry.number} points to {entry.position}, which is no record with keys"
        self._extra.note(entry.file.name, entry.file.entry_at(entry.number), what)

    # ------------------------------------------------------------------------------------------------ index against log

    def finish(self, is_damaged: Callable[[int], bool]) -> None:
        """Check headers, slots and linked lists, and report all findings. Called after the last record of the log."""
        while self._ahead:
            if self._ahead[0].position >= self._log_start and not is_damaged(self._ahead[0].position):
                self._note_extra(self._ahead[0])
            self._next()
        if self._is_enabled and not self._files and self._keys:
            self._report.add(
                "index",
                "index",
                None,
                f"no file; the log has {self._keys} keys",
                _COST,
                _ADVICE,
            )
        elif self._files:
            for fault in (self._missing, self._extra, self._wrong_age):
                self._report_fault(fault)
        for file in self._files:
            self._check_header(file)
            self._check_lists(file)
        self._report.checked["index files"] += len(self._files)
        self._report.checked["index entries"] += sum(file.count - 1 for file in self._files)
        if self._pending:
            self._report.notes.append(f"{self._pending} records at the end of the log are not in the index yet")

    def _report_fault(self, fault: _Fault) -> None:
        if fault.count:
            more = f"; {fault.count - 1} more like this" if fault.count > 1 else ""
            self._report.add("index", fault.file, fault.offset, f"{fault.what}{more}", _COST, _ADVICE)

    def _check_header(self, file: _File) -> None:
        header = file.segment.read(0, _HEADER.size).ljust(_HEADER.size, b"\0")
        begin_ms, end_ms, begin, end, _, count = _HEADER.unpack(header)
        what = ""
        if max(count, 1) != file.count or count < 0:
            what = f"the header has a count of {count} entries (expected at most {file.count})"
        elif file.count > 1:
            _, first, _, _ = _ENTRY.unpack(file.segment.read(file.entry_at(1), _ENTRY.size))
            _, last, age_s, _ = _ENTRY.unpack(file.segment.read(file.entry_at(file.count - 1), _ENTRY.size))
            if (begin, end) != (first, last):
                what = f"the header has positions {begin} to {end}, the entries {first} to {last}"
            elif abs(end_ms - begin_ms - age_s * 1000) > 2000 and 0 < age_s < _INT_MAX:
                what = f"the header has times {begin_ms} and {end_ms}, the last entry {age_s} s after the first"
        if what:
            self._report.add("index", file.name, 0, what, _COST, _ADVICE)

    def _check_lists(self, file: _File) -> None:
        """Build the linked lists again, and compare."""
        heads = array("i", bytes(file.slots * 4))
        slots = file.slots
        fault = _Fault()
        for first, raw in file.raw_entries():
            words = array("i", raw)
            words.byteswap()
            previous = words[4::_ENTRY_WORDS]
            for number, (hash_, linked) in enumerate(zip(words[::_ENTRY_WORDS], previous, strict=True), first):
                slot = hash_ % slots
                if linked != heads[slot]:
                    what = f"entry {number} points to entry {linked} (expected {heads[slot]})"
                    fault.note(file.name, file.entry_at(number), what)
                heads[slot] = number
        heads.byteswap()
        raw_heads, at = heads.tobytes(), _HEADER.size
        for start in range(0, len(raw_heads), 1 << 20):
            piece = raw_heads[start : start + (1 << 20)]
            found = file.segment.read(at + start, len(piece))
            if found != piece:
                for slot in range(0, len(piece), 4):
                    if found[slot : slot + 4] != piece[slot : slot + 4]:
                        number = (start + slot) // 4
                        fault.note(file.name, at + start + slot, f"slot {number} points to a wrong entry")
        self._report_fault(fault)


def _is_tag(hash_: int, topic: str, raw_properties: bytes) -> bool:
    """Return whether an entry is the tag of its record: Apache's broker indexes tags as well."""
    tag = find_property(raw_properties, TAGS)
    return bool(tag) and hash_ == key_hash(topic, f"T#{tag}".encode())
