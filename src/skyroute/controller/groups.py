"""Applies rules to stored groups: read, decide, store, publish."""

from asyncio import CancelledError
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from skyroute.controller.errors import StoreConflictError, StoreUnavailableError
from skyroute.controller.events import GroupEvent
from skyroute.controller.heartbeats import ReplicaKey
from skyroute.controller.rules import Outcome
from skyroute.controller.state import GroupState
from skyroute.controller.store import GroupStore, StoredGroup

A = TypeVar("A")

TRIES_MAX: Final = 20
"""How often a request decides again because the group changed meanwhile."""

Rule = Callable[[GroupState | None], Outcome[A]]
Publish = Callable[[Collection[GroupEvent], GroupState], None]
"""Receives the events of a stored change and the state after it."""


class Groups:
    """All broker groups of a controller."""

    def __init__(self, store: GroupStore, publish: Publish) -> None:
        self._store = store
        self._publish = publish
        self._unsure: dict[str, Outcome[Any]] = {}
        """Changes that may be stored or not: the store did not respond, or the request was cancelled."""

    def find(self, broker_name: str) -> GroupState | None:
        """Return the state of a group; None if it is unknown."""
        stored = self._store.find(broker_name)
        return None if stored is None else stored.state

    def has(self, key: ReplicaKey) -> bool:
        """Return whether a replica is registered."""
        group = self.find(key.broker_name)
        return group is not None and group.cluster == key.cluster and key.broker_id in group.replicas

    def all(self) -> Mapping[str, StoredGroup]:
        """Return all groups by broker name."""
        return self._store.groups()

    @property
    def unsure(self) -> tuple[str, ...]:
        """Names of the groups to `settle`."""
        return tuple(self._unsure)

    async def settle(self, broker_name: str) -> None:
        """Find out whether the last change of a group is stored, and publish it then.

        Raises:
            RequestRefusedError, StoreUnavailableError: it is still not known.
        """
        outcome = self._unsure.get(broker_name)
        if outcome is None:
            return
        stored = await self._store.settle(broker_name)
        if self._unsure.pop(broker_name, None) is outcome and stored is not None and stored.state == outcome.group:
            self._publish(outcome.events, stored.state)

    def decide(self, broker_name: str, rule: Rule[A]) -> Outcome[A] | None:
        """Return what a rule leads to if it changes nothing; None if `change` must store something.

        Raises:
            RequestRefusedError: the rule refuses.
        """
        if broker_name in self._unsure:
            return None
        before = self.find(broker_name)
        outcome = rule(before)
        return outcome if outcome.group is None or outcome.group == before else None

    async def change(self, broker_name: str, rule: Rule[A]) -> A:
        """Apply a rule to a group and store the new state before the answer is returned.

        Raises:
            RequestRefusedError: the rule refuses.
            StoreConflictError: the group changes all the time.
            FileWriteError: the new state could not be stored; nothing has changed.
            StoreUnavailableError: the new state may be stored; `settle` finds it out.
        """
        await self.settle(broker_name)
        for tries in range(1, TRIES_MAX + 1):
            stored = self._store.find(broker_name)
            before = None if stored is None else stored.state
            outcome = rule(before)
            if outcome.group is None or outcome.group == before:
                return outcome.answer
            try:
                await self._store.replace(outcome.group, 0 if stored is None else stored.revision)
            except StoreConflictError:
                if tries == TRIES_MAX:
                    raise
                continue
            except (StoreUnavailableError, CancelledError):
                self._unsure[broker_name] = outcome
                raise
            self._publish(outcome.events, outcome.group)
            return outcome.answer
        raise AssertionError("unreachable")
