"""The progress line of slow commands: on a terminal only."""

import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

TIMEOUT_S = 60


@pytest.fixture
def hanging_server() -> Iterator[str]:
    """Yield the address of a name server that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def command(address: str) -> list[str]:
    return [sys.executable, "-m", "skyroute", "admin", "topicList", "-n", address]


def test_a_terminal_shows_the_progress_line_until_the_command_ends(hanging_server: str) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(hanging_server), stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        output = b""
        try:
            while more := os.read(ours, 4096):
                output += more
        except OSError:
            pass  # the process has closed the terminal
        finally:
            os.close(ours)
        assert process.wait(TIMEOUT_S) == 1
    waiting, _, rest = output.rpartition(b"\r\x1b[K")
    assert b" s  waiting for the cluster" in waiting
    assert rest.startswith(b"skyroute admin topicList: ")


def test_without_a_terminal_only_the_error_is_printed(hanging_server: str) -> None:
    done = subprocess.run(command(hanging_server), capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert done.stderr.startswith("skyroute admin topicList: ")
    assert done.stderr.count("\n") == 1
