"""The image, the compose file and the systemd units, as far as they can be checked without Docker."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.booted import booted
from tests.support.shown import ROOT, check_arguments

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
UNITS = sorted((ROOT / "packaging" / "systemd").glob("*.service"))
METRICS = "http://127.0.0.1:9464/readyz"


def listed(instruction: str) -> list[str]:
    """Return the arguments of a Dockerfile instruction in list form."""
    [words] = re.findall(rf"(?m)^{instruction} .*?(\[.*\])$", DOCKERFILE)
    return list(json.loads(words))


def started(unit: Path) -> list[str]:
    [line] = re.findall(r"(?m)^ExecStart=(.*)$", unit.read_text(encoding="utf-8"))
    return shlex.split(line)


COMMANDS = {
    "Dockerfile": listed("CMD"),
    **{name: service["command"] for name, service in COMPOSE["services"].items()},
    **{unit.name: started(unit)[1:] for unit in UNITS},
    **{
        shown: shlex.split(shown)
        for shown in re.findall(r"(?m)^#   docker run .*? skyroute (.*)$", (ROOT / "Dockerfile").read_text())
        if not shown.endswith("-h")
    },
}


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_the_cli_accepts_every_command(arguments: list[str], tmp_path: Path) -> None:
    check_arguments(arguments, tmp_path)


def test_copied_files_exist_and_are_not_ignored() -> None:
    allowed = re.findall(r"(?m)^!(.*)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"))
    copied = [name for line in re.findall(r"(?m)^COPY (?!--from)(.*)$", DOCKERFILE) for name in line.split()[:-1]]
    assert sorted(copied) == sorted(allowed)
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_installs_known_extras() -> None:
    [extras] = re.findall(r"pip install .*'\.\[(.*)\]'", DOCKERFILE)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(known)


def test_no_process_runs_as_root() -> None:
    assert re.findall(r"(?m)^USER (.*)$", DOCKERFILE) == ["skyroute"]
    for unit in UNITS:
        assert "\nUser=skyroute\n" in unit.read_text(encoding="utf-8")


def test_the_health_check_fails_without_a_server(tmp_path: Path) -> None:
    words = re.findall(r"(?m)^HEALTHCHECK .*CMD (\[.*\])$", DOCKERFILE)
    [program] = [json.loads(each)[2] for each in words]
    assert METRICS in program
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    program = program.replace("9464", port)
    options = ["listenPort=0", "bindAddress=127.0.0.1", f"kvConfigPath={tmp_path}/kvConfig.json"]
    command = [sys.executable, "-m", "skyroute", "nameserver", *(f"-D{option}" for option in options)]

    def is_healthy() -> bool:
        return subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == 0

    assert not is_healthy()
    with booted([*command, "--metrics-port", port], cwd=tmp_path):
        assert is_healthy()


def test_services_use_each_others_names_as_addresses() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", ())) <= set(services), name
        assert {volume.partition(":")[0] for volume in service["volumes"]} <= set(COMPOSE["volumes"]), name
        for word in service["command"]:
            asked = re.search(r"(\w+):9876$", word)
            assert asked is None or asked[1] in services, name


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    """The path of the program is replaced, because it is installed elsewhere here."""
    text = unit.read_text(encoding="utf-8").replace("/opt/skyroute/bin/skyroute", sys.executable)
    (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / unit.name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
