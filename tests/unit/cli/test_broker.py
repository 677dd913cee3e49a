import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import httpx
import pytest

from skyroute.cli.broker import advertise_option_settings

BROKER = [sys.executable, "-m", "skyroute", "broker"]
UP = [sys.executable, "-m", "skyroute", "up"]
ADMIN = [sys.executable, "-m", "skyroute", "admin"]
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) [\w.]+ - .+")
TIMEOUT_S = 30


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment without HOME and RocketMQ variables of the caller."""
    kept = {name: value for name, value in os.environ.items() if "ROCKETMQ" not in name and name != "NAMESRV_ADDR"}
    return {**kept, "HOME": str(tmp_path / "home")}


def run(command: list[str], environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )


@contextmanager
def running(
    command: list[str], environment: dict[str, str], cwd: Path, last_line: str
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start a command, read its output up to a line that contains `last_line`, and end it with the block."""
    with subprocess.Popen(
        command, env=environment, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            while not lines or last_line not in lines[-1]:
                line = process.stdout.readline()
                assert line, (lines, process.communicate(timeout=TIMEOUT_S)[1])
                lines.append(line.rstrip("\n"))
            yield process, lines
        finally:
            process.kill()


def stop(process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM) -> str:
    process.send_signal(number)
    _, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, errors
    assert all(LOG_LINE.fullmatch(line) for line in errors.splitlines()), errors
    return errors


# The broker


def test_help_lists_every_option(environment: dict[str, str]) -> None:
    result = run(BROKER, environment, "-h")
    flags = ["-n, --namesrvAddr", "-c, --configFile", "-p, --printConfigItem", "-m, --printImportantConfig"]
    for name in (*flags, "--advertise", "-D", "--log-level"):
        assert name in result.stdout


def test_settings_are_printed(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=broker-x\nlistenPort=1111\n")
    arguments = ["-c", str(file), "-n", "one:9876", "--advertise", "10.0.0.1:20911", "-DfileReservedTime=1"]
    everything = run(BROKER, environment, *arguments, "-p")
    lines = everything.stdout.splitlines()
    assert (everything.returncode, everything.stderr) == (0, "")
    assert lines[0] == f"load config properties file OK, {file}"
    expected = {"brokerName=broker-x", "listenPort=1111", "namesrvAddr=one:9876", "fileReservedTime=1"}
    assert expected | {"brokerIP1=10.0.0.1", "advertisedPort=20911", "popPollingSize=1024"} <= set(lines)
    important = run(BROKER, environment, *arguments, "-m").stdout.splitlines()
    assert expected <= set(important)
    assert len(important) < 30
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("advertise", "settings"),
    [
        (None, {}),
        ("10.0.0.1", {"brokerIP1": "10.0.0.1"}),
        ("broker.example:20911", {"brokerIP1": "broker.example", "advertisedPort": "20911"}),
        ("fe80::1", {"brokerIP1": "fe80::1"}),
        ("[fe80::1]", {"brokerIP1": "fe80::1"}),
        ("[fe80::1]:20911", {"brokerIP1": "fe80::1", "advertisedPort": "20911"}),
    ],
)
def test_advertise_takes_a_host_with_or_without_a_port(advertise: str | None, settings: dict[str, str]) -> None:
    assert advertise_option_settings(advertise) == settings


@pytest.mark.parametrize("advertise", ["host:", "host:0", "host:x", "host:65536", "host:99999999999"])
def test_an_invalid_advertised_port_is_a_usage_error(advertise: str) -> None:
    with pytest.raises(click.BadParameter, match="neither HOST nor HOST:PORT"):
        advertise_option_settings(advertise)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["-D", "brokerRole=SLAVE"],
            "brokerId=0 from the command line does not fit brokerRole (expected 1 or more for a slave)",
        ),
        (["--advertise", "0.0.0.0", "-D", "listenPort=0"], "give the address that clients can reach with brokerIP1"),
        (["-c", "none.conf"], "cannot read properties file none.conf: No such file or directory"),
    ],
)
def test_errors_are_printed_in_one_line(
    environment: dict[str, str], tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    result = run(BROKER, environment, "-D", f"storePathRootDir={tmp_path}/store", *arguments)
    others = [line for line in result.stderr.splitlines() if not LOG_LINE.fullmatch(line)]
    assert result.returncode == 1
    assert len(others) == 1
    assert others[0].startswith("skyroute broker: ")
    assert complaint in others[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_starts_and_stops_on_a_signal(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    options = ["listenPort=0", "bindAddress=127.0.0.1", f"storePathRootDir={tmp_path}/store", "brokerName=broker-x"]
    command = [*BROKER, *(f"-D{option}" for option in options)]
    with running(command, environment, tmp_path, "boot success") as (process, lines):
        assert re.fullmatch(r"The broker\[broker-x, 127\.0\.0\.1:\d+\] boot success\. serializeType=JSON", lines[-1])
        errors = stop(process, number)
    assert f"broker stopping signal={number.name}" in errors
    assert "no name server is known" in errors
    assert not (tmp_path / "home").exists()


# The whole cluster


def test_the_commands_that_up_prints_work(environment: dict[str, str], tmp_path: Path) -> None:
    command = [*UP, "--port", "0", "--ns-port", "0", "--no-console"]
    with running(command, environment, tmp_path, "printMsg") as (process, lines):
        assert lines[0] == f"Data folder: {tmp_path}/skyroute-data"
        address = lines[1].split()[-1]
        assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
        assert re.fullmatch(r"Broker       127\.0\.0\.1:\d+  \(broker-a\)", lines[2])
        sent = run(ADMIN, environment, "sendMessage", "-n", address, "-t", "Hello", "-p", "My first message")
        assert (sent.returncode, sent.stderr) == (0, "")
        printed = run(ADMIN, environment, "printMsg", "-n", address, "-t", "Hello")
        assert "My first message" in printed.stdout
        assert stop(process, signal.SIGINT) == ""
    with running(command, environment, tmp_path, "printMsg") as (process, lines):
        printed = run(ADMIN, environment, "printMsg", "-n", lines[1].split()[-1], "-t", "Hello")
        assert "My first message" in printed.stdout
        stop(process)
    assert [path.name for path in tmp_path.iterdir()] == ["skyroute-data"]


@pytest.mark.parametrize(("free", "taken_flag"), [("--port", "--ns-port"), ("--ns-port", "--port")])
def test_up_names_the_options_for_a_port_in_use(
    environment: dict[str, str], tmp_path: Path, free: str, taken_flag: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run(UP, environment, "--data", tmp_path / "data", free, "0", taken_flag, str(port))
    assert result.returncode == 1
    assert str(port) in result.stderr
    assert "choose other ports (0: any free one): --ns-port, --port" in result.stderr
    assert "Traceback" not in result.stderr


def test_up_says_that_it_may_already_run(environment: dict[str, str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    arguments = ("--data", str(tmp_path / "data"), "--port", "0", "--ns-port", port)
    with running([*UP, *arguments], environment, tmp_path, "printMsg") as (process, _):
        result = run(UP, environment, *arguments)
        assert result.returncode == 1
        assert "Stop the `skyroute up` that already runs" in result.stderr
        stop(process)


def test_up_serves_a_console_with_cluster_and_journal(environment: dict[str, str], tmp_path: Path) -> None:
    command = [*UP, "--port", "0", "--ns-port", "0", "--console-port", "0", "--data", str(tmp_path / "data")]
    with running(command, environment, tmp_path, "Console") as (process, lines):
        url = lines[-1].split()[-1]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        assert "broker-a" in httpx.get(f"{url}cluster", timeout=TIMEOUT_S).text
        history = httpx.get(f"{url}history?kind=broker_joined", timeout=TIMEOUT_S).text
        assert "Broker joined" in history
        assert "broker-a[0]" in history
        assert stop(process) == ""


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--console-port", "{taken}"], "cannot listen on 127.0.0.1:{taken}: choose another --console-port"),
        (
            ["--console-port", "0", "--bind", "0.0.0.0"],
            "has no users: add one with `skyroute console user NAME --role operator --data {folder}/data/console`",
        ),
    ],
)
def test_up_runs_without_a_console_and_says_why(
    environment: dict[str, str], tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        given = [word.format(taken=port) for word in arguments]
        command = [*UP, "--port", "0", "--ns-port", "0", "--data", str(tmp_path / "data"), *given]
        with running(command, environment, tmp_path, "No console") as (process, lines):
            assert complaint.format(taken=port, folder=tmp_path) in lines[-1]
            sent = run(ADMIN, environment, "sendMessage", "-n", lines[1].split()[-1], "-t", "Hello", "-p", "still here")
            assert (sent.returncode, sent.stderr) == (0, "")
            said = stop(process).splitlines()
            assert all("accepts connections from other machines" in line for line in said)
            assert len(said) == (2 if "--bind" in arguments else 0)


def test_up_stops_while_its_console_is_starting(environment: dict[str, str], tmp_path: Path) -> None:
    command = [*UP, "--port", "0", "--ns-port", "0", "--console-port", "0", "--data", str(tmp_path / "data")]
    with running(command, environment, tmp_path, "printMsg") as (process, _):
        assert stop(process) == ""


def test_up_passes_settings_to_the_broker(environment: dict[str, str], tmp_path: Path) -> None:
    command = [*UP, "--port", "0", "--ns-port", "0", "--data", str(tmp_path / "data"), "-D", "brokerName=mine"]
    with running(command, environment, tmp_path, "printMsg") as (process, lines):
        assert lines[2].endswith("(mine)")
        stop(process)


def test_up_imports_no_optional_package_before_it_is_ready() -> None:
    check = "import sys, skyroute.cli.all_in_one; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "skyroute.broker.broker" in modules
    assert not {"starlette", "jinja2", "uvicorn", "prometheus_client", "pyspark", "rich"} & modules
