"""`skyroute console` as a process, and `skyroute console user`."""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

CONSOLE = [sys.executable, "-m", "skyroute", "console"]
TIMEOUT_S = 30


def run(*arguments: str | Path, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [*CONSOLE, *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_console_starts_without_a_cluster_and_stops_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    command = [*CONSOLE, "-n", nobody, "--port", "0", "--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
            page = httpx.get(url, timeout=TIMEOUT_S).text
            assert "The cluster does not respond" in page
            assert nobody in page
            process.send_signal(number)
            _, errors = process.communicate(timeout=TIMEOUT_S)
            assert (process.returncode, errors) == (0, "")
        finally:
            process.kill()


def test_errors_are_printed_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("--port", str(port), "--data", tmp_path)
    assert result.returncode == 1
    assert re.fullmatch(rf"skyroute console: Failed to bind to 127\.0\.0\.1:{port}: .+ --port .+\n", result.stderr)
    result = run("--port", "0", "--data", tmp_path, "--host", "0.0.0.0")
    assert result.returncode == 1
    assert f"add one with `skyroute console user NAME --role operator --data {tmp_path}`" in result.stderr
    result = run("--port", "0", "--data", tmp_path, "--certificate", tmp_path / "none.pem")
    assert result.returncode == 1
    assert f"skyroute console: cannot use the certificate {tmp_path}/none.pem" in result.stderr
    result = run("--port", "0", "--data", tmp_path, "--trusted-proxy", "10.0.0.5", "--trusted-proxy", "proxy.example")
    assert result.returncode == 2
    assert "'proxy.example' does not appear to be an IPv4 or IPv6 network" in result.stderr
    assert "expected addresses or networks like 10.0.0.5" in result.stderr
    assert "Traceback" not in result.stderr


def test_users_are_added_changed_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "users"
    added = run("user", "alice", "--role", "operator", "--data", tmp_path, "--password-stdin", given="long enough\n")
    assert (added.returncode, added.stdout) == (0, f"alice may sign in as operator: {path}\n")
    assert path.read_text().startswith("alice:operator:scrypt$")
    changed = run("user", "alice", "--data", tmp_path, "--password-stdin", given="another one\n")
    assert changed.returncode == 0
    assert path.read_text().startswith("alice:viewer:scrypt$")
    assert run("user", "alice", "--data", tmp_path, "--remove").returncode == 0
    assert path.read_text() == ""
    gone = run("user", "alice", "--data", tmp_path, "--remove")
    assert (gone.returncode, gone.stderr) == (1, f"Error: no user alice in {path}\n")
    short = run("user", "bob", "--data", tmp_path, "--password-stdin", given="short\n")
    assert (short.returncode, short.stderr) == (1, "Error: the password has 5 characters (expected 8 to 1024)\n")


def test_an_invalid_users_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "users").mkdir()
    result = run("user", "alice", "--data", tmp_path, "--password-stdin", given="long enough\n")
    assert result.returncode == 1
    assert f"cannot read the users file {tmp_path}/users" in result.stderr
