"""Journals: every line is a record or named as damaged, recovery closes any open segment, and records survive encoding.

Input: the content of a segment.
"""

from contextlib import suppress
from pathlib import Path

import msgspec

from skyroute.nameserver.errors import DamagedJournalError
from skyroute.nameserver.journal.index import INDEX_NAME
from skyroute.nameserver.journal.lines import show_record
from skyroute.nameserver.journal.reader import Damage, decode_lines, last_records, read_records
from skyroute.nameserver.journal.recovery import recover
from skyroute.nameserver.journal.replay import Replay
from skyroute.nameserver.journal.schema import Record, record_decoder
from skyroute.nameserver.journal.segments import summarize
from skyroute.nameserver.journal.verify import verify
from tests.fuzz.scratch import empty_folder
from tests.support.disks import NoSyncDisk


def check(data: bytes) -> None:
    folder = empty_folder()
    is_open = bool(data) and data[-1] != ord("\n")
    name = f"{1:020}.jsonl"
    (folder / (f"_{name}.open" if is_open else name)).write_bytes(data)
    replay = Replay()
    lines = list(decode_lines(data, Path(name)))
    for found in lines:
        if isinstance(found, Damage):
            assert str(found)
            continue
        check_record(found)
        replay.apply(found)
    read(folder)
    verify(folder)
    recovered = recover(folder, NoSyncDisk())
    summary = summarize(data[: data.rfind(b"\n") + 1], 1)
    assert recovered.last == (0 if summary is None else summary.last)
    assert not list(folder.glob("_*.open"))
    (folder / INDEX_NAME).write_bytes(data)
    read(folder)
    verify(folder)
    recover(folder, NoSyncDisk())


def check_record(record: Record) -> None:
    show_record(record)
    assert isinstance(record.topics, set)
    assert record_decoder.decode(msgspec.json.encode(record)) == record


def read(folder: Path) -> None:
    with suppress(DamagedJournalError):
        list(read_records(folder))
    with suppress(DamagedJournalError):
        last_records(folder, 3)
