"""`skyroute controller` as a process."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.raw import RawConnection

COMMAND = [sys.executable, "-m", "skyroute", "controller"]
BOOT_LINE = "The Controller Server boot success. serializeType=JSON, address "


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [f"-DcontrollerStorePath={folder}", f"-DconfigStorePath={folder / 'settings'}"]
    return subprocess.run(
        [*COMMAND, *paths, *arguments], capture_output=True, text=True, check=False, timeout=30, cwd=folder
    )


def test_a_controller_serves_and_stops(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = tmp_path / "controller.conf"
    config.write_text(
        f"controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-127.0.0.1:{port}\ncontrollerDLegerSelfId=n0\n"
        f"controllerStorePath={tmp_path / 'state'}\nbindAddress=127.0.0.1\n"
    )
    command = [*COMMAND, "-c", str(config)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = [process.stdout.readline(), process.stdout.readline()]
            assert lines == [f"load config properties file OK, {config}\n", f"{BOOT_LINE}127.0.0.1:{port}\n"]
            with RawConnection(f"127.0.0.1:{port}") as line:
                assert line.call(1005).fields["controllerLeaderAddress"] == f"127.0.0.1:{port}"
                fields = {"clusterName": "C", "brokerName": "a"}
                granted = line.call(1013, fields | {"appliedBrokerId": "1", "registerCheckCode": "h:1;5"})
                assert granted.code == 0
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    assert "controller is not replicated" in errors
    assert (tmp_path / "state" / "controller-state.json").is_file()


def test_several_peers_are_refused_in_one_line(tmp_path: Path) -> None:
    result = run(tmp_path, "-DcontrollerDLegerPeers=n0-a:1;n1-b:1")
    assert result.returncode == 1
    assert result.stderr.startswith("skyroute controller: controllerDLegerPeers names 2")
    assert result.stderr.count("\n") == 1


def test_a_damaged_state_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "controller-state.json").write_text("{")
    result = run(tmp_path, "-DlistenPort=0", "-DbindAddress=127.0.0.1")
    assert result.returncode == 1
    assert "controller-state.json is damaged" in result.stderr.splitlines()[-1]


def test_settings_are_printed_under_apaches_names(tmp_path: Path) -> None:
    result = run(tmp_path, "-p")
    assert result.returncode == 0
    assert "enableElectUncleanMaster=false\n" in result.stdout
    assert "scanInactiveMasterInterval=5000\n" in result.stdout
