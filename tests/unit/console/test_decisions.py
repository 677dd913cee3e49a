from pathlib import Path

from skyroute.access.audit import AuditRecord
from skyroute.console.access.decisions import DECISIONS_MAX, latest_decisions


def record(time_ms: int, server: str = "broker-a") -> AuditRecord:
    return AuditRecord(
        time_ms=time_ms, server=server, source="10.0.0.1", code=310, is_allowed=False, reason="bad_signature"
    )


def test_the_latest_decisions_of_all_files_come_first(tmp_path: Path) -> None:
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    first.write_bytes(record(1).line() + b"{half a li\n" + record(4).line())
    second.write_bytes(record(3, "ns").line() + record(2, "ns").line())
    found = latest_decisions([first, second, tmp_path / "missing"])
    assert [(one.time_ms, one.server) for one in found] == [(4, "broker-a"), (3, "ns"), (2, "ns"), (1, "broker-a")]


def test_a_long_file_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(record(number).line() for number in range(10_000)))
    found = latest_decisions([path])
    assert [one.time_ms for one in found] == list(range(9_999, 9_999 - DECISIONS_MAX, -1))
