"""The users file: one line per user, `name:role:scrypt$n$r$p$salt$hash`."""

import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from skyroute.console.errors import UsersError
from skyroute.files.errors import FileWriteError
from skyroute.files.replace import replace_file

_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_SECRET: Final = re.compile(r"scrypt\$(\d{1,7})\$(\d{1,2})\$(\d{1,2})\$[0-9a-f]{32}\$[0-9a-f]{64}")
PASSWORD_MIN: Final = 8
PASSWORD_MAX: Final = 1024
"""Bounds the work to hash a password."""
MEMORY_MAX: Final = 256 * 1024 * 1024
"""Memory to check one password; a users file from another source may need more."""
_COST: Final = {"n": 2**14, "r": 8, "p": 1}
"""About 50 ms and 16 MiB per check."""


class Role(StrEnum):
    """A viewer sees all pages; an operator can also make changes."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class User:
    """A user who can sign in."""

    name: str
    role: Role
    secret: str

    def has_password(self, password: str) -> bool:
        """Return whether this is the user's password. It is slow on purpose: call it in a thread."""
        _, n, r, p, salt, wanted = self.secret.split("$")
        found = _hash(password, bytes.fromhex(salt), n=int(n), r=int(r), p=int(p))
        return hmac.compare_digest(found, bytes.fromhex(wanted))


UNKNOWN_USER: Final = User("", Role.VIEWER, "scrypt$16384$8$1$" + "00" * 16 + "$" + "00" * 32)
"""Checked for unknown names: refusing them must take as long as refusing a wrong password."""


def _hash(password: str, salt: bytes, *, n: int, r: int, p: int) -> bytes:
    # A terminal may pass bytes that are not UTF-8.
    given = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(given, salt=salt, n=n, r=r, p=p, maxmem=256 * n * r, dklen=32)


def make_user(name: str, role: Role, password: str) -> User:
    """Return a user with a new password hash.

    Raises:
        UsersError: the name or the password is not allowed.
    """
    if not _NAME.fullmatch(name):
        raise UsersError(f"user name {name!r} is not allowed (expected 1 to 64 letters, digits and . _ @ -)")
    if not PASSWORD_MIN <= len(password) <= PASSWORD_MAX:
        raise UsersError(f"the password has {len(password)} characters (expected {PASSWORD_MIN} to {PASSWORD_MAX})")
    salt = secrets.token_bytes(16)
    digest = _hash(password, salt, **_COST)
    return User(name, role, f"scrypt${_COST['n']}${_COST['r']}${_COST['p']}${salt.hex()}${digest.hex()}")


def read_users(path: Path) -> dict[str, User]:
    """Return the users in a file by name; none if the file does not exist.

    Raises:
        UsersError: the file cannot be read, or a line is invalid.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsersError(f"cannot read the users file {path}: {error}") from error
    users = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, role, secret = line.split(":")
            found = User(name, Role(role), secret)
        except ValueError:
            found = UNKNOWN_USER
        if not _NAME.fullmatch(found.name) or not _is_secret(found.secret):
            raise UsersError(
                f"line {number} of {path} is not a valid user: write it again with `skyroute console user NAME`"
            )
        users[found.name] = found
    return users


def _is_secret(text: str) -> bool:
    """Return whether this is a password hash that needs at most `MEMORY_MAX` to check."""
    found = _SECRET.fullmatch(text)
    if found is None:
        return False
    n, r, p = map(int, found.groups())
    return n > 1 and n.bit_count() == 1 and r > 0 and p > 0 and 128 * n * r <= MEMORY_MAX


class UsersFile:
    """The users in a file, which is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._users: dict[str, User] = {}

    def read(self) -> dict[str, User]:
        """Return the current users by name.

        Raises:
            UsersError: the file cannot be read, or a line is invalid.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UsersError(f"cannot read the users file {self.path}: {error}") from error
        seen = status.st_mtime_ns, status.st_size, status.st_ino
        if seen != self._seen:
            self._users, self._seen = read_users(self.path), seen
        return self._users


def write_users(path: Path, users: dict[str, User]) -> None:
    """Write users to a file that only its owner can read.

    Raises:
        UsersError: the file cannot be written.
    """
    text = "".join(f"{user.name}:{user.role}:{user.secret}\n" for user in users.values())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))  # the file that replaces it gets the same mode
        path.chmod(0o600)
        replace_file(path, text.encode(), keep_backup=False)
    except (OSError, FileWriteError) as error:
        raise UsersError(f"cannot write the users file {path}: {error}") from error
