"""A name server as a process, from its boot line to its exit code."""

from __future__ import annotations

import select
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

BOOT_LINE = "The Name Server boot success. serializeType=JSON, address "
BOOT_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


class NotBootedError(AssertionError):
    """The process ended, or printed no boot line in time."""


@dataclass(slots=True)
class Booted:
    """A running server: its address, and the lines it printed before the boot line."""

    process: subprocess.Popen[str]
    address: str
    lines: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Stop it, and return its exit code and stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=STOP_TIMEOUT_S)
        return self.process.returncode, errors


@contextmanager
def booted(
    command: Sequence[str | Path], *, cwd: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Booted]:
    """Start `command`, wait for its boot line, and end it after the block."""
    with subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield _await_boot_line(process)
        finally:
            process.kill()


def _await_boot_line(process: subprocess.Popen[str]) -> Booted:
    assert process.stdout is not None
    lines: list[str] = []
    while True:
        # Lines come one at a time and flushed, so the buffer above the descriptor is empty whenever we wait.
        readable, _, _ = select.select([process.stdout], [], [], BOOT_TIMEOUT_S)
        line = process.stdout.readline() if readable else ""
        if not line:
            process.kill()
            _, errors = process.communicate()
            raise NotBootedError(f"no boot line after {lines}; stderr:\n{errors}")
        if line.startswith(BOOT_LINE):
            return Booted(process, line.removeprefix(BOOT_LINE).rstrip("\n"), lines)
        lines.append(line.rstrip("\n"))
