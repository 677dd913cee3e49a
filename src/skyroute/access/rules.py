"""All users and policies of a server as one value. A change returns another value, or raises and changes nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, TypeVar

from skyroute.access.errors import RulesError
from skyroute.access.policies import Acl, Entry, PolicyKind
from skyroute.access.resources import Resource
from skyroute.access.sources import NO_SOURCES, Sources, join_sources
from skyroute.access.users import User

USERS_MAX: Final = 10_000
"""Maximum number of users."""
ALL_ENTRIES_MAX: Final = 100_000
"""Maximum number of policy entries of all users."""

NO_POLICIES: Final = Acl()

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Rules:
    """Users by name, and their policies."""

    users: Mapping[str, User] = field(default_factory=lambda: MappingProxyType({}))
    acls: Mapping[str, Acl] = field(default_factory=lambda: MappingProxyType({}))
    trusted_sources: Sources = NO_SOURCES
    """Addresses whose requests are not checked at all (ACL 1.0 only)."""

    def __post_init__(self) -> None:
        if len(self.users) > USERS_MAX:
            raise RulesError(f"{len(self.users)} users (expected at most {USERS_MAX})")
        entries = sum(len(acl.custom) + len(acl.default) for acl in self.acls.values())
        if entries > ALL_ENTRIES_MAX:
            raise RulesError(f"{entries} policy entries (expected at most {ALL_ENTRIES_MAX})")
        for name in ("users", "acls"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __repr__(self) -> str:
        return f"<Rules users={len(self.users)} acls={len(self.acls)}>"

    def acl_of(self, name: str) -> Acl:
        """Return the policies of a user; empty if there are none."""
        return self.acls.get(name, NO_POLICIES)

    def create_user(self, user: User) -> "Rules":
        """Add a user.

        Raises:
            RulesError: the user exists, or there are too many.
        """
        if user.name in self.users:
            raise RulesError("The user is existed")  # Apache's text, as the others here
        return self.put_user(user)

    def put_user(self, user: User) -> "Rules":
        """Add or replace a user.

        Raises:
            RulesError: there are too many.
        """
        return replace(self, users={**self.users, user.name: user})

    def find_user(self, name: str) -> User:
        """Return a user.

        Raises:
            RulesError: there is no such user.
        """
        user = self.users.get(name)
        if user is None:
            raise RulesError("The user is not exist")
        return user

    def delete_user(self, name: str) -> "Rules":
        """Remove a user, if it exists, and its policies."""
        return replace(self, users=_without(self.users, name), acls=_without(self.acls, name))

    def merge_acl(self, name: str, policies: Iterable[tuple[PolicyKind, Iterable[Entry]]]) -> "Rules":
        """Add entries to the policies of a user; an entry for the same resource is replaced.

        Raises:
            RulesError: the user does not exist, or there are too many entries.
        """
        if name not in self.users:
            raise RulesError(f"The subject of User:{name} is not exist.")
        acl = self.acl_of(name)
        for kind, entries in policies:
            acl = acl.merge(kind, entries)
        return self._put_acl(name, acl)

    def delete_acl(self, name: str, kind: PolicyKind = PolicyKind.CUSTOM, resource: Resource | None = None) -> "Rules":
        """Remove the entry for a resource, or without a resource all policies of a user.

        Raises:
            RulesError: the user does not exist, or has no policies.
        """
        if name not in self.users:
            raise RulesError("The subject is not exist.")
        if name not in self.acls:
            raise RulesError("The acl is not exist.")
        return self._put_acl(name, NO_POLICIES if resource is None else self.acls[name].without(kind, resource))

    def join(self, other: "Rules") -> "Rules":
        """Return these rules with the users of others that are not here yet, and their policies.

        Raises:
            RulesError: there are too many.
        """
        new = [name for name in other.users if name not in self.users]
        return Rules(
            {**self.users, **{name: other.users[name] for name in new}},
            {**self.acls, **{name: other.acls[name] for name in new if name in other.acls}},
            join_sources(self.trusted_sources, other.trusted_sources),
        )

    def _put_acl(self, name: str, acl: Acl) -> "Rules":
        return replace(self, acls={**self.acls, name: acl} if acl else _without(self.acls, name))


def _without(table: Mapping[str, V], name: str) -> dict[str, V]:
    return {key: value for key, value in table.items() if key != name}
