"""Checks the tables of a store, and its timer files."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from struct import Struct
from typing import Any, Final

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.json_file import read_json
from skyroute.broker.store.files.read_only import segments_in
from skyroute.broker.store.files.segment import OpenSegments
from skyroute.broker.store.verification.findings import Report
from skyroute.message.reserved_topics import TIMER_TOPIC

ReadTable = Callable[[Any], Collection[str]]
"""Parses a table as the broker does, and returns the names in it; raises StoreDamagedError."""

TABLES_FOLDER: Final = "config"
TOPICS_TABLE: Final = "topics.json"
_TIMER_UNIT: Final = Struct(">iqiqiqii8x")
_WHEEL_SLOT: Final = Struct(">qqqii")


class TableCheck:
    """Checks tables and timer files."""

    def __init__(
        self,
        folder: Path,
        opened: OpenSegments,
        report: Report,
        tables: Mapping[str, ReadTable],
        check_timer_page: Callable[[bytes], str],
    ) -> None:
        self.folder = folder
        self.report = report
        self._opened = opened
        self._tables = tables
        self._check_timer_page = check_timer_page

    # ----------------------------------------------------------------------------------------------------------- tables

    def check_tables(self) -> frozenset[str] | None:
        """Check the tables; return the topics of the broker, None if their table is damaged."""
        folder = self.folder / TABLES_FOLDER
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        tables = sorted({name.removesuffix(".bak") for name in names if name.endswith((".json", ".json.bak"))})
        topics = None
        for name in tables:
            intact = self._check_table(folder / name)
            if name == TOPICS_TABLE and intact is not None:
                topics = frozenset(intact)
        if TOPICS_TABLE not in tables and (self.folder / "consumequeue").is_dir() and folder.is_dir():
            self._add_table(TOPICS_TABLE, "the file is missing, and so is its backup", "topics and their settings")
        for name in names:
            if ".damaged-" in name:
                self.report.notes.append(f"{TABLES_FOLDER}/{name} is a damaged file that an earlier start has renamed")
        damage = self.folder / "damage.json"
        if damage.exists():
            self._check_table(damage)
        return topics

    def _check_table(self, path: Path) -> Collection[str] | None:
        """Check a table and its backup; return the names in the intact one."""
        read = self._tables.get(path.name, _read_any)
        intact, faults = None, {}
        for each in (path, path.with_name(f"{path.name}.bak")):
            try:
                table = read_json(each, read)
                self.report.checked["tables"] += 1
                intact = table if intact is None else intact
            except FileNotFoundError:
                if each == path:
                    faults[each] = "the file is missing, its backup is there"
            except StoreDamagedError as error:
                faults[each] = str(error).removeprefix(f"{each} is ")
        for each, what in faults.items():
            if each != path:
                cost = "none, as long as the file itself is intact"
            elif intact is not None:
                cost = "the newest change, which is not in the backup"
            else:
                cost = "the content of the table; the broker does not start"
            self._add_table(self._name(each), what, cost)
        return intact

    def _add_table(self, name: str, what: str, cost: str) -> None:
        advice = "restore the file from a copy; or move it away, to start with its backup or without it"
        self.report.add("table", name, None, what, cost, advice)

    # ------------------------------------------------------------------------------------------------------ timer files

    def check_timer_files(self, log_end: int, *, was_closed: bool) -> None:
        has_timers = (self.folder / "consumequeue" / TIMER_TOPIC).is_dir()
        name = f"{TABLES_FOLDER}/timercheck"
        try:
            page = (self.folder / name).read_bytes()
        except FileNotFoundError:
            if has_timers and was_closed:
                self._add_timer(name, None, "the file is missing, and there are timer messages")
            page = b""
        if page and has_timers and not page.strip(b"\0"):
            self._add_timer(name, None, "the file has only zeros, and there are timer messages")
        elif what := self._check_timer_page(page):
            self._add_timer(name, 0, what)
        self._check_timer_log(log_end)

    def _add_timer(self, name: str, offset: int | None, what: str) -> None:
        cost = "timer messages in the log may be delivered again, or not at all"
        self.report.add(
            "timer", name, offset, what, cost, "restore the file from a copy, or remove it to deliver all again"
        )

    def _check_timer_log(self, log_end: int) -> None:
        """Check the timer log and the timer wheel, which only Apache's broker has."""
        end = 0
        for segment in segments_in(self.folder / "timerlog", self._opened):
            whole = segment.size - segment.size % _TIMER_UNIT.size
            step = _TIMER_UNIT.size * 1024
            for at in range(0, whole, step):
                for number, unit in enumerate(_TIMER_UNIT.iter_unpack(segment.read(at, min(step, whole - at)))):
                    if not any(unit):
                        continue
                    place = at + number * _TIMER_UNIT.size
                    end = segment.start + place + _TIMER_UNIT.size
                    size, previous, magic, _, _, position, record_bytes, _ = unit
                    if size != _TIMER_UNIT.size or not 0 < magic < 16 or previous >= end or record_bytes <= 0:
                        self._add_timer(self._name(segment.path), place, f"invalid unit of the timer log: {unit}")
                    elif position >= log_end:
                        self._add_timer(self._name(segment.path), place, f"it points to {position}, behind the log")
        wheel = self.folder / "timerwheel"
        content = wheel.read_bytes() if wheel.is_file() else b""
        slots = _WHEEL_SLOT.iter_unpack(content[: len(content) - len(content) % _WHEEL_SLOT.size])
        for number, (due, first, last, _, _) in enumerate(slots):
            if due < 0 or max(first, last) >= max(end, 1):
                self._add_timer("timerwheel", number * _WHEEL_SLOT.size, f"slot {number} points to {first} and {last}")

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.folder))


def _read_any(raw: object) -> Collection[str]:
    if not isinstance(raw, dict):
        raise StoreDamagedError(f"expected an object, found {type(raw).__name__}")
    return raw
