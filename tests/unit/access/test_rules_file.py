import json
import os
from pathlib import Path

import pytest

from skyroute.access.errors import RulesError
from skyroute.access.policies import Acl, Decision, Entry
from skyroute.access.resources import Action, parse_resource
from skyroute.access.rules import Rules
from skyroute.access.rules_file import OwnerOnlyDisk, RulesFile, decode_rules
from skyroute.access.rules_store import RulesStore
from skyroute.access.sources import parse_sources
from skyroute.access.users import Password, User
from skyroute.files.errors import FileReadError, FileWriteError

SECRET = "alice-secret"
ENTRY = Entry(parse_resource("Topic:orders*"), frozenset({Action.PUB}), Decision.ALLOW, parse_sources(["10.0.0.0/8"]))
RULES = Rules({"alice": User("alice", Password(SECRET))}, {"alice": Acl((ENTRY,))})


@pytest.fixture
def file(tmp_path: Path) -> RulesFile:
    return RulesFile(tmp_path / "config" / "access.json")


def test_without_a_file_there_are_no_rules(file: RulesFile) -> None:
    assert file.load() == Rules()
    assert not file.has_changed()
    assert not file.is_exposed()


def test_rules_are_read_back(file: RulesFile) -> None:
    file.save(RULES)
    assert not file.has_changed()
    assert RulesFile(file.path).load() == RULES
    assert json.loads(file.path.read_bytes())["users"][0]["password"] == SECRET


def test_only_the_owner_can_read_the_file(file: RulesFile) -> None:
    umask = os.umask(0)
    try:
        file.save(RULES)
        assert file.path.stat().st_mode & 0o777 == 0o600
        file.path.chmod(0o644)
        assert file.is_exposed()
        file.save(RULES)
    finally:
        os.umask(umask)
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert not file.is_exposed()
    assert list(file.path.parent.iterdir()) == [file.path], "neither a backup nor a staged file"


def test_a_change_by_others_is_seen(file: RulesFile) -> None:
    file.save(RULES)
    other = RulesFile(file.path)
    other.load()
    other.save(RULES.delete_user("alice"))
    assert file.has_changed()
    assert file.load().users == {}
    assert not file.has_changed()


def test_a_change_of_the_same_size_is_seen(file: RulesFile) -> None:
    file.save(RULES)
    content = file.path.read_bytes().replace(b"orders", b"ordexs")
    status = file.path.stat()
    file.path.write_bytes(content)
    os.utime(file.path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert file.has_changed()


class FullDisk(OwnerOnlyDisk):
    def write(self, descriptor: int, data: bytes | bytearray, at: int) -> None:
        raise FileWriteError("no space")


def test_a_failed_save_leaves_the_old_rules(file: RulesFile) -> None:
    file.save(RULES)
    with pytest.raises(FileWriteError):
        RulesFile(file.path, FullDisk()).save(Rules())
    assert file.load() == RULES
    assert list(file.path.parent.iterdir()) == [file.path]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"format":2}',
        b'{"users":[{"username":"a"}]}',
        b'{"users":[{"username":"","password":"alice-secret"}]}',
        b'{"users":[{"username":"a","password":"alice-secret","userType":"Root"}]}',
        b'{"users":[{"username":"a","password":"alice-secret"},{"username":"a","password":"alice-secret"}]}',
        b'{"users":[{"username":"a","password":["alice-secret"]}]}',
        b'{"users":[{"username":"a","password":"alice-secret"',
        b'{"acls":[{"subject":"alice","policies":[]}]}',
        b'{"acls":[{"subject":"User:a","policies":[{"entries":[{"resource":"x"}]}]}]}',
    ],
)
def test_an_invalid_file_is_refused_whole_and_no_secret_is_shown(content: bytes) -> None:
    with pytest.raises(RulesError) as caught:
        decode_rules(content, "access.json")
    assert "access.json" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileReadError):
        RulesFile(tmp_path).load()


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_a_regular_file_is_read(tmp_path: Path, kind: str) -> None:
    """A pipe would be waited for, and a device would never end."""
    path = tmp_path / "access.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(FileReadError, match=r"not a regular file|[Dd]irectory"):
        RulesFile(path).load()


def test_a_file_that_is_gone_does_not_remove_its_users(tmp_path: Path) -> None:
    """Some editors remove a file and write it again."""
    path = tmp_path / "access.json"
    store = RulesStore(path)
    store.add_missing([User("alice", Password("alice-secret-1"))])
    content = path.read_bytes()
    path.unlink()
    assert store.has_changed()
    with pytest.raises(FileReadError, match="is gone"):
        store.load()
    assert set(store.rules.users) == {"alice"}
    assert store.has_changed()
    path.write_bytes(content.replace(b"alice", b"bobby"))
    assert set(store.load().users) == {"bobby"}


def test_a_symbolic_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target, path = tmp_path / "kept" / "rules.json", tmp_path / "access.json"
    target.parent.mkdir()
    path.symlink_to(target)
    RulesStore(path).add_missing([User("alice", Password("alice-secret-1"))])
    assert path.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    target.write_bytes(target.read_bytes().replace(b"alice", b"bobby"))
    assert set(RulesStore(path).load().users) == {"bobby"}


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "a\\b", "$(id)", "%n"])
def test_names_are_never_paths(tmp_path: Path, name: str) -> None:
    store = RulesStore(tmp_path / "rules" / "access.json")
    store.add_missing([User(name, Password("secret-secret"))])
    assert set(store.load().users) == {name}
    assert [path.name for path in tmp_path.rglob("*")] == ["rules", "access.json"]
