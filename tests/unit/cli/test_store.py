"""`skyroute store verify` and `repair`: output, exit codes, and that verify writes nothing."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skyroute.cli.store import store
from tests.support.damage import checksum, fill_store, open_store

SIZES = (
    *("-D", "mappedFileSizeCommitLog=4096", "-D", "mappedFileSizeConsumeQueue=200"),
    *("-D", "mapperFileSizeBatchConsumeQueue=460", "-D", "maxHashSlotNum=16", "-D", "maxIndexNum=32"),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill_store(tmp_path / "store")
    return tmp_path / "store"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(store, [str(word) for word in arguments])


def verify(folder: Path, *arguments: str) -> Result:
    before = checksum(folder)
    result = run("verify", folder, *SIZES, *arguments)
    assert checksum(folder) == before
    return result


def damage(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_a_store_without_damage(folder: Path) -> None:
    result = verify(folder)
    assert result.exit_code == 0
    (line,) = result.output.splitlines()
    assert line.startswith(f"{folder} has no damage. Checked: 8 tables, 75 records, ")
    found: dict[str, Any] = json.loads(verify(folder, "--json").output)
    assert (found["sound"], found["count"], found["findings"]) == (True, 0, [])
    assert found["checked"]["records"] == 75


def test_a_finding_has_place_problem_cost_and_advice(folder: Path) -> None:
    damage(folder / "commitlog" / "00000000000000000000", 88)
    damage(folder / "consumequeue" / "T" / "0" / "00000000000000000000", 47)
    result = verify(folder)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0].startswith("commitlog/00000000000000000000 at byte 0: ")
    assert "match its checksum (topic 'T', queue 0, offset 0)" in lines[0]
    assert lines[1] == "  cost: the messages in these bytes are lost; readers skip them"
    assert lines[2].startswith("  to do: restore the file from a copy")
    assert lines[3].startswith("consumequeue/T/0/00000000000000000000 at byte 40: unit 2: points to ")
    assert lines[-1].startswith(f"2 findings (log 1, queue 1) in {folder}. Checked: ")
    found: dict[str, Any] = json.loads(verify(folder, "--json").output)
    assert (found["sound"], found["by_area"]) == (False, {"log": 1, "queue": 1})
    assert {"area", "file", "offset", "what", "cost", "advice"} == found["findings"][0].keys()


def test_a_store_that_cannot_be_checked_is_exit_code_2(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for arguments, reason in (
        (("verify", tmp_path / "other"), "is not a store"),
        (("verify", tmp_path / "missing"), "does not exist; expected a broker's storePathRootDir"),
        (("verify", folder), "maxHashSlotNum"),
        (("verify", folder, "-D", "maxHashSlotNum=x"), "maxHashSlotNum"),
        (("repair", folder, "--to", folder), "is not empty"),
    ):
        result = run(*arguments)
        assert (result.exit_code, reason in result.stderr, result.stdout) == (2, True, ""), result.output
    running = open_store(folder)
    assert (run("verify", folder).exit_code, run("repair", folder, "--to", tmp_path / "new").exit_code) == (2, 2)
    running.close()
    assert "error" in json.loads(run("verify", tmp_path / "other", "--json").output)


def test_a_repaired_copy_is_verified(folder: Path, tmp_path: Path) -> None:
    damage(folder / "commitlog" / "00000000000000000000", 88)
    before = checksum(folder)
    result = run("repair", folder, "--to", tmp_path / "new", *SIZES)
    assert checksum(folder) == before
    assert result.exit_code == 0, result.output
    first, note, last = result.output.splitlines()
    assert first.startswith(f"{tmp_path / 'new'} has 74 records. Lost: ")
    assert note.endswith("were lost before an earlier repair")
    assert last.startswith(f"{tmp_path / 'new'} has no damage.")
    assert verify(tmp_path / "new").exit_code == 0
    found: dict[str, Any] = json.loads(run("repair", folder, "--to", tmp_path / "json", *SIZES, "--json").output)
    assert (found["records"], found["lost_ranges"], found["verified"]["sound"]) == (74, 1, True)


def test_settings_are_read_from_a_file(folder: Path, tmp_path: Path) -> None:
    settings = "\n".join(word for word in SIZES if word != "-D")
    (tmp_path / "broker.conf").write_text(settings)
    assert run("verify", folder, "-c", tmp_path / "broker.conf").exit_code == 0
    (folder / "config" / "broker.properties").write_text(settings)
    assert run("verify", folder).exit_code == 0


def test_a_read_only_folder_is_checked(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert verify(folder).exit_code == 0


def test_verify_runs_as_a_process(folder: Path) -> None:
    arguments = [sys.executable, "-m", "skyroute", "store", "verify", str(folder), *SIZES]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
