"""Logs of server processes, as text or JSON, to a file or stderr; and the metrics pages."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from skyroute.cli.logs import TEXT_FORMAT, JsonLines, TextLines
from tests.support.apache import free_port

SKYROUTE = [sys.executable, "-m", "skyroute"]
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) [\w.]+ - .+")
SERVERS = {"nameserver": ("kvConfigPath", "configStorePath"), "broker": ("storePathRootDir",)}
TIMEOUT_S = 30


def command(server: str, folder: Path, *arguments: str) -> list[str]:
    kept = [f"-D{key}={folder / key}" for key in SERVERS[server]]
    return [*SKYROUTE, server, "-DlistenPort=0", "-DbindAddress=127.0.0.1", *kept, *arguments]


@contextmanager
def booted(arguments: list[str], last_line: str = "boot success") -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start a server; yield the process and its output up to the line that says it is ready."""
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said: list[str] = []
            while not said or last_line not in said[-1]:
                line = process.stdout.readline()
                assert line, process.communicate(timeout=TIMEOUT_S)[1]
                said.append(line)
            yield process, said
        finally:
            process.kill()


def stop(process: subprocess.Popen[str]) -> str:
    """Stop a process with SIGTERM and return what it wrote to stderr."""
    process.terminate()
    errors = process.communicate(timeout=TIMEOUT_S)[1]
    assert process.returncode == 0
    return errors


def one_line_error(arguments: list[str]) -> str:
    """Return the only line of stderr of a command that fails."""
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if not LOG_LINE.fullmatch(line)]
    return line


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


# -------------------------------------------------------------------------------------------------------------- logs


@pytest.mark.parametrize("server", SERVERS)
def test_logs_are_text_or_json(server: str, tmp_path: Path) -> None:
    with booted(command(server, tmp_path)) as (process, _):
        lines = stop(process).splitlines()
    assert len(lines) >= 2
    assert all(LOG_LINE.fullmatch(line) for line in lines)
    with booted(command(server, tmp_path, "--log-format", "json")) as (process, _):
        records = [json.loads(line) for line in stop(process).splitlines()]
    assert all(list(record) == ["time", "level", "logger", "message"] for record in records)
    assert records[-1]["message"].endswith(" stopped")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", records[-1]["time"])


@pytest.mark.parametrize("server", SERVERS)
def test_logs_go_to_a_file_instead_of_stderr(server: str, tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    with booted(command(server, tmp_path, "--log-file", str(file))) as (process, _):
        assert stop(process) == ""
    lines = file.read_text().splitlines()
    assert lines[-1].endswith(" stopped")
    assert all(LOG_LINE.fullmatch(line) for line in lines)


def test_log_files_are_rotated(tmp_path: Path) -> None:
    program = (
        "import logging, sys; from skyroute.cli import logs; logs.FILE_BYTES_MAX = 1000;"
        "logs.start_logging(logs.LogSettings('info', 'json', sys.argv[1]));"
        "[logging.info('line %d', number) for number in range(1000)]"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "x.log")], check=True, timeout=TIMEOUT_S)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["x.log", *(f"x.log.{number}" for number in range(1, 6))]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert json.loads(files[0].read_text().splitlines()[-1])["message"] == "line 999"


def test_an_unwritable_log_file_is_an_error_in_one_line(tmp_path: Path) -> None:
    said = one_line_error(command("nameserver", tmp_path, "--log-file", str(tmp_path / "none" / "x.log")))
    assert said == (
        f"skyroute nameserver: cannot write {tmp_path}/none/x.log: No such file or directory; choose another --log-file"
    )


def test_a_json_record_with_a_traceback_is_one_line() -> None:
    with pytest.raises(ValueError, match="our own") as caught:
        int("our own\nfault")
    error = (caught.type, caught.value, caught.tb)
    record = logging.LogRecord("a.b", logging.ERROR, __file__, 1, "at %s\n", ("once",), error)
    text = JsonLines().format(record)
    output = json.loads(text)
    assert "\n" not in text
    assert (output["level"], output["logger"], output["message"]) == ("ERROR", "a.b", "at once\n")
    assert output["exception"].endswith("our own\\nfault'")


# ------------------------------------------------------------------------------------------------------------- pages


def test_a_name_server_serves_metrics_on_the_given_port(tmp_path: Path) -> None:
    port = free_port()
    with booted(command("nameserver", tmp_path, "--metrics-port", str(port))) as (process, _):
        assert get(port, "/readyz") == (200, "ready\n")
        assert "\nrocketmq_namesrv_brokers 0.0\n" in get(port, "/metrics")[1]
        assert f"metrics served at=http://127.0.0.1:{port}/metrics" in stop(process)


def test_a_broker_serves_metrics_on_the_given_port(tmp_path: Path) -> None:
    port = free_port()
    with booted(command("broker", tmp_path, "--metrics-port", str(port))) as (process, _):
        status, reason = get(port, "/readyz")
        assert (status, "no name server is known" in reason) == (503, True)
        assert get(port, "/livez") == (200, "alive\n")
        assert "rocketmq_broker_permission{" in get(port, "/metrics")[1]
        stop(process)


def test_up_prints_the_metrics_addresses_of_both_servers(tmp_path: Path) -> None:
    port = free_port()
    arguments = [*SKYROUTE, "up", "--port", "0", "--ns-port", "0", "--data", str(tmp_path), "--metrics-port", str(port)]
    with booted(arguments, "printMsg") as (process, said):
        output = [line.split()[1] for line in said if line.startswith("Metrics")]
        assert output == [f"http://127.0.0.1:{port}/metrics", f"http://127.0.0.1:{port + 1}/metrics"]
        assert 'role="nameserver"' in get(port, "/metrics")[1]
        assert 'role="broker"' in get(port + 1, "/metrics")[1]
        assert get(port + 1, "/readyz") == (200, "ready\n")
        stop(process)


@pytest.mark.parametrize("server", SERVERS)
def test_a_metrics_port_in_use_is_an_error_in_one_line(server: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = one_line_error(command(server, tmp_path, "--metrics-port", str(port)))
    assert said.startswith(f"skyroute {server}: Failed to bind to 127.0.0.1:{port}: Address already in use. ")
    assert said.endswith("Set metricsPort or metricsHost to something free.")


@pytest.mark.parametrize("server", SERVERS)
def test_a_missing_metrics_package_is_an_error_in_one_line(server: str, tmp_path: Path) -> None:
    without = "import sys; sys.modules['prometheus_client'] = None; from skyroute.cli.main import main; main()"
    arguments = command(server, tmp_path, "--metrics-port", str(free_port()))[len(SKYROUTE) :]
    said = one_line_error([sys.executable, "-c", without, *arguments])
    assert said.startswith(f"skyroute {server}: metricsPort needs a package that is not installed: ")
    assert "pip install 'skyroute[metrics]'" in said


def test_a_peer_cannot_add_lines_to_the_log() -> None:
    name = "x\n2026-01-01 00:00:00,000 INFO skyroute - request allowed\r\x1b[2K\u2028"
    record = logging.LogRecord("skyroute", logging.INFO, "", 0, "request refused user=%s", (name,), None)
    text = TextLines(TEXT_FORMAT).format(record)
    assert len(text.splitlines()) == 1
    assert text.isprintable()
