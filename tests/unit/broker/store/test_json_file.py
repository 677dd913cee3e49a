"""The small files beside the messages."""

from pathlib import Path

import pytest

from skyroute.broker.store.errors import StoreDamagedError, StoreError
from skyroute.broker.store.json_file import JsonFile
from tests.support.disks import FailingDisk

OFFSETS = {"offsetTable": {"T@G": {0: 12, 1: 3}}}


@pytest.fixture
def file(tmp_path: Path) -> JsonFile:
    return JsonFile(tmp_path / "config" / "consumerOffset.json")


def test_it_is_written_as_java_does_and_the_old_one_is_kept(file: JsonFile) -> None:
    assert file.load() is None
    file.save(OFFSETS)
    assert file.path.read_bytes() == b'{"offsetTable":{"T@G":{0:12,1:3}}}'
    assert not file.backup.exists()
    file.save({"offsetTable": {}})
    assert file.backup.read_bytes() == b'{"offsetTable":{"T@G":{0:12,1:3}}}'
    assert file.load() == {"offsetTable": {}}
    assert sorted(path.name for path in file.path.parent.iterdir()) == [
        "consumerOffset.json",
        "consumerOffset.json.bak",
    ]


def test_bare_keys_are_read_as_text(file: JsonFile) -> None:
    file.save(OFFSETS)
    assert file.load() == {"offsetTable": {"T@G": {"0": 12, "1": 3}}}


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
def test_a_damaged_file_gives_way_to_its_backup(file: JsonFile, content: bytes) -> None:
    file.save({"value": 1})
    file.save({"value": 2})
    file.path.write_bytes(content)
    assert file.load() == {"value": 1}
    file.save({"value": 3})
    assert file.load() == {"value": 3}
    assert JsonFile(file.backup).load() == {"value": 1}, "the damaged one did not become the backup"


def test_without_a_good_one_nothing_is_made_up(file: JsonFile) -> None:
    file.save({"value": 1})
    file.path.write_bytes(b"{")
    with pytest.raises(StoreDamagedError, match=r"neither .* can be read"):
        file.load()
    assert file.path.exists()
    file.path.write_bytes(b"")
    assert file.load() is None, "it was created, and then the machine stopped"


def test_whichever_call_fails_the_old_or_the_new_value_is_there(tmp_path: Path) -> None:
    for fail_at in range(1, 20):
        disk = FailingDisk(half=True)
        file = JsonFile(tmp_path / str(fail_at) / "topics.json", disk)
        file.save({"value": 1})
        disk.fail_at = disk.calls + fail_at
        try:
            file.save({"value": 2})
        except StoreError:
            assert disk.failed
            assert JsonFile(file.path).load() == {"value": 1}
            file.save({"value": 2})
        assert JsonFile(file.path).load() == {"value": 2}
        if not disk.failed:
            return
    raise AssertionError("every call failed")
