"""`skyroute up --replicas 3`: three broker processes and a controller, started, killed and stopped by one command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

SKYROUTE = [sys.executable, "-m", "skyroute"]
ANY_PORTS = ("--port", "0", "--ns-port", "0", "--controller-port", "0", "--no-console")
TIMEOUT_S = 60


def skyroute(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SKYROUTE, *words], capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Up:
    """A running `skyroute up --replicas 3`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def until(self, text: str) -> str:
        """Read its output up to a line that contains a text, and return that line."""
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            self.lines.append(line.rstrip("\n"))
            if text in line:
                return line
        raise AssertionError(f"ended without {text!r}: {self.lines}")

    def address_of(self, server: str) -> str:
        (found,) = (line.split()[-1] for line in self.lines if line.startswith(server))
        return found

    @property
    def brokers(self) -> dict[int, str]:
        """Roles by process number, as printed at the start."""
        found = (re.search(r"^Broker .*, (master|slave), process (\d+)\)$", line) for line in self.lines)
        return {int(each[2]): each[1] for each in found if each is not None}

    @property
    def master(self) -> int:
        (found,) = (pid for pid, role in self.brokers.items() if role == "master")
        return found

    def send(self, text: str) -> None:
        """Send until a master accepts it: after a kill there is none for a moment."""
        command = ("admin", "sendMessage", "-n", self.address_of("Name server"), "-t", "Hello", "-p", text)
        wait_until(lambda: "SEND_OK" in skyroute(*command).stdout, f"{text!r} is accepted")

    def read(self) -> str:
        return skyroute("admin", "printMsg", "-n", self.address_of("Name server"), "-t", "Hello").stdout


@contextmanager
def up(data: Path) -> Iterator[Up]:
    command = [*SKYROUTE, "up", "--replicas", "3", "--data", str(data), *ANY_PORTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        here = Up(process)
        try:
            here.until("kill -9")
            yield here
        finally:
            process.kill()  # its brokers end with it


def test_a_killed_master_is_replaced_and_started_again(tmp_path: Path) -> None:
    with up(tmp_path) as here:
        assert sorted(here.brokers.values()) == ["master", "slave", "slave"]
        here.until("3 of 3")
        here.send("before the kill")
        os.kill(here.master, signal.SIGKILL)
        here.send("after the kill")
        # The controller may see the closed connection first, or be asked by a slave that has lost its master.
        assert re.search("reason: master_(disconnected|not_alive)", here.until("epoch 2; reason: "))
        here.until("runs again")
        here.until("3 of 3")
        states = skyroute("admin", "getSyncStateSet", "-a", here.address_of("Controller"), "-b", "broker-a").stdout
        assert len(re.findall(r" (?:master|slave) +true +true ", states)) == 3, states
        here.process.send_signal(signal.SIGTERM)
        assert here.process.wait(TIMEOUT_S) == 0
    alone = skyroute("up", "--data", str(tmp_path), *ANY_PORTS)
    assert alone.returncode == 1
    assert "has the data of a replicated group" in alone.stderr
    with up(tmp_path) as here:
        found = here.read()
        assert "before the kill" in found
        assert "after the kill" in found
        here.process.kill()
        wait_until(lambda: not any(map(exists, here.brokers)), "the brokers end with the command")


def test_replicas_take_over_the_messages_of_one_broker(tmp_path: Path) -> None:
    command = [*SKYROUTE, "up", "--data", str(tmp_path), *ANY_PORTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        alone = Up(process)
        alone.until("printMsg")
        alone.send("from before the group")
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    with up(tmp_path) as here:
        here.until("3 of 3")
        os.kill(here.master, signal.SIGKILL)
        here.until("epoch 2")
        here.send("from the next master")
        assert "from before the group" in here.read()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--advertise", "10.0.0.1:1234"], "with --replicas, give HOST"),
        (["-D", "flushDiskType=SOMETIMES"], "flushDiskType"),
    ],
)
def test_wrong_options_are_refused_before_a_process_starts(tmp_path: Path, words: list[str], complaint: str) -> None:
    refused = skyroute("up", "--replicas", "3", "--data", str(tmp_path), *ANY_PORTS, *words)
    assert refused.returncode != 0
    assert complaint in refused.stderr
    assert not list(tmp_path.glob("store*"))
