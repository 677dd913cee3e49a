"""The log of popped messages that were taken: damaged lines are skipped, and ranges are ascending.

Input: the lines of a file of this start of the machine; a first byte of 1 replaces the first line as well.
"""

import msgspec

from skyroute.broker.pop.taken_log import TakenLog
from tests.fuzz.scratch import empty_folder
from tests.support.disks import NoSyncDisk


def check(data: bytes) -> None:
    folder, disk = empty_folder(), NoSyncDisk()
    first = msgspec.json.encode(["skyroute-pop-taken-1", disk.boot_id(), 0]) + b"\n"
    (folder / "popTaken.0").write_bytes(data[1:] if data[:1] == b"\1" else first + data[1:])
    for ranges in TakenLog(folder, disk).load(folder / "consumerOffset.json").values():
        flat = [offset for pair in ranges for offset in pair]
        assert flat == sorted(flat)
        for start, end in ranges:
            assert ranges.gap(start)[0] == end + 1
