"""Telling the members of a group that there are others than before, so that they share its queues out anew."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.config import BrokerConfig
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.wire.calls.clients import encode_members_changed

GAP_S: Final = 0.1
"""How long a group is left alone after it was told. When a thousand members come at once, each of them would otherwise
be told a thousand times."""

TOLD_A_TURN: Final = 500
"""Members notified in one turn of the loop."""

CallLater = Callable[[float, Callable[[], None]], object]


def _call_later(delay_s: float, then: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, then)


class ChangeNotifications:
    """Tells groups at once, and those that were told just now, a little later."""

    def __init__(
        self, clients: ConnectedClients, groups: Groups, config: BrokerConfig, call_later: CallLater = _call_later
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._config = config
        self._call_later = call_later
        self._told: dict[str, bool] = {}
        """Groups notified now or less than `GAP_S` ago, and whether they changed again since."""
        self._work: deque[Iterator[None]] = deque()
        """Notifications under way; each step notifies one member."""
        self._goes_on = False
        """`_go_on` is scheduled for the next turn of the loop."""

    def put(self, groups: Iterable[str]) -> None:
        """Note that the members of these groups have to be told."""
        if not self._config.notify_group_changes:
            return
        for group in groups:
            settings = self._groups.get(group)
            if settings is None or settings.notify_members:
                self._put(group)
        if not self._goes_on:
            self._go_on()

    def _put(self, group: str) -> None:
        if group in self._told:
            self._told[group] = True
        else:
            self._told[group] = False
            self._work.append(self._tell(group))

    def _tell(self, group: str) -> Iterator[None]:
        known = self._clients.consumers(group)
        if known is None:
            del self._told[group]
            return
        notice = encode_members_changed(group)
        for member in list(known.members):
            member.peer.send_oneway(notice)
            yield
        self._call_later(GAP_S, lambda: self._end_gap(group))

    def _end_gap(self, group: str) -> None:
        if self._told.pop(group):
            self._put(group)
            if not self._goes_on:
                self._go_on()

    def _go_on(self) -> None:
        """Notify up to `TOLD_A_TURN` members; the next turn of the loop notifies the rest."""
        self._goes_on = False
        told = 0
        while self._work:
            for _ in self._work[0]:
                told += 1
                if told >= TOLD_A_TURN:
                    self._goes_on = True
                    self._call_later(0, self._go_on)
                    return
            self._work.popleft()
