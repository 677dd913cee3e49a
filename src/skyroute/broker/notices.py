"""Telling the members of a group that there are others than before, so that they share its queues out anew."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from skyroute.broker.config import BrokerConfig
from skyroute.broker.groups import Groups
from skyroute.broker.members import Members
from skyroute.broker.rosters import Member
from skyroute.wire.calls.clients import encode_members_changed

GAP_S: Final = 0.1
"""How long a group is left alone after it was told. When a thousand members come at once, each of them would otherwise
be told a thousand times."""

TOLD_A_TURN: Final = 500
"""So many members are told before others have their turn."""

CallLater = Callable[[float, Callable[[], None]], object]


def _call_later(delay_s: float, then: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, then)


class MemberNotices:
    """Tells groups at once, and those that were told just now, a little later."""

    def __init__(
        self, members: Members, groups: Groups, config: BrokerConfig, call_later: CallLater = _call_later
    ) -> None:
        self._members = members
        self._groups = groups
        self._config = config
        self._call_later = call_later
        self._told: dict[str, bool] = {}
        """Groups that were told just now, and whether there is more to tell."""

    def put(self, groups: Iterable[str]) -> None:
        """Note that the members of these groups have to be told."""
        if not self._config.notify_consumer_ids_changed_enable:
            return
        for group in groups:
            settings = self._groups.get(group)
            if settings is not None and not settings.notify_members:
                continue
            if group in self._told:
                self._told[group] = True
            else:
                self._tell(group)

    def _tell(self, group: str) -> None:
        known = self._members.consumers(group)
        if known is not None:
            self._told[group] = False
            self._tell_some(group, list(known.members))

    def _tell_some(self, group: str, members: Sequence[Member]) -> None:
        notice = encode_members_changed(group)
        for member in members[:TOLD_A_TURN]:
            member.peer.tell(notice)
        if len(members) > TOLD_A_TURN:
            self._call_later(0, lambda: self._tell_some(group, members[TOLD_A_TURN:]))
        else:
            self._call_later(GAP_S, lambda: self._go_on(group))

    def _go_on(self, group: str) -> None:
        if self._told.pop(group):
            self._tell(group)
