"""A name server as a process, with access to its log, memory, open files and resource limits.

The log goes to a file, because a full pipe would block the server.
"""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from tests.support.booted import BOOT_LINE, BOOT_TIMEOUT_S, STOP_TIMEOUT_S, NotBootedError
from tests.support.waiting import wait_until

Loop = Literal["uvloop", "asyncio"]

COMMAND: Final = (sys.executable, "-m", "skyroute", "nameserver")
LOG_LINE: Final = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) [\w.]+ - .+")


@dataclass(slots=True)
class ServerProcess:
    """A running server."""

    process: subprocess.Popen[bytes]
    address: str
    folder: Path
    """Where its files are."""
    started_at: int
    """Length of the log when it had started; it logs every setting before that."""

    @property
    def pid(self) -> int:
        return self.process.pid

    # Resources

    @property
    def rss_mb(self) -> float:
        """Memory it holds now, in units of 1,000,000 bytes."""
        return self._status_mb("VmRSS")

    @property
    def peak_rss_mb(self) -> float:
        """The most memory it ever held."""
        return self._status_mb("VmHWM")

    def _status_mb(self, name: str) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1]) * 1024 / 1e6

    @property
    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208 - names are all that is wanted

    @property
    def cpu_s(self) -> float:
        """Processor time that it has used so far."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def limit(self, kind: int, value: int) -> None:
        """Set a soft limit of the running process, such as `resource.RLIMIT_NOFILE`."""
        _, hard = resource.prlimit(self.pid, kind)
        resource.prlimit(self.pid, kind, (value, hard))

    def unlimit(self, kind: int) -> None:
        """Raise a soft limit to the hard limit."""
        _, hard = resource.prlimit(self.pid, kind)
        resource.prlimit(self.pid, kind, (hard, hard))

    # Log

    @property
    def log(self) -> str:
        # Newlines are left as they are: a lone carriage return is a finding, not a line end.
        return _log_path(self.folder).read_bytes().decode()

    @property
    def log_since_start(self) -> str:
        return self.log_since(self.started_at)

    def log_since(self, mark: int) -> str:
        """Return what was added since the log was `mark` characters long."""
        return self.log[mark:]

    # Control

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the process for the block; its clocks go on."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            wait_until(lambda: self._state == "T", "the process is suspended")
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    @property
    def _state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """Ask it to stop; its exit code."""
        self.process.terminate()
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """End it with SIGKILL; the file system's buffers survive."""
        self.process.kill()
        self.process.wait()


def _log_path(folder: Path) -> Path:
    return folder / "server.log"


@contextmanager
def server_process(
    folder: Path,
    *,
    settings: Mapping[str, object] | None = None,
    loop: Loop = "uvloop",
    arguments: Sequence[str] = (),
) -> Iterator[ServerProcess]:
    """Start a name server with its files in `folder`, and end it after the block.

    `settings` are Java's names with their values; `arguments` are added to the command. A second server in the same
    folder finds the files of the first one, and appends to its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    values: dict[str, object] = {
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "kvConfigPath": folder / "kvConfig.json",
        "configStorePath": folder / "namesrv.properties",
        "trustedProxies": "127.0.0.1",  # so that tests can send PROXY headers
    }
    values |= settings or {}
    options = [word for key, value in values.items() for word in ("-D", f"{key}={value}")]
    environment = {name: text for name, text in os.environ.items() if "ROCKETMQ" not in name and name != "NAMESRV_ADDR"}
    environment |= {"HOME": str(folder), "SKYROUTE_LOOP": loop}
    with (
        _log_path(folder).open("ab") as log,
        subprocess.Popen(
            [*COMMAND, *options, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        try:
            address = _await_address(process, folder)
            yield ServerProcess(process, address, folder, len(_log_path(folder).read_bytes().decode()))
        finally:
            process.kill()


def _await_address(process: subprocess.Popen[bytes], folder: Path) -> str:
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], BOOT_TIMEOUT_S)
    # It writes only this line to stdout.
    line = process.stdout.readline().decode() if readable else ""
    if not line.startswith(BOOT_LINE):
        raise NotBootedError(f"expected the boot line, got {line!r}; log:\n{_log_path(folder).read_text()}")
    return line.removeprefix(BOOT_LINE).rstrip("\n")
