"""Policies: who may do what with which resource, from where."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import msgspec

from skyroute.access.errors import RulesError
from skyroute.access.resources import Action, Resource, group
from skyroute.access.sources import NO_SOURCES, Sources
from skyroute.message.reserved_topics import group_of

ENTRIES_MAX: Final = 10_000
"""Maximum number of entries in one policy."""


_PUB: Final = frozenset({Action.PUB})
_SUB: Final = frozenset({Action.SUB})


class Decision(StrEnum):
    """What an entry says about the requests that it covers."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyKind(StrEnum):
    """The two policies of a user. The default one counts only if no entry of the custom one covers a request."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Need(msgspec.Struct, frozen=True, gc=False):
    """A resource that a request is about, and the actions of which one must be allowed."""

    resource: Resource
    actions: frozenset[Action]

    def __str__(self) -> str:
        return f"{self.resource} {'/'.join(sorted(self.actions))}"

    def of_group(self) -> "Need":
        """Return the need for the group of a retry or dead-letter topic. Only consumers use it: Pub becomes Sub."""
        actions = (self.actions - _PUB) | _SUB if Action.PUB in self.actions else self.actions
        return Need(group(group_of(self.resource.name) or self.resource.name), actions)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a policy."""

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    sources: Sources = NO_SOURCES
    """Where requests must come from; an empty list means anywhere."""

    def __post_init__(self) -> None:
        if not self.actions:
            raise RulesError(f"no actions for {self.resource} (expected some of {', '.join(Action)})")

    def covers(self, need: Need, source: str) -> bool:
        """Return whether this entry decides about a need of a request from an address."""
        return (
            self.resource.covers(need.resource)
            and (Action.ALL in self.actions or not self.actions.isdisjoint(need.actions))
            and (not self.sources.texts or self.sources.contains(source))
        )

    @property
    def rank(self) -> tuple[tuple[bool, int, int], bool]:
        """The first of several entries decides: the most special resource, and for equal ones Deny."""
        return self.resource.rank, self.decision is Decision.ALLOW


@dataclass(frozen=True, slots=True)
class Acl:
    """The policies of one user. Each has at most one entry per resource."""

    custom: tuple[Entry, ...] = ()
    default: tuple[Entry, ...] = ()
    has_sources: bool = field(init=False, repr=False, compare=False)
    """Whether a decision may depend on the source address."""
    _ranked: tuple[tuple[Entry, ...], tuple[Entry, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ranked", (_ranked(self.custom), _ranked(self.default)))
        has_sources = any(entry.sources.texts for entry in (*self.custom, *self.default))
        object.__setattr__(self, "has_sources", has_sources)

    def __bool__(self) -> bool:
        return bool(self.custom or self.default)

    def entries(self, kind: PolicyKind) -> tuple[Entry, ...]:
        """Return the entries of a policy."""
        return self.custom if kind is PolicyKind.CUSTOM else self.default

    def decide(self, need: Need, source: str) -> Decision | None:
        """Return the decision about a need of a request; None if no entry covers it.

        Without an entry for its topic, the group decides about dead letters.
        """
        for entries in self._ranked:
            for entry in entries:
                if entry.covers(need, source):
                    return entry.decision
        return self.decide(need.of_group(), source) if need.resource.is_dead_letters else None

    def merge(self, kind: PolicyKind, entries: Iterable[Entry]) -> "Acl":
        """Return the policies with these entries; one for the same resource is replaced.

        Raises:
            RulesError: there are too many.
        """
        merged = {entry.resource: entry for entry in self.entries(kind)}
        merged.update((entry.resource, entry) for entry in entries)
        if len(merged) > ENTRIES_MAX:
            raise RulesError(f"{len(merged)} entries in a policy (expected at most {ENTRIES_MAX})")
        return self._with(kind, tuple(merged.values()))

    def without(self, kind: PolicyKind, resource: Resource) -> "Acl":
        """Return the policies without the entry for a resource."""
        return self._with(kind, tuple(entry for entry in self.entries(kind) if entry.resource != resource))

    def only(self, text: str) -> "Acl":
        """Return the entries whose resource contains a text."""
        kept = ([entry for entry in entries if text in str(entry.resource)] for entries in (self.custom, self.default))
        return Acl(*map(tuple, kept))

    def _with(self, kind: PolicyKind, entries: tuple[Entry, ...]) -> "Acl":
        return replace(self, custom=entries) if kind is PolicyKind.CUSTOM else replace(self, default=entries)


def _ranked(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.rank))
