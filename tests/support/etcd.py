"""Real etcd members as processes. Debian's `etcd-server` is unpacked into the cache and not installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.apache import PeerProcess, PeerUnavailableError, free_port, made_once
from tests.support.waiting import wait_until

PROGRAM = Path("usr/bin/etcd")
"""Where the package has it."""


def etcd_program() -> Path:
    """Return the program `etcd`; apt downloads its package the first time.

    Raises:
        PeerUnavailableError: it is not installed and cannot be downloaded.
    """
    installed = shutil.which("etcd")
    if installed is not None:
        return Path(installed)
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise PeerUnavailableError("not installed: etcd (Debian's package etcd-server)")

    def unpack(folder: Path) -> None:
        sys.stderr.write("fetching etcd-server by apt ...\n")
        try:
            if subprocess.run(["apt-get", "download", "-qq", "etcd-server"], cwd=folder, check=False).returncode:
                subprocess.run(["apt-get", "update", "-qq"], check=True)
                subprocess.run(["apt-get", "download", "-qq", "etcd-server"], cwd=folder, check=True)
            (package,) = folder.glob("*.deb")
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise PeerUnavailableError(f"cannot download etcd-server: {error}") from error

    return (
        made_once("etcd", unpack, lambda folder: (folder / "usr" / "bin" / "etcd").is_file()) / "usr" / "bin" / "etcd"
    )


class EtcdMember(PeerProcess):
    """One member; `port` serves clients, the next one other members."""

    ready_mark = "ready to serve client requests"

    def __init__(self, name: str, home: Path, *, quota_bytes: int | None = None) -> None:
        super().__init__(name, home)
        self.peer_url = f"http://127.0.0.1:{free_port()}"
        self.members: Sequence[EtcdMember] = (self,)
        self._quota_bytes = quota_bytes

    def command(self) -> list[str]:
        client_url = f"http://{self.address}"
        words = {
            "name": self.name,
            "data-dir": str(self.home / "data"),
            "listen-client-urls": client_url,
            "advertise-client-urls": client_url,
            "listen-peer-urls": self.peer_url,
            "initial-advertise-peer-urls": self.peer_url,
            "initial-cluster": ",".join(f"{each.name}={each.peer_url}" for each in self.members),
            "heartbeat-interval": "100",
            "election-timeout": "1000",
        }
        if self._quota_bytes is not None:
            words["quota-backend-bytes"] = str(self._quota_bytes)
        return [str(etcd_program()), *(f"--{key}={value}" for key, value in words.items())]


class EtcdCluster:
    """Members that know each other."""

    def __init__(self, folder: Path, size: int = 3, *, quota_bytes: int | None = None) -> None:
        self.members = [EtcdMember(f"e{n}", folder / f"e{n}", quota_bytes=quota_bytes) for n in range(size)]
        for member in self.members:
            member.members = self.members

    def __enter__(self) -> Self:
        self.start(self.members)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        for member in self.members:
            member.kill()

    @property
    def endpoints(self) -> str:
        return ";".join(member.address for member in self.members)

    def start(self, members: Sequence[EtcdMember]) -> None:
        """Start members and wait until they serve."""
        for member in members:
            member.spawn()
        for member in members:
            member.until_ready()

    def leader(self) -> EtcdMember:
        """Return the member that leads."""
        found = wait_until(self._leader, "etcd has a leader")
        assert found is not None
        return found

    def _leader(self) -> EtcdMember | None:
        for member in self.members:
            if member.is_running:
                try:
                    status = _status(member.address)
                except OSError:
                    continue
                if status["leader"] != "0" and status["leader"] == status["header"]["member_id"]:
                    return member
        return None


def _status(address: str) -> dict[str, Any]:
    request = urllib.request.Request(f"http://{address}/v3/maintenance/status", data=b"{}")
    with urllib.request.urlopen(request, timeout=2) as answer:
        found: dict[str, Any] = json.load(answer)
    return {"leader": "0", **found}
