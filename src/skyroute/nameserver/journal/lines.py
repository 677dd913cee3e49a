"""Formats records as text lines."""

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final

from skyroute.nameserver.journal.schema import CONTROLLER_KINDS, Kind, Record, State
from skyroute.nameserver.journal.times import show_moment

_PLAIN: Final = (
    *("cluster", "address", "namespace", "key", "restored_brokers", "torn_bytes", "reason"),
    *("master_epoch", "sync_set_epoch", "unclean"),
)
"""Fields that are shown as they are."""
_WITH_STATES: Final = CONTROLLER_KINDS | {
    *(Kind.BROKER_CHANGED, Kind.GROUP_CHANGED, Kind.FILTER_SERVERS_CHANGED, Kind.KV_CHANGED),
}
"""Kinds whose state before and after is shown."""
NAMES_SHOWN: Final = 5
VALUE_CHARS_SHOWN: Final = 80
HEADING: Final = f"{'#TIME':<23}  {'#SEQ':>10}  {'#WHAT':<22}  {'#BROKER':<20}  {'#CAUSE':<18}  #DETAILS"


def show_record(record: Record) -> str:
    """Return one line, in the columns of `HEADING`."""
    broker = record.broker or ""
    if record.broker_id is not None:
        broker += f"[{record.broker_id}]"
    columns = f"{show_moment(record.wall_ms):<23}  {record.seq:>10}  {record.kind:<22}  {broker:<20}  "
    line = f"{columns}{record.cause or '':<18}  {' '.join(details(record))}".rstrip()
    # A value may contain control characters, which must not reach the terminal.
    return line if line.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def details(record: Record) -> Iterator[str]:
    """Yield the other fields as `name=value`; of topics only the first few names."""
    for name in _PLAIN:
        value = getattr(record, name)
        is_shown_below = name == "cluster" and record.kind == Kind.GROUP_CHANGED
        if value is not None and not is_shown_below and not (name == "torn_bytes" and value == 0):
            yield f"{name}={value}"
    if record.missing_from is not None:
        yield f"missing={record.missing_from}..{record.seq}"
    if record.alive_ms is not None:
        yield f"alive_until={show_moment(record.alive_ms)}"
    if record.kind in _WITH_STATES:
        yield from _difference(record.before or State(), record.after or State())
    elif record.version is not None:
        yield f"version={record.version.counter}"
    if record.lease_s is not None:
        yield f"lease_s={record.lease_s:g}"
    for name in ("added", "changed", "removed", "forbidden", "restored", "mappings", "others"):
        names = getattr(record, name)
        if names:
            yield f"{name}={_names(names)}"
    for key, (before, after) in (record.settings or {}).items():
        yield f"{key}={before}->{after}"
    if record.peer is not None:
        yield f"peer={record.peer}"


def _difference(before: State, after: State) -> Iterator[str]:
    for name in State.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if old == new:
            continue
        if name == "version":
            old, new = (None if version is None else version.counter for version in (old, new))
        yield f"{name}={_short(old)}->{_short(new)}"


def _short(value: object) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= VALUE_CHARS_SHOWN else f"{text[:VALUE_CHARS_SHOWN]}…"


def _names(names: Collection[str]) -> str:
    shown = ",".join(islice(names, NAMES_SHOWN))
    return f"{len(names)}[{shown}{',…' if len(names) > NAMES_SHOWN else ''}]"
