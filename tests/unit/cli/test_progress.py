"""What those are told who wait: something on a terminal, nothing where programs read."""

import os
import pty
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

TIMEOUT_S = 60


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a name server that takes a question and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def command(address: str) -> list[str]:
    return [sys.executable, "-m", "skyroute", "admin", "topicList", "-n", address]


def test_on_a_terminal_a_line_says_that_we_wait_and_goes_again(silent: str) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(silent), stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        try:
            while more := os.read(ours, 4096):
                said += more
        except OSError:
            pass  # how the system says that the last one has closed it
        finally:
            os.close(ours)
        assert process.wait(TIMEOUT_S) == 1
    waiting, _, rest = said.rpartition(b"\r\x1b[K")
    assert b" s  waiting for the cluster" in waiting
    assert rest.startswith(b"skyroute admin topicList: ")


def test_where_there_is_no_terminal_only_the_error_is_told(silent: str) -> None:
    done = subprocess.run(command(silent), capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert done.stderr.startswith("skyroute admin topicList: ")
    assert done.stderr.count("\n") == 1
