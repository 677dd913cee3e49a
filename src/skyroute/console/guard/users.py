"""Who may sign in: a file with one line a person, `name:role:scrypt$n$r$p$salt$hash`."""

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
"""A longer one would only be work for us."""
MEMORY_MAX: Final = 256 * 1024 * 1024
"""Of one try; a file from elsewhere may ask for more than ours."""
_COST: Final = {"n": 2**14, "r": 8, "p": 1}
"""About a twentieth of a second and 16 MiB for each try."""


class Role(StrEnum):
    """What somebody may do: look, or change things as well."""

    VIEWER = "viewer"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody who may sign in."""

    name: str
    role: Role
    secret: str

    def knows(self, password: str) -> bool:
        """Whether this is the password. It takes a while, on purpose: not for the loop's thread."""
        _, n, r, p, salt, wanted = self.secret.split("$")
        found = _hash(password, bytes.fromhex(salt), n=int(n), r=int(r), p=int(p))
        return hmac.compare_digest(found, bytes.fromhex(wanted))


NOBODY: Final = User("", Role.VIEWER, "scrypt$16384$8$1$" + "00" * 16 + "$" + "00" * 32)
"""Whose password nobody knows: an unknown name must take as long to refuse as a known one."""


def _hash(password: str, salt: bytes, *, n: int, r: int, p: int) -> bytes:
    # Whatever a terminal gave us counts, also where it is no text.
    given = password.encode("utf-8", "surrogatepass")
    return hashlib.scrypt(given, salt=salt, n=n, r=r, p=p, maxmem=256 * n * r, dklen=32)


def make_user(name: str, role: Role, password: str) -> User:
    """Return a user with a new secret.

    Raises:
        UsersError: no such name or password can be had.
    """
    if not _NAME.fullmatch(name):
        raise UsersError(f"{name!r} cannot be a user's name: take up to 64 letters, digits and the signs . _ @ -")
    if not PASSWORD_MIN <= len(password) <= PASSWORD_MAX:
        raise UsersError(f"a password has {PASSWORD_MIN} to {PASSWORD_MAX} characters")
    salt = secrets.token_bytes(16)
    digest = _hash(password, salt, **_COST)
    return User(name, role, f"scrypt${_COST['n']}${_COST['r']}${_COST['p']}${salt.hex()}${digest.hex()}")


def read_users(path: Path) -> dict[str, User]:
    """Return everybody in a file; nobody, if there is none.

    Raises:
        UsersError: it cannot be read, or understood.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UsersError(f"cannot read the users in {path}: {error}") from error
    users = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            name, role, secret = line.split(":")
            found = User(name, Role(role), secret)
        except ValueError:
            found = NOBODY
        if not _NAME.fullmatch(found.name) or not _is_secret(found.secret):
            raise UsersError(f"line {number} of {path} is no user: write it anew with `skyroute console user NAME`")
        users[found.name] = found
    return users


def _is_secret(text: str) -> bool:
    """Whether this is the secret of a password, of which hashing takes no more than `MEMORY_MAX`."""
    found = _SECRET.fullmatch(text)
    if found is None:
        return False
    n, r, p = map(int, found.groups())
    return n > 1 and n.bit_count() == 1 and r > 0 and p > 0 and 128 * n * r <= MEMORY_MAX


class UsersFile:
    """Everybody in a file, which is read again whenever it has changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._users: dict[str, User] = {}

    def read(self) -> dict[str, User]:
        """Return who may sign in now.

        Raises:
            UsersError: it cannot be read, or understood.
        """
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UsersError(f"cannot read the users in {self.path}: {error}") from error
        seen = status.st_mtime_ns, status.st_size, status.st_ino
        if seen != self._seen:
            self._users, self._seen = read_users(self.path), seen
        return self._users


def write_users(path: Path, users: dict[str, User]) -> None:
    """Write everybody to a file that only its owner may read.

    Raises:
        UsersError: it cannot be written.
    """
    text = "".join(f"{user.name}:{user.role}:{user.secret}\n" for user in users.values())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(
            os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
        )  # the file that replaces it has the same owner's rights
        path.chmod(0o600)
        replace_file(path, text.encode(), keep_backup=False)
    except (OSError, FileWriteError) as error:
        raise UsersError(f"cannot write the users to {path}: {error}") from error
