"""Election policy: which replica of a group becomes master."""

from collections.abc import Set
from dataclasses import dataclass

from skyroute.controller.state import GroupState, LiveReplicas


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen master."""

    broker_id: int
    is_unclean: bool = False


def choose_master(
    group: GroupState, alive: LiveReplicas, *, designated: int | None = None, allow_unclean: bool = False
) -> Choice | None:
    """Return the best living member of the sync state set; None if there is none.

    With `allow_unclean`, any living replica is better than none. The current master stays if it is a candidate and no
    other one is designated. A designated replica is chosen, or none.
    """
    chosen = _best(group, alive, group.sync_set, designated)
    if chosen is not None:
        return Choice(chosen)
    chosen = _best(group, alive, group.replicas.keys(), designated) if allow_unclean else None
    return None if chosen is None else Choice(chosen, is_unclean=True)


def _best(group: GroupState, alive: LiveReplicas, members: Set[int], designated: int | None) -> int | None:
    candidates = alive.among(members) & group.replicas.keys()
    if designated is not None:
        return designated if designated in candidates else None
    if group.master in candidates:
        return group.master
    return min(candidates, key=lambda broker_id: _rank(alive, broker_id), default=None)


def _rank(alive: LiveReplicas, broker_id: int) -> tuple[int, int, int, int]:
    """Return a key that sorts the longest log first. The id makes the choice the same on every controller."""
    progress = alive.progress[broker_id]
    return -progress.epoch, -progress.max_offset, progress.priority, broker_id
