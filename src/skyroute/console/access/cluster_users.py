"""Users of the console: those of its own file, and those of a server's rules file, with roles from their policies."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from skyroute.access.errors import RulesError
from skyroute.access.policies import Acl, Decision, Entry, Need
from skyroute.access.resources import Action, cluster
from skyroute.access.rules import Rules
from skyroute.access.rules_file import WatchedFile, decode_rules
from skyroute.access.sources import NO_SOURCES
from skyroute.access.users import Password
from skyroute.access.users import User as ClusterUser
from skyroute.console.access.users import UNKNOWN_USER, Role, User, UsersFile
from skyroute.console.errors import UsersError
from skyroute.files.errors import FileReadError
from skyroute.wire.signature import signature_of

_CHALLENGE_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class PolicyUser(User):
    """A user of the cluster, whose policies say which role it has."""

    password: Password = field(kw_only=True)

    def has_password(self, password: str) -> bool:
        """Return whether this is the user's password. It takes as long as for users of the console's own file."""
        UNKNOWN_USER.has_password(password)
        challenge = secrets.token_hex(_CHALLENGE_BYTES)
        try:
            return self.password.has_signed(signature_of(password, challenge.encode()), challenge, b"")
        except UnicodeEncodeError:
            return False


class ConsoleUsers:
    """All users that can sign in. A user of the console's own file takes precedence over one of the cluster.

    Args:
        own: The console's users file.
        rules: Rules file of a server; None: users of the cluster cannot sign in.
        cluster_name: Cluster of which a user needs Get to look, and Update to change something.
    """

    def __init__(self, own: Path, rules: Path | None = None, cluster_name: str = "DefaultCluster") -> None:
        self._own = UsersFile(own)
        self._rules = None if rules is None else WatchedFile(rules)
        self._cluster_name = cluster_name
        self._of_cluster: dict[str, User] = {}

    def read(self) -> Mapping[str, User]:
        """Return the current users by name.

        Raises:
            UsersError: a file cannot be read, or is invalid.
        """
        own = self._own.read()
        if self._rules is None:
            return own
        if self._rules.has_changed():
            self._of_cluster = {}
            self._of_cluster = self._load(self._rules)
        return {**self._of_cluster, **own}

    def _load(self, file: WatchedFile) -> dict[str, User]:
        try:
            content = file.read()
            rules = Rules() if content is None else decode_rules(content, str(file.path))
        except (FileReadError, RulesError) as error:
            file.forget()
            raise UsersError(f"cannot use the users of the cluster: {error}") from error
        roles = ((user, _role(user, rules.acl_of(user.name), self._cluster_name)) for user in rules.users.values())
        return {user.name: PolicyUser(user.name, role, "", password=user.password) for user, role in roles if role}


def _role(user: ClusterUser, acl: Acl, cluster_name: str) -> Role | None:
    """Return the role of a user; None if it may not look at the cluster."""
    if not user.is_enabled:
        return None
    if user.is_super:
        return Role.OPERATOR
    anywhere = Acl(_anywhere(acl.custom), _anywhere(acl.default))
    for action, role in ((Action.UPDATE, Role.OPERATOR), (Action.GET, Role.VIEWER)):
        if anywhere.decide(Need(cluster(cluster_name), frozenset({action})), "") is Decision.ALLOW:
            return role
    return None


def _anywhere(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return the entries that count whatever the browser's address is: the network of servers is another one."""
    return tuple(
        replace(entry, sources=NO_SOURCES)
        for entry in entries
        if not entry.sources.texts or entry.decision is Decision.DENY
    )
