import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skyroute.access.audit import TEXT_CHARS_MAX, AuditRecord, decode_record
from skyroute.access.audit_log import REFUSALS_MAX, SEVERAL, WAITING_MAX, AuditLog
from skyroute.files.errors import FileWriteError


def record(number: int, source: str = "10.0.0.1") -> AuditRecord:
    return AuditRecord(time_ms=number, server="broker-a", source=source, code=25, is_allowed=True, reason="policy")


def write(log: AuditLog, *records: AuditRecord) -> None:
    for one in records:
        log.put(one)
    log.write(log.take())


def test_records_are_lines_of_json_that_only_the_owner_reads(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "logs" / "audit.log")
    umask = os.umask(0)
    try:
        write(log, record(1), record(2))
        write(log, record(3))
    finally:
        os.umask(umask)
    lines = log.path.read_bytes().splitlines()
    assert [decode_record(line) for line in lines] == [record(1), record(2), record(3)]
    assert json.loads(lines[0])["reason"] == "policy"
    assert log.path.stat().st_mode & 0o777 == 0o600
    assert log.waiting == 0


def test_files_are_rotated_and_the_oldest_is_removed(tmp_path: Path) -> None:
    size = len(record(1).line())
    log = AuditLog(tmp_path / "audit.log", file_bytes=3 * size, files_kept=2)
    write(log, *map(record, range(1, 9)))
    write(log, record(9))
    for number in range(10, 12):
        write(log, record(number))
    found = {
        path.name: [decode_record(line).time_ms for line in path.read_bytes().splitlines()]
        for path in sorted(tmp_path.iterdir())
    }
    assert found == {"audit.log": [10, 11], "audit.log.1": [7, 8, 9], "audit.log.2": [4, 5, 6]}


def test_a_record_longer_than_a_file_is_written(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log", file_bytes=10, files_kept=0)
    write(log, record(1), record(2))
    assert [decode_record(line).time_ms for line in log.path.read_bytes().splitlines()] == [2]


def test_waiting_records_have_a_bound(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    for _ in range(WAITING_MAX + 5):
        log.put(record(1))
    assert (log.waiting, log.dropped) == (WAITING_MAX, 5)


def refused(time_ms: int, source: str = "10.0.0.1", **more: Any) -> AuditRecord:
    return msgspec.structs.replace(record(time_ms, source), is_allowed=False, reason="no_user", **more)


def test_equal_refusals_become_one_record_with_their_number(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    for one in (refused(1), refused(2), record(3), record(3), refused(4, user="x"), refused(5)):
        log.put(one)
    assert log.take() == [refused(1, count=3), record(3), record(3), refused(4, user="x")]


def test_strangers_cannot_push_out_other_records(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    log.put(record(0))
    for number in range(1, 10_000):
        log.put(refused(number, user=f"u{number}"))
        log.put(refused(number, f"10.1.{number % 100}.{number // 100}"))
    taken = log.take()
    assert len(taken) <= 2 * REFUSALS_MAX + 2
    assert taken[0] == record(0)
    assert sum(one.count for one in taken[1:]) == 2 * 9_999
    assert {one.reason for one in taken[1:]} == {"no_user", SEVERAL}
    assert log.take() == []


def test_texts_of_peers_are_cut(tmp_path: Path) -> None:
    long = record(1, "x" * 100_000)
    assert len(long.line()) < 2 * TEXT_CHARS_MAX
    assert b"\n" not in record(1, "a\nb").line()[:-1]
    write(AuditLog(tmp_path / "audit.log"), long)
    assert (tmp_path / "audit.log").stat().st_size < 2 * TEXT_CHARS_MAX


def test_a_disk_that_refuses_is_an_error_and_counted(tmp_path: Path) -> None:
    (tmp_path / "audit.log").mkdir()
    log = AuditLog(tmp_path / "audit.log")
    log.put(record(1))
    with pytest.raises(FileWriteError):
        log.write(log.take())
    assert log.dropped == 1


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"")
    (tmp_path / "audit.log").symlink_to(tmp_path / "target")
    with pytest.raises(FileWriteError):
        AuditLog(tmp_path / "audit.log").write([record(1)])
    assert (tmp_path / "target").read_bytes() == b""
