"""The users file."""

import os
import stat
from pathlib import Path

import pytest

from skyroute.console.access.users import UNKNOWN_USER, Role, UsersFile, make_user, read_users, write_users
from skyroute.console.errors import UsersError


def test_only_the_hash_of_a_password_is_stored(tmp_path: Path) -> None:
    anna, same = make_user("anna", Role.OPERATOR, "correct horse"), make_user("same", Role.VIEWER, "correct horse")
    write_users(tmp_path / "users", {"anna": anna, "same": same})
    content = (tmp_path / "users").read_text()
    assert "correct horse" not in content
    assert anna.secret != same.secret  # each has its own salt
    assert read_users(tmp_path / "users") == {"anna": anna, "same": same}
    assert anna.has_password("correct horse")
    assert not anna.has_password("correct horse ")
    assert not UNKNOWN_USER.has_password("")


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "made" / "users"
    before = os.umask(0)
    try:
        write_users(path, {})
        write_users(path, {"a": make_user("a", Role.VIEWER, "12345678")})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["", "a:b", "a b", "x" * 65, "ä", "a\n"])
def test_names_that_would_damage_the_file_are_refused(name: str) -> None:
    with pytest.raises(UsersError, match="is not allowed"):
        make_user(name, Role.VIEWER, "12345678")


@pytest.mark.parametrize("password", ["", "1234567", "x" * 1025])
def test_passwords_have_a_minimum_and_a_maximum_length(password: str) -> None:
    with pytest.raises(UsersError, match="expected 8 to 1024"):
        make_user("a", Role.VIEWER, password)


def test_any_input_of_a_terminal_can_be_a_password() -> None:
    assert make_user("a", Role.VIEWER, "\udcff\udcfe密码密码密码").has_password("\udcff\udcfe密码密码密码")


SALT_AND_HASH = "00" * 16 + "$" + "00" * 32


@pytest.mark.parametrize(
    "line",
    [
        "anna",
        "anna:operator",
        "anna:king:scrypt$16384$8$1$" + SALT_AND_HASH,
        "anna:operator:plain text",
        ":operator:scrypt$16384$8$1$" + SALT_AND_HASH,
        "anna:operator:scrypt$16383$8$1$" + SALT_AND_HASH,
        "anna:operator:scrypt$1048576$99$1$" + SALT_AND_HASH,
        "anna:operator:scrypt$16384$0$1$" + SALT_AND_HASH,
    ],
)
def test_an_invalid_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "users").write_text(f"# users\n\n{line}\n")
    with pytest.raises(UsersError, match=r"line 3 of .*: write it again with `skyroute console user NAME`"):
        read_users(tmp_path / "users")


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "users").mkdir()
    with pytest.raises(UsersError, match="cannot read the users file"):
        read_users(tmp_path / "users")
    with pytest.raises(UsersError, match="cannot write the users file"):
        write_users(tmp_path / "users", {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsersError, match="cannot read the users file"):
        read_users(tmp_path / "binary")


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    file = UsersFile(tmp_path / "users")
    assert file.read() == {}
    anna = make_user("anna", Role.VIEWER, "12345678")
    write_users(file.path, {"anna": anna})
    assert file.read() == {"anna": anna}
    assert file.read() is file.read()
    write_users(file.path, {})
    assert file.read() == {}
    file.path.unlink()
    assert file.read() == {}
