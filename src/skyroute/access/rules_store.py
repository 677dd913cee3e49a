"""The users and policies in force: those of the server's rules file, and those of ACL 1.0 files beside it."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from skyroute.access.management import ONLY_SUPER, hides_super, manage
from skyroute.access.plain_acl import parse_plain_acl
from skyroute.access.rules import Rules
from skyroute.access.rules_file import RulesFile, WatchedFile
from skyroute.access.users import User
from skyroute.files.disk import Disk
from skyroute.wire.codes import READ_CODES
from skyroute.wire.command import Request, Response


class RulesStore:
    """Loads, watches and changes rules.

    A user in several files is that of the first: the rules file, then the others in their order. ACL 1.0 files are
    only read; their users cannot be changed over the wire.

    Args:
        path: The rules file.
        plain_paths: Files of ACL 1.0.
        disk: The disk for the rules file.
    """

    def __init__(self, path: Path, plain_paths: Sequence[Path] = (), disk: Disk | None = None) -> None:
        self.file = RulesFile(path, disk)
        self._plain = [WatchedFile(one) for one in plain_paths]
        self._own = Rules()
        self._rules = Rules()

    @property
    def rules(self) -> Rules:
        """All rules in force."""
        return self._rules

    def load(self) -> Rules:
        """Read all files; the server must not start if this fails.

        Raises:
            RulesError: a file is invalid. The rules are as before.
            FileReadError: a file cannot be read. The rules are as before.
        """
        own = rules = self.file.load()
        for file in self._plain:
            content = file.read()
            if content is not None:
                rules = rules.join(parse_plain_acl(content, str(file.path)))
        self._own, self._rules = own, rules
        return rules

    def add_missing(self, users: Iterable[User]) -> None:
        """Add users whose names are not taken, and save them. For the first users, at the start.

        Raises:
            RulesError: there are too many.
            FileReadError, FileWriteError: the disk refuses.
        """
        own = self._own
        for user in users:
            if user.name not in self._rules.users:
                own = own.put_user(user)
        if own is not self._own:
            self.file.save(own)
            self.load()

    def has_changed(self) -> bool:
        """Whether a file has changed since it was last read. The same invalid content is reported once."""
        return self.file.has_changed() or any(file.has_changed() for file in self._plain)

    def manage(self, request: Request, sender: User | None) -> Response:
        """Handle a request of codes 3001 to 3010; a change is on disk before this returns.

        The caller gives the changed `rules` to the gate and drops cached responses.

        Args:
            request: The request, which the gate has allowed.
            sender: Its sender; None if authentication is off.

        Raises:
            RulesError: a file is invalid, so nothing can be changed.
            FileReadError: a file cannot be read.
            FileWriteError: the rules file cannot be written. The rules are as before.
        """
        if self.has_changed():
            self.load()
        if request.code in READ_CODES:
            return manage(self._rules, request, sender).response
        if hides_super(self._rules, request, sender):
            return Response.error(ONLY_SUPER.format("update"))
        managed = manage(self._own, request, sender)
        if managed.rules is not self._own:
            self.file.save(managed.rules)
            self.load()
        return managed.response
