"""What the machine says about processes: their memory, and how much of the machine was left to them."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Self

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Resident memory of a process and its children, in units of 1,000,000 bytes."""
    return sum(_resident_bytes(each) for each in (pid, *_children(pid))) / 1e6


def private_mb(pid: int) -> float:
    """The same without the pages of mapped files, which the kernel may take back at any time."""
    return sum(_resident_bytes(each, "RssAnon") for each in (pid, *_children(pid))) / 1e6


def cpu_s(pid: int) -> float:
    """Processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def cpu_s_of_all(pid: int) -> float:
    """Processor time that a process and its children have used so far."""
    return sum(map(cpu_s, (pid, *_children(pid))))


def await_idle_children(pid: int, timeout_s: float = 10.0) -> None:
    """Wait until the children of a process have finished what they do."""
    deadline, used_s = time.monotonic() + timeout_s, -1.0
    while used_s != (used_s := sum(map(cpu_s, _children(pid)))) and time.monotonic() < deadline:
        time.sleep(0.1)


class Bystanders:
    """How much of the machine went to processes that take no part, from entering to leaving.

    Time that a hypervisor took away counts too.
    """

    def __init__(self, participants: Iterable[int] = ()) -> None:
        self._participants = list(participants)
        self._since = self._before = 0.0
        self.share = 0.0

    def __enter__(self) -> Self:
        self._since, self._before = time.monotonic(), self._foreign_s()
        return self

    def __exit__(self, *_: object) -> None:
        available_s = (time.monotonic() - self._since) * (os.cpu_count() or 1)
        self.share = max(0.0, (self._foreign_s() - self._before) / available_s)

    def _foreign_s(self) -> float:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        ours = {os.getpid(), *(each for pid in self._participants for each in (pid, *_children(pid)))}
        return _busy_s() - sum(map(cpu_s, ours)) - ended.ru_utime - ended.ru_stime


def _busy_s() -> float:
    user, nice, system, _idle, _waiting, irq, soft_irq, stolen = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + irq + soft_irq + stolen) / _TICKS_PER_S


def _resident_bytes(pid: int, what: str = "VmRSS") -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    return 0


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += (child, *_children(child))
    return found
