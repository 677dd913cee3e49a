"""Resources and actions: what a policy names, and what a request needs."""

from enum import IntEnum, StrEnum
from typing import Final

import msgspec

from skyroute.access.errors import RulesError
from skyroute.message.reserved_topics import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    group_of,
    has_messages_of_others,
    is_dead_letter_topic,
    is_pop_retry_topic,
)
from skyroute.wire.fields import is_name

EVERYTHING: Final = "*"


class ResourceKind(StrEnum):
    """What a resource is."""

    ANY = "*"
    """Only in policies: a resource of any kind."""
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(IntEnum):
    """How a resource of a policy is compared with a name. The smallest decides first."""

    LITERAL = 0
    PREFIX = 1
    ANY = 2


class Action(StrEnum):
    """What is done with a resource."""

    ALL = "All"
    """Only in policies: every action."""
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


_KINDS: Final = {kind.lower(): kind for kind in ResourceKind if kind is not ResourceKind.ANY}
_ACTIONS: Final = {action.lower(): action for action in Action}


class Resource(msgspec.Struct, frozen=True, gc=False):
    """A resource: in a policy a literal name, a prefix or all of a kind; in a request always a literal name.

    `str` gives the form of ACL 2.0: `*`, `Topic:orders`, `Topic:orders*` or `Topic:*`.
    """

    kind: ResourceKind
    name: str = ""
    pattern: Pattern = Pattern.LITERAL

    def __str__(self) -> str:
        if self.kind is ResourceKind.ANY:
            return EVERYTHING
        return f"{self.kind}:{self.name}{'' if self.pattern is Pattern.LITERAL else EVERYTHING}"

    def covers(self, needed: "Resource") -> bool:
        """Return whether a policy for this resource is about one that a request needs.

        A topic with messages of other topics is covered by its own name only: `Topic:*` must not undo a Deny for one of
        these.
        """
        if self.kind is not needed.kind:
            return self.kind is ResourceKind.ANY and not needed.is_internal and not needed.is_dead_letters
        if self.pattern is Pattern.LITERAL:
            return self.name == needed.name
        if needed.is_dead_letters and not self.name.startswith(DLQ_PREFIX):
            return False  # `Topic:*` is no right to the messages of all groups
        return needed.name.startswith(self.name) and not needed.is_internal

    @property
    def is_internal(self) -> bool:
        """Whether this is a topic in which the broker keeps messages of other topics."""
        return self.kind is ResourceKind.TOPIC and has_messages_of_others(self.name)

    @property
    def is_dead_letters(self) -> bool:
        """Whether this is the topic of a group's dead letters."""
        return self.kind is ResourceKind.TOPIC and is_dead_letter_topic(self.name)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Order in which policies decide: a kind before `*`, a literal before a prefix, the longest prefix first."""
        is_prefix = self.pattern is Pattern.PREFIX
        return self.kind is ResourceKind.ANY, self.pattern, -len(self.name) if is_prefix else 0


def parse_resource(text: str) -> Resource:
    """Parse a resource of a policy.

    Raises:
        RulesError: the text is not a resource.
    """
    if text == EVERYTHING:
        return Resource(ResourceKind.ANY, "", Pattern.ANY)
    kind_text, _, name = text.partition(":")
    kind = _KINDS.get(kind_text.lower())
    if kind is None or not is_name(name) or EVERYTHING in name[:-1]:
        raise RulesError(f"invalid resource {text[:80]!r} (expected *, Topic:orders, Topic:orders* or Topic:*)")
    if name == EVERYTHING:
        return Resource(kind, "", Pattern.ANY)
    if name.endswith(EVERYTHING):
        return Resource(kind, name[:-1], Pattern.PREFIX)
    return Resource(kind, name)


def parse_action(text: str) -> Action:
    """Parse an action of a policy; letters may have any case.

    Raises:
        RulesError: the text is not an action.
    """
    action = _ACTIONS.get(text.lower())
    if action is None:
        raise RulesError(f"invalid action {text[:80]!r} (expected one of {', '.join(Action)})")
    return action


def topic(name: str, group_name: str = "") -> Resource:
    """Return a topic, or the group of a retry topic: access to it is that to its group.

    The name of a POP retry topic of version 1 does not tell where the group ends: with `group_name`, it is this one.
    """
    if not name.startswith(RETRY_PREFIX):
        return Resource(ResourceKind.TOPIC, name)
    return group(group_name if is_pop_retry_topic(name, group_name) else name)


def group(name: str) -> Resource:
    """Return a group, by its name or that of one of its retry topics."""
    if name.startswith(RETRY_PREFIX):
        name = group_of(name) or ""
    return Resource(ResourceKind.GROUP, name)


def cluster(name: str) -> Resource:
    """Return a cluster."""
    return Resource(ResourceKind.CLUSTER, name)
