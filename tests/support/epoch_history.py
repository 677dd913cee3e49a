"""Decides from recorded history whether an epoch was given twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """The master of a group in an epoch, as somebody saw it; None: the epoch has no master."""

    source: str
    group: str
    epoch: int
    master: int | None


def violations(seen: Iterable[Seen], *, stored: Sequence[Seen] = (), elections: Sequence[Seen] = ()) -> list[str]:
    """Return what contradicts "an epoch is given once".

    Args:
        seen: What brokers and tools were told, in any order.
        stored: Every version of the stored state, in the order of the store.
        elections: What controllers recorded as their own decisions.
    """
    found: list[str] = []
    masters: defaultdict[tuple[str, int], dict[int | None, str]] = defaultdict(dict)
    for each in (*seen, *stored, *elections):
        if each.epoch:  # before the first election there is no master
            masters[each.group, each.epoch].setdefault(each.master, each.source)
    for (group, epoch), by_master in sorted(masters.items()):
        if len(by_master) > 1:
            found.append(f"epoch {epoch} of {group} has masters {by_master}")
    newest: dict[str, int] = {}
    for each in stored:
        if each.epoch < newest.get(each.group, 0):
            found.append(f"the stored epoch of {each.group} went back from {newest[each.group]} to {each.epoch}")
        newest[each.group] = each.epoch
    given: dict[tuple[str, int], str] = {}
    for each in elections:
        before = given.setdefault((each.group, each.epoch), each.source)
        if before != each.source:
            found.append(f"{before} and {each.source} both gave epoch {each.epoch} of {each.group}")
    return found
