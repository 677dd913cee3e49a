"""JSON files of the broker, and their backups."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.files.errors import StorageError
from skyroute.wire.fastjson import loads
from tests.support.disks import FailingDisk, KilledError, KillingDisk

OFFSETS = {"offsetTable": {"T@G": {0: 12, 1: 3}}}


def as_it_is(value: Any) -> Any:
    return value


def read_number(value: Any) -> int:
    if not isinstance(value, dict) or not isinstance(value.get("value"), int):
        raise StoreDamagedError("value: expected a number")
    return int(value["value"])


@pytest.fixture
def file(tmp_path: Path) -> JsonFile:
    return JsonFile(tmp_path / "config" / "consumerOffset.json")


def test_a_file_has_javas_json_and_the_old_one_is_the_backup(file: JsonFile) -> None:
    assert file.load(as_it_is) is None
    file.save(OFFSETS)
    assert file.path.read_bytes() == b'{"offsetTable":{"T@G":{0:12,1:3}}}'
    assert not file.backup.exists()
    file.save({"offsetTable": {}})
    assert file.backup.read_bytes() == b'{"offsetTable":{"T@G":{0:12,1:3}}}'
    assert file.load(as_it_is) == {"offsetTable": {}}
    assert sorted(path.name for path in file.path.parent.iterdir()) == [
        "consumerOffset.json",
        "consumerOffset.json.bak",
    ]


def test_unquoted_keys_are_read_as_text(file: JsonFile) -> None:
    file.save(OFFSETS)
    assert file.load(as_it_is) == {"offsetTable": {"T@G": {"0": 12, "1": 3}}}


DAMAGES = [b"", bytes(40), b"{", b"\xff\xfe", b'{"value":2', b"[]", b"null", b'{"value":"x"}', b"{}"]


@pytest.mark.parametrize("content", DAMAGES)
def test_the_backup_replaces_a_damaged_file_which_is_kept(
    file: JsonFile, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file.save({"value": 1})
    file.save({"value": 2})
    file.path.write_bytes(content)
    os.utime(file.path, (1_700_000_000.5, 1_700_000_000.5))
    assert file.load(read_number) == 1
    assert file.used_backup
    kept = file.path.with_name("consumerOffset.json.damaged-20231114221320500")
    assert kept.read_bytes() == content
    assert "table damaged, its backup is used" in caplog.text
    assert str(kept) in caplog.text
    file.save({"value": 3})
    assert file.load(read_number) == 3
    assert JsonFile(file.backup).load(read_number) == 1, "the damaged one did not become the backup"


@pytest.mark.parametrize("content", DAMAGES)
@pytest.mark.parametrize("backup", [None, *DAMAGES[:3]])
def test_a_damaged_file_without_an_intact_backup_is_refused(
    file: JsonFile, content: bytes, backup: bytes | None
) -> None:
    file.save({"value": 1})
    file.path.write_bytes(content)
    if backup is not None:
        file.backup.write_bytes(backup)
    with pytest.raises(StoreDamagedError, match=r"consumerOffset.json is damaged: .* restore .*, or move"):
        file.load(read_number)
    assert file.path.read_bytes() == content
    assert not file.used_backup
    assert len(list(file.path.parent.iterdir())) == (1 if backup is None else 2)


def test_the_backup_replaces_a_missing_file(file: JsonFile, caplog: pytest.LogCaptureFixture) -> None:
    file.save({"value": 1})
    file.save({"value": 2})
    file.path.unlink()
    assert file.load(read_number) == 1
    assert "table missing, its backup is used" in caplog.text


@pytest.mark.parametrize("content", DAMAGES)
def test_a_damaged_backup_of_a_missing_file_is_refused(file: JsonFile, content: bytes) -> None:
    file.path.parent.mkdir()
    file.backup.write_bytes(content)
    with pytest.raises(StoreDamagedError, match=r"consumerOffset.json.bak is damaged"):
        file.load(read_number)
    assert file.backup.read_bytes() == content


def test_a_file_without_read_permission_is_not_treated_as_damaged(file: JsonFile) -> None:
    file.path.mkdir(parents=True)
    with pytest.raises(StorageError, match="Is a directory"):
        file.load(read_number)


def test_after_any_failed_call_the_old_or_the_new_value_is_there(tmp_path: Path) -> None:
    for fail_at in range(1, 20):
        disk = FailingDisk(half=True)
        file = JsonFile(tmp_path / str(fail_at) / "topics.json", disk)
        file.save({"value": 1})
        disk.fail_at = disk.calls + fail_at
        try:
            file.save({"value": 2})
        except StorageError:
            assert disk.failed
            assert JsonFile(file.path).load(as_it_is) == {"value": 1}
            file.save({"value": 2})
        assert JsonFile(file.path).load(as_it_is) == {"value": 2}
        if not disk.failed:
            return
    raise AssertionError("every call failed")


def test_a_file_exists_at_every_moment_of_its_replacement(tmp_path: Path) -> None:
    path, calls = tmp_path / "topics.json", FailingDisk()
    JsonFile(path).save({"a": 1})
    JsonFile(path, calls).save({"a": 1})
    for kill_at in range(1, calls.calls + 1):
        disk = KillingDisk(kill_at)
        with suppress(KilledError):
            JsonFile(path, disk).save({"a": 1})
        assert path.exists(), disk.failed


def test_a_replaced_file_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    target, link = tmp_path / "elsewhere.json", tmp_path / "topics.json"
    JsonFile(target).save({"a": 1})
    target.chmod(0o600)
    link.symlink_to(target)
    JsonFile(link).save({"a": 2})
    assert link.is_symlink()
    assert (target.stat().st_mode & 0o777, loads(target.read_bytes())) == (0o600, {"a": 2})
