import threading
from pathlib import Path

from skyroute.files.disk import FREEING, LARGE_BYTES, Disk

WAIT_S = 10.0


def descriptors_of(path: Path) -> list[Path]:
    return [link for link in Path("/proc/self/fd").iterdir() if _target(link).startswith(str(path))]


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # the descriptor of the list itself
        return ""


def test_the_space_of_a_large_file_is_freed_by_a_thread(tmp_path: Path) -> None:
    path, may_free = tmp_path / "large", threading.Event()
    path.write_bytes(bytes(LARGE_BYTES))
    FREEING.submit(may_free.wait, WAIT_S)
    try:
        Disk().remove(path)
        assert not path.exists()
        assert len(descriptors_of(path)) == 1  # the file has no name, and still its space
    finally:
        may_free.set()
    FREEING.submit(lambda: None).result(WAIT_S)
    assert descriptors_of(path) == []


def test_a_small_file_and_no_file_are_removed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"x")
    for _ in range(2):
        Disk().remove(path)
        assert not path.exists()
        assert descriptors_of(path) == []


def test_a_removed_link_keeps_its_target(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(bytes(LARGE_BYTES))
    link.symlink_to(target)
    Disk().remove(link)
    assert (link.is_symlink(), target.exists(), descriptors_of(target)) == (False, True, [])
