"""The audit log: entries are on disk, and only the owner can read them."""

import asyncio
import errno
import resource
import stat
from pathlib import Path

import pytest

from skyroute.console.access import audit
from skyroute.console.access.audit import VALUE_CHARS_MAX, AuditLog


async def test_entries_are_returned_newest_first_with_long_values_cut(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "made" / "audit.jsonl")
    assert log.latest() == []
    await log.write(1, "anna", "10.0.0.1", "topic.create begun", {"topic": "T", "body": "x" * 10_000})
    await log.write(2, "anna", "10.0.0.1", "topic.create failed", {"topic": "T"}, "no room\nat all")
    newest, oldest = log.latest()
    assert (newest.time_ms, newest.failure) == (2, "no room\nat all")
    assert oldest.given == {"topic": "T", "body": "x" * VALUE_CHARS_MAX}
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


async def test_concurrent_entries_are_whole_lines(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    await asyncio.gather(*(log.write(number, "a", "", "x", {"n": "y" * number}) for number in range(100)))
    assert sorted(entry.time_ms for entry in log.latest()) == list(range(100))


async def test_invalid_lines_are_skipped(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    await log.write(1, "a", "", "x", {})
    with log.path.open("ab") as file:
        file.write(b'not json\n{"time_ms": "no number"}\n\xff\n')
    await log.write(2, "a", "", "x", {})
    assert [entry.time_ms for entry in log.latest()] == [2, 1]


async def test_only_the_end_of_a_long_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    for number in range(10):
        await log.write(number, "a", "", "x", {})
    line = log.path.stat().st_size // 10
    monkeypatch.setattr(audit, "READ_BYTES_MAX", line * 3 + line // 2)
    assert [entry.time_ms for entry in log.latest()] == [9, 8, 7]


async def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    await log.write(1, "a", "", "x", {})
    size = log.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))
    try:
        with pytest.raises(OSError, match="No space") as caught:
            await log.write(2, "a", "", "x", {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.ENOSPC
    await log.write(3, "a", "", "x", {})
    assert [entry.time_ms for entry in log.latest()] == [3, 1]


async def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    log = AuditLog(tmp_path)
    with pytest.raises(OSError, match="Is a directory"):
        await log.write(1, "a", "", "x", {})


@pytest.mark.parametrize("line", [b'{"user":"\xff"}', b'{"x":' + b"[" * 5000, b"half a li"])
async def test_a_damaged_line_is_skipped(tmp_path: Path, line: bytes) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    await log.write(1, "a", "", "x", {})
    with log.path.open("ab") as file:
        file.write(line + b"\n")
    await log.write(2, "a", "", "x", {})
    assert [entry.time_ms for entry in log.latest()] == [2, 1]
