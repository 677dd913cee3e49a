import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from skyroute.files.errors import FileWriteError
from skyroute.files.replace import backup_path, ensure_replaceable, replace_file
from tests.support.disks import FailingDisk


def names_in(directory: Path) -> set[str]:
    return {entry.name for entry in directory.iterdir()}


def test_a_new_file_creates_its_folders_and_no_backup(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.json"
    replace_file(path, b"one")
    assert path.read_bytes() == b"one"
    assert names_in(path.parent) == {"file.json"}


def test_the_replaced_file_is_kept_as_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    for content in (b"one", b"two", b"three"):
        replace_file(path, content)
    assert path.read_bytes() == b"three"
    assert backup_path(path).read_bytes() == b"two"
    assert names_in(tmp_path) == {"file.json", "file.json.bak"}


def test_a_backup_can_be_kept_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    backup_path(path).write_bytes(b"good")
    path.write_bytes(b"damaged")
    replace_file(path, b"new", keep_backup=False)
    assert (path.read_bytes(), backup_path(path).read_bytes()) == (b"new", b"good")


def test_the_mode_of_the_replaced_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"one")
    path.chmod(0o640)
    replace_file(path, b"two")
    assert path.stat().st_mode & 0o7777 == 0o640


def test_the_target_of_a_symbolic_link_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "target.json"
    target.write_bytes(b"one")
    link = tmp_path / "link.json"
    link.symlink_to(target)
    replace_file(link, b"two")
    assert link.is_symlink()
    assert target.read_bytes() == b"two"


def test_staged_files_of_a_crash_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"one")
    (tmp_path / "file.json.tmp").write_bytes(b"half")
    (tmp_path / "file.json.bak.tmp").write_bytes(b"half")
    replace_file(path, b"two")
    assert names_in(tmp_path) == {"file.json", "file.json.bak"}
    assert backup_path(path).read_bytes() == b"one"


def test_a_parent_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "parent").write_bytes(b"")
    with pytest.raises(FileWriteError, match=r"cannot write .*parent/file\.json: "):
        replace_file(tmp_path / "parent" / "file.json", b"one")


# Each name stands for one step that meets a directory where a file should be: staging, linking, keeping the backup and
# replacing. All users are stopped by that, while root walks through permissions.
@pytest.mark.parametrize("blocked", ["file.json.tmp", "file.json.bak.tmp", "file.json.bak"])
def test_a_failed_step_leaves_the_file_unchanged(tmp_path: Path, blocked: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"one")
    (tmp_path / blocked / "full").mkdir(parents=True)
    with pytest.raises(FileWriteError):
        replace_file(path, b"two")
    assert path.read_bytes() == b"one"
    assert names_in(tmp_path) == {"file.json", blocked}


def test_a_target_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.mkdir()
    with pytest.raises(FileWriteError, match="Is a directory"):
        replace_file(path, b"one")
    assert names_in(tmp_path) == {"file.json"}


# A limit on the size of files makes the write itself fail, in a process of its own because limits are not raised again.
WRITE_UNDER_A_LIMIT = """
import resource, signal, sys
from pathlib import Path
from skyroute.files.errors import FileWriteError
from skyroute.files.replace import replace_file

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    replace_file(Path(sys.argv[1]), b"x" * 1000)
except FileWriteError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b"one")
    run = subprocess.run([sys.executable, "-c", WRITE_UNDER_A_LIMIT, path], capture_output=True, text=True, check=True)
    assert run.stdout == f"cannot write {path}: File too large\n"
    assert path.read_bytes() == b"one"
    assert names_in(tmp_path) == {"file.json"}


def test_a_check_for_a_writable_path_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.json"
    ensure_replaceable(path)
    assert names_in(path.parent) == set()


def test_a_path_that_is_not_writable_is_reported(tmp_path: Path) -> None:
    (tmp_path / "parent").write_bytes(b"")
    with pytest.raises(FileWriteError, match="cannot write"):
        ensure_replaceable(tmp_path / "parent" / "file.json")
    with pytest.raises(FileWriteError, match="it is a directory"):
        ensure_replaceable(tmp_path)


def test_a_disk_that_fails_at_any_call_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    calls = FailingDisk()
    path = tmp_path / "file.json"
    path.write_bytes(b"one")
    replace_file(path, b"two", disk=calls)
    for fail_at in range(1, calls.calls + 1):
        disk = FailingDisk(fail_at)
        path.unlink()
        path.write_bytes(b"one")
        with suppress(FileWriteError):
            replace_file(path, b"two", disk=disk)
        assert path.read_bytes() in (b"one", b"two"), disk.failed
        assert names_in(tmp_path) <= {"file.json", "file.json.bak"}, disk.failed


def test_concurrent_replacements_leave_the_content_of_one(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    contents = [bytes([number]) * 50_000 for number in range(1, 9)]
    threads = [
        threading.Thread(target=replace_file, args=(path, content), kwargs={"is_shared": True}) for content in contents
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert names_in(tmp_path) <= {"file.json", "file.json.bak"}
