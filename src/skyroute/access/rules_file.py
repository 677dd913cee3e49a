"""The file with the users and policies of a server: replaced atomically, readable by its owner only."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from skyroute.access.bodies import acl_body, parse_acl, parse_user, user_body
from skyroute.access.errors import RulesError
from skyroute.access.policies import Acl
from skyroute.access.rules import Rules
from skyroute.access.users import User
from skyroute.files.disk import Disk, write_error
from skyroute.files.errors import FileReadError
from skyroute.files.replace import replace_file
from skyroute.wire.calls.access import AclBody, UserBody

FORMAT: Final = 1
FILE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum size of a rules file, or of an ACL 1.0 file."""

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class _File(msgspec.Struct):
    format: int = FORMAT
    users: list[UserBody] = []
    acls: list[AclBody] = []


class OwnerOnlyDisk(Disk):
    """A disk on which new files are readable by their owner only."""

    def create(self, path: Path, *, like: Path | None = None) -> int:
        """Create a file that must not exist."""
        descriptor = super().create(path, like=like)
        try:
            os.fchmod(descriptor, 0o600)
        except OSError as error:
            os.close(descriptor)
            raise write_error(error, path) from error
        return descriptor


class WatchedFile:
    """Tells whether a file has changed since it was last read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None

    def read(self) -> bytes | None:
        """Return the content; None if there is no such file.

        Raises:
            FileReadError: the file cannot be read, is too long, or is a pipe or device.
        """
        try:
            with os.fdopen(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a pipe would be waited for
                status = os.fstat(file.fileno())
                self._seen = _mark(status)
                if not stat.S_ISREG(status.st_mode):
                    raise FileReadError(f"{self.path} is not a regular file")
                content = file.read(FILE_BYTES_MAX + 1)  # it may grow meanwhile
                if len(content) > FILE_BYTES_MAX:
                    raise FileReadError(f"{self.path} has more than {FILE_BYTES_MAX} bytes")
                return content
        except FileNotFoundError:
            self._seen = None
            return None
        except OSError as error:
            raise FileReadError(f"cannot read {self.path}: {error.strerror}") from error

    @property
    def was_there(self) -> bool:
        """Whether the file was there at the last `read`."""
        return self._seen is not None

    def forget(self) -> None:
        """Count the file as changed."""
        self._seen = ()

    def has_changed(self) -> bool:
        """Whether the file is another one than at the last `read`, or has other content, size or mode."""
        try:
            return _mark(self.path.stat()) != self._seen
        except OSError:
            return self._seen is not None


def _mark(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class RulesFile:
    """The file with all users and policies of one server. Its owner is the only writer besides an operator's editor."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path = path
        self._disk = disk or OwnerOnlyDisk()
        self._watched = WatchedFile(path)

    def has_changed(self) -> bool:
        """Whether the file has changed since it was last loaded or saved."""
        return self._watched.has_changed()

    def is_exposed(self) -> bool:
        """Whether others than its owner can use the file: the caller should warn."""
        try:
            return bool(self.path.stat().st_mode & _OTHERS)
        except OSError:
            return False

    def load(self) -> Rules:
        """Return the rules; none if there never was a file.

        Raises:
            RulesError: the content is invalid.
            FileReadError: the file cannot be read, or is gone: an editor may be replacing it.
        """
        was_there = self._watched.was_there
        content = self._watched.read()
        if content is None and was_there:
            self._watched.forget()
            raise FileReadError(f"{self.path} is gone; to remove all users, write a file without users")
        return Rules() if content is None else decode_rules(content, str(self.path))

    def save(self, rules: Rules) -> None:
        """Replace the file; the previous one is not kept, since it has passwords.

        Raises:
            FileWriteError: the file is as it was.
        """
        content = encode_rules(rules)
        replace_file(self.path, content, keep_backup=False, disk=self._disk)
        if self._watched.read() != content:  # another writer was faster: the caller must load it
            self._watched.forget()


def encode_rules(rules: Rules) -> bytes:
    """Return the content of a rules file. What only an ACL 1.0 file can say is left out."""
    users = [user_body(user, with_password=True) for _, user in sorted(rules.users.items())]
    acls = [acl_body(name, acl) for name, acl in sorted(rules.acls.items())]
    members: dict[str, Any] = msgspec.to_builtins(_File(FORMAT, users, acls))
    return msgspec.json.format(msgspec.json.encode(members), indent=1) + b"\n"


def decode_rules(content: bytes, where: str) -> Rules:
    """Read the content of a rules file.

    Raises:
        RulesError: it is invalid. The text has the place and no part of the content.
    """
    try:
        found = msgspec.json.decode(content, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise RulesError(f"{where} is not a rules file (expected JSON with format, users and acls)") from None
    if found.format != FORMAT:
        raise RulesError(f"{where} has format {found.format} (expected {FORMAT})")
    try:
        return Rules(_users(found.users), _acls(found.acls))
    except RulesError as error:
        raise RulesError(f"{where}: {error}") from None


def _users(bodies: Iterable[UserBody]) -> dict[str, User]:
    users: dict[str, User] = {}
    for body in bodies:
        user = parse_user(body)
        if user.name in users:
            raise RulesError(f"user {user.name!r} is there twice")
        users[user.name] = user
    return users


def _acls(bodies: Iterable[AclBody]) -> dict[str, Acl]:
    acls: dict[str, Acl] = {}
    for body in bodies:
        name, policies = parse_acl(body)
        acl = acls.get(name, Acl())
        for kind, entries in policies:
            acl = acl.merge(kind, entries)
        acls[name] = acl
    return acls
