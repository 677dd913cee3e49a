"""A self-signed certificate whose creation is slow or fails."""

import os
from pathlib import Path

import pytest

from tests.adversity.conftest import Start
from tests.adversity.faults import assert_serves, connect
from tests.support.waiting import wait_until

HELLO = b"\x16\x03\x01\x02\x00" + bytes(40)


def openssl_that_waits(folder: Path) -> Path:
    """A command that blocks until the pipe is opened, and then fails."""
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    command = folder / "openssl"
    command.write_text(f"#!/bin/sh\ncat {pipe} >&2\nexit 1\n")
    command.chmod(0o755)
    return pipe


def test_plain_clients_are_served_while_the_certificate_is_made(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    pipe = openssl_that_waits(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    server = start()
    with connect(server.address) as first, connect(server.address) as second:
        first.sendall(HELLO)
        second.sendall(HELLO)
        assert_serves(server.address)
        pipe.write_text("no entropy today\n")  # opening it waits until the command reads
        assert first.recv(1) == second.recv(1) == b""
    wait_until(lambda: "no entropy today" in server.log, "the reason is in the log")
    assert_serves(server.address)
    assert "Traceback" not in server.log
