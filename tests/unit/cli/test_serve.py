import os
import re
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from skyroute.settings.properties import read_properties
from tests.support.booted import Booted, NotBootedError, booted
from tests.support.raw import RawConnection

COMMAND = [sys.executable, "-m", "skyroute", "nameserver"]
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) [\w.]+ - .+")
GET_ROUTE, GET_CONFIG, UPDATE_CONFIG, PUT_KV, GET_KV = 105, 319, 318, 100, 101
SUCCESS, UNKNOWN_CODE, TOPIC_NOT_EXIST = 0, 3, 17


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment without HOME and RocketMQ variables of the caller."""
    kept = {name: value for name, value in os.environ.items() if "ROCKETMQ" not in name and name != "NAMESRV_ADDR"}
    return {**kept, "HOME": str(tmp_path / "home")}


def run(environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], env=environment, capture_output=True, text=True, check=False, timeout=30
    )


def assert_one_line_error(result: subprocess.CompletedProcess[str], *phrases: str) -> None:
    assert result.returncode == 1
    complaint = [line for line in result.stderr.splitlines() if not LOG_LINE.fullmatch(line)]
    assert len(complaint) == 1
    assert complaint[0].startswith("skyroute nameserver: ")
    for phrase in phrases:
        assert phrase in complaint[0]
    assert "boot success" not in result.stdout


def assert_stops_with_success(server: Booted, number: signal.Signals = signal.SIGTERM) -> str:
    code, errors = server.stop(number)
    assert code == 0
    assert all(LOG_LINE.fullmatch(line) for line in errors.splitlines())
    return errors


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_option(environment: dict[str, str], flag: str) -> None:
    result = run(environment, flag)
    assert result.returncode == 0
    for name in ("-n, --namesrvAddr", "-c, --configFile", "-p, --printConfigItem", "-D", "--log-level"):
        assert name in result.stdout


def test_an_unknown_option_is_a_usage_error(environment: dict[str, str]) -> None:
    result = run(environment, "--frobnicate")
    assert result.returncode == 2
    assert "Usage: " in result.stderr
    assert "--frobnicate" in result.stderr


@pytest.mark.parametrize("option", ["listenPort", "=1", " =1"])
def test_a_setting_without_a_value_is_a_usage_error(environment: dict[str, str], option: str) -> None:
    result = run(environment, "-D", option)
    assert result.returncode == 2
    assert "KEY=VALUE" in result.stderr


@pytest.mark.parametrize("flag", ["-p", "--printConfigItem"])
def test_settings_are_printed_one_per_line(environment: dict[str, str], tmp_path: Path, flag: str) -> None:
    result = run(environment, flag, "-D", "clusterTest=true", "-DproductEnvName=a=b")
    lines = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (0, "")
    assert lines == sorted(lines)
    assert all("=" in line for line in lines)
    assert {"listenPort=9876", "clusterTest=true", "productEnvName=a=b", "connectTimeoutMillis=3000"} <= set(lines)
    assert f"kvConfigPath={tmp_path}/home/namesrv/kvConfig.json" in lines
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("flag", ["-c", "--configFile"])
def test_options_override_the_file(environment: dict[str, str], tmp_path: Path, flag: str) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("listenPort=1111\nwaitSecondsForService=7\n")
    result = run(environment, flag, file, "-D", "listenPort=2222", "-p")
    lines = result.stdout.splitlines()
    assert lines[0] == f"load config properties file OK, {file}"
    assert {"listenPort=2222", "waitSecondsForService=7", f"configStorePath={file}"} <= set(lines)


def test_a_missing_file_is_an_error_in_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    assert_one_line_error(run(environment, "-c", tmp_path / "none"), "none", "No such file or directory")


def test_an_invalid_value_is_an_error_in_one_line(environment: dict[str, str]) -> None:
    result = run(environment, "-D", "listenPort=high")
    assert_one_line_error(result, "listenPort='high'", "from 0 to 65535", "the command line")


def test_an_embedded_controller_has_its_own_port_and_shares_the_file(
    environment: dict[str, str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    file = tmp_path / "namesrv.properties"
    file.write_text(
        "listenPort=0\nbindAddress=127.0.0.1\nenableControllerInNamesrv=true\njournalEnable=false\n"
        f"controllerListenPort={port}\ncontrollerStorePath={tmp_path / 'state'}\n"
    )
    with booted([*COMMAND, "-c", file], cwd=tmp_path, environment=environment) as server:
        with RawConnection(f"127.0.0.1:{port}") as controller, RawConnection(server.address) as name_server:
            assert controller.call(1005).fields["controllerLeaderAddress"] == f"127.0.0.1:{port}"
            assert (
                name_server.call(1005).code == controller.call(105, {"topic": "T"}).code == 3
            )  # each has its own codes
            assert controller.call(1009, body=b"enableElectUncleanMaster=true").code == SUCCESS
            assert name_server.call(UPDATE_CONFIG, body=b"enableTopicList=false").code == SUCCESS
        errors = assert_stops_with_success(server)
    assert "controller is not replicated" in errors
    assert "unknown settings" not in errors
    stored = read_properties(str(file))
    assert (stored["enableElectUncleanMaster"], stored["enableTopicList"]) == ("true", "false")


def test_settings_of_an_embedded_controller_are_printed(environment: dict[str, str]) -> None:
    lines = run(environment, "-D", "enableControllerInNamesrv=true", "-p").stdout.splitlines()
    assert {"listenPort=9876", "controllerListenPort=9878", "enableElectUncleanMaster=false"} <= set(lines)


def test_a_name_server_without_a_controller_does_not_import_one(environment: dict[str, str]) -> None:
    check = (
        "import sys; from skyroute.cli.main import main\n"
        "try: main(['nameserver', '-p'])\n"
        "finally: assert not [name for name in sys.modules if name.startswith('skyroute.controller')]"
    )
    result = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=False)
    assert "listenPort=9876" in result.stdout
    assert (result.returncode, result.stderr) == (0, "")


def test_a_port_in_use_is_an_error_in_one_line(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run(environment, "-D", "bindAddress=127.0.0.1", "-D", f"listenPort={port}")
    assert_one_line_error(result, str(port))


def test_a_foreign_bind_address_is_an_error_in_one_line(environment: dict[str, str]) -> None:
    assert_one_line_error(run(environment, "-D", "bindAddress=192.0.2.1", "-D", "listenPort=0"), "192.0.2.1")


def test_an_unwritable_key_value_path_is_an_error_in_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = run(environment, "-D", "listenPort=0", "-D", f"kvConfigPath={tmp_path}/file/kvConfig.json")
    assert_one_line_error(result, f"cannot write {tmp_path}/file/kvConfig.json")


def test_a_damaged_key_value_file_is_an_error_in_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "kvConfig.json"
    file.write_bytes(b'{"configTable":')
    result = run(environment, "-D", "listenPort=0", "-D", f"kvConfigPath={file}")
    assert_one_line_error(result, f"{file} is not a key-value table in JSON")


def test_invalid_tls_files_are_an_error_in_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "server.pem"
    file.write_text("no certificate")
    options = [
        "tls.test.mode.enable=false",
        f"tls.server.keyPath={file}",
        f"tls.server.certPath={file}",
        "listenPort=0",
    ]
    assert_one_line_error(run(environment, *(f"-D{option}" for option in options)), str(file))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_name_server_starts_serves_and_stops(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals, loop: str
) -> None:
    command = [*COMMAND, "-D", "listenPort=0"]
    with booted(command, cwd=tmp_path, environment={**environment, "SKYROUTE_LOOP": loop}) as server:
        assert server.address.startswith("0.0.0.0:")
        assert server.lines == []
        with RawConnection(f"127.0.0.1:{server.port}") as line:
            assert line.call(GET_ROUTE, {"topic": "TopicTest"}).code == TOPIC_NOT_EXIST
        errors = assert_stops_with_success(server, number)
        assert "INFO skyroute.settings.config - setting listenPort=" in errors
    assert f"name server stopping signal={number.name}" in errors


def test_the_key_value_table_survives_a_kill(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "deep" / "er" / "kvConfig.json"
    command = [*COMMAND, "-D", "listenPort=0", "-D", f"kvConfigPath={file}"]
    with booted(command, cwd=tmp_path, environment=environment) as server:
        with RawConnection(f"127.0.0.1:{server.port}") as line:
            assert line.call(PUT_KV, {"namespace": "a", "key": "x", "value": "1"}).code == SUCCESS
        # The table must not depend on a clean stop.
        server.process.kill()
        server.process.wait()
    assert file.read_bytes() == b'{"configTable":{"a":{"x":"1"}}}'
    with booted(command, cwd=tmp_path, environment=environment) as server:
        with RawConnection(f"127.0.0.1:{server.port}") as line:
            assert line.call(GET_KV, {"namespace": "a", "key": "x"}).fields["value"] == "1"
        assert_stops_with_success(server)


def test_settings_updated_at_run_time_survive_a_restart(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("listenPort=0\n# theirs\nextra=1\n")
    command = [*COMMAND, "-c", str(file)]
    with booted(command, cwd=tmp_path, environment=environment) as server:
        assert server.lines == [f"load config properties file OK, {file}"]
        with RawConnection(f"127.0.0.1:{server.port}") as line:
            assert line.call(UPDATE_CONFIG, body=b"enableTopicList=false\nextra=2").code == SUCCESS
        assert_stops_with_success(server)
    assert read_properties(file) == {"listenPort": "0", "extra": "2", "enableTopicList": "false"}
    with booted(command, cwd=tmp_path, environment=environment) as server:
        with RawConnection(f"127.0.0.1:{server.port}") as line:
            listed = line.call(GET_CONFIG).text.splitlines()
        assert {"enableTopicList=false", "extra=******", f"configStorePath={file}"} <= set(listed)
        assert_stops_with_success(server)


def test_an_unwritable_settings_path_is_a_warning(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    command = [*COMMAND, "-D", "listenPort=0", "-D", f"configStorePath={tmp_path}/file/namesrv.properties"]
    with booted(command, cwd=tmp_path, environment=environment) as server:
        errors = assert_stops_with_success(server)
    assert "WARNING skyroute.cli.server_process - settings cannot be updated while running" in errors


def test_settings_without_effect_are_logged_once(environment: dict[str, str], tmp_path: Path) -> None:
    command = [*COMMAND, "-D", "listenPort=0", "-D", "serverWorkerThreads=9", "-D", "frob=1"]
    with booted(command, cwd=tmp_path, environment=environment) as server:
        errors = assert_stops_with_success(server)
    assert errors.count("keys=serverWorkerThreads\n") == errors.count("keys=frob\n") == 1


@pytest.mark.parametrize(
    ("arguments", "variables", "knows_another"),
    [
        ([], {}, False),
        (["-n", " ; "], {}, False),
        (["-n", "127.0.0.1:1;127.0.0.1:2"], {}, True),
        (["--namesrvAddr", "127.0.0.1:1"], {}, True),
        ([], {"NAMESRV_ADDR": "127.0.0.1:1"}, True),
    ],
)
def test_upstream_name_servers_come_from_an_option_or_the_environment(
    environment: dict[str, str], tmp_path: Path, arguments: list[str], variables: dict[str, str], *, knows_another: bool
) -> None:
    command = [*COMMAND, "-D", "listenPort=0", "-D", "clusterTest=true", *arguments]
    with booted(command, cwd=tmp_path, environment={**environment, **variables}) as server:
        errors = assert_stops_with_success(server)
    assert ("clusterTest has no production name servers" not in errors) is knows_another


def test_lines_below_the_log_level_are_not_logged(environment: dict[str, str], tmp_path: Path) -> None:
    command = [*COMMAND, "-D", "listenPort=0", "-D", "frob=1", "--log-level", "ERROR"]
    with booted(command, cwd=tmp_path, environment=environment) as server:
        assert assert_stops_with_success(server) == ""


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_limit(environment: dict[str, str], tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    lowered = ["sh", "-c", 'ulimit -S -n 256 && exec "$@"', "sh", *COMMAND, "-D", "listenPort=0"]
    with booted(lowered, cwd=tmp_path, environment=environment) as server:
        assert resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        assert_stops_with_success(server)


def test_a_closed_standard_output_is_not_an_error(environment: dict[str, str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = subprocess.run([*COMMAND, "-p"], stdout=writer, stderr=subprocess.PIPE, env=environment, check=False)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (0, b"")


def test_the_test_harness_reports_a_server_that_does_not_start(environment: dict[str, str], tmp_path: Path) -> None:
    command = [*COMMAND, "-D", "listenPort=x"]
    with pytest.raises(NotBootedError, match="listenPort"), booted(command, cwd=tmp_path, environment=environment):
        pass
