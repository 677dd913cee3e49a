"""Users and policies as they are sent and kept, to and from values."""

from collections.abc import Iterator
from typing import Final

from skyroute.access.errors import RulesError
from skyroute.access.policies import Acl, Decision, Entry, PolicyKind
from skyroute.access.resources import Action, parse_action, parse_resource
from skyroute.access.sources import parse_sources
from skyroute.access.users import Password, User
from skyroute.wire.calls.access import AclBody, EntryBody, PolicyBody, UserBody
from skyroute.wire.fields import is_name

SUPER: Final = "Super"
NORMAL: Final = "Normal"
ENABLE: Final = "enable"
DISABLE: Final = "disable"
_SUBJECT: Final = "User:"

Policies = list[tuple[PolicyKind, list[Entry]]]
"""Policies to add: entries by kind."""


def parse_user(body: UserBody, old: User | None = None) -> User:
    """Return a user; what the body leaves out is as in `old`, or the default.

    Raises:
        RulesError: a part is invalid, or a new user has no password.
    """
    kind = _one_of(body.user_type, (SUPER, NORMAL), "user type")
    status = _one_of(body.user_status, (ENABLE, DISABLE), "user status")
    if old is None:
        password = Password(body.password or "")
        return User(body.username or "", password, kind == SUPER, status != DISABLE)
    return User(
        old.name,
        Password(body.password) if body.password and body.password.strip() else old.password,
        old.is_super if kind is None else kind == SUPER,
        old.is_enabled if status is None else status == ENABLE,
        old.trusted_sources,
    )


def is_super_wanted(body: UserBody) -> bool:
    """Return whether a body asks for a super user.

    Raises:
        RulesError: the type is invalid.
    """
    return _one_of(body.user_type, (SUPER, NORMAL), "user type") == SUPER


def user_body(user: User, *, with_password: bool = False) -> UserBody:
    """Return a user as it is sent; with the password, only as it is kept."""
    return UserBody(
        user.name,
        user.password.reveal() if with_password else None,
        SUPER if user.is_super else NORMAL,
        ENABLE if user.is_enabled else DISABLE,
    )


def subject_of(name: str) -> str:
    """Return the subject of a user: `User:` and its name."""
    return f"{_SUBJECT}{name}"


def parse_subject(text: str) -> str:
    """Return the name of the user that a subject names.

    Raises:
        RulesError: it names no user.
    """
    kind, _, name = text.partition(":")
    if f"{kind}:".lower() != _SUBJECT.lower() or not is_name(name):
        raise RulesError(f"invalid subject {text[:80]!r} (expected such as User:alice)")
    return name


def parse_acl(body: AclBody) -> tuple[str, Policies]:
    """Return the name of a user, and policies to add.

    Raises:
        RulesError: a part is invalid, or there is no policy or no entry.
    """
    name = parse_subject(body.subject or "")
    if not body.policies:
        raise RulesError("The policies is empty.")
    return name, [_parse_policy(policy) for policy in body.policies]


def parse_policy_kind(text: str | None) -> PolicyKind:
    """Return the kind of a policy: the custom one, unless the text says otherwise.

    Raises:
        RulesError: there is no such kind.
    """
    return PolicyKind(_one_of(text, tuple(PolicyKind), "policy type") or PolicyKind.CUSTOM)


def _parse_policy(body: PolicyBody) -> tuple[PolicyKind, list[Entry]]:
    if not body.entries:
        raise RulesError("The policy entries is empty.")
    return parse_policy_kind(body.policy_type), [_parse_entry(entry) for entry in body.entries]


def _parse_entry(body: EntryBody) -> Entry:
    decision = _one_of(body.decision, tuple(Decision), "decision")
    if not decision:
        raise RulesError("The decision is null or illegal.")
    return Entry(
        parse_resource(body.resource or ""),
        frozenset(map(parse_action, body.actions or ())),
        Decision(decision),
        parse_sources(body.source_ips or ()),
    )


def acl_body(name: str, acl: Acl) -> AclBody:
    """Return the policies of a user as they are sent and kept."""
    return AclBody(subject_of(name), tuple(_policy_bodies(acl)))


def _policy_bodies(acl: Acl) -> Iterator[PolicyBody]:
    for kind in PolicyKind:
        entries = acl.entries(kind)
        if entries:
            yield PolicyBody(kind.value, tuple(map(_entry_body, entries)))


def _entry_body(entry: Entry) -> EntryBody:
    actions = tuple(action.value for action in Action if action in entry.actions)
    return EntryBody(str(entry.resource), actions, entry.sources.texts or None, entry.decision.value)


def _one_of(text: str | None, known: tuple[str, ...], what: str) -> str | None:
    """Return the known word that a text is, in any case of letters; None for an empty text."""
    if not text:
        return None
    for word in known:
        if word.lower() == text.lower():
            return word
    raise RulesError(f"invalid {what} {text[:80]!r} (expected {' or '.join(known)})")
