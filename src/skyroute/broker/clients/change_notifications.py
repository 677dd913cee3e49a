"""Notifies the members of a consumer group of a change, so that they rebalance."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.config import BrokerConfig
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.wire.calls.clients import encode_members_changed

GAP_S: Final = 0.1
"""Minimum time between two notifications of a group. Without it, a thousand members that join at once would each get a
thousand."""

NOTIFIED_PER_TURN: Final = 500
"""Members notified in one turn of the loop."""

CallLater = Callable[[float, Callable[[], None]], object]


def _call_later(delay_s: float, then: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, then)


class ChangeNotifications:
    """Notifies a group's members of a change, at most once per `GAP_S`."""

    def __init__(
        self, clients: ConnectedClients, groups: Groups, config: BrokerConfig, call_later: CallLater = _call_later
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._config = config
        self._call_later = call_later
        self._notified: dict[str, bool] = {}
        """Groups notified now or less than `GAP_S` ago, and whether they changed again since."""
        self._work: deque[Iterator[None]] = deque()
        """Notifications under way; each step notifies one member."""
        self._is_scheduled = False
        """`_continue` is scheduled for the next turn of the loop."""
        self.on_change: Callable[[str], None] = lambda _group: None
        """Called with each group that changes, before its members are notified."""

    def put(self, groups: Iterable[str]) -> None:
        """Notify the members of these groups, now or at the end of their gap."""
        if not self._config.notify_group_changes:
            return
        for group in groups:
            settings = self._groups.get(group)
            if settings is None or settings.notify_members:
                self.on_change(group)
                self._put(group)
        if not self._is_scheduled:
            self._continue()

    def _put(self, group: str) -> None:
        if group in self._notified:
            self._notified[group] = True
        else:
            self._notified[group] = False
            self._work.append(self._notify(group))

    def _notify(self, group: str) -> Iterator[None]:
        known = self._clients.consumers(group)
        if known is None:
            del self._notified[group]
            return
        notification = encode_members_changed(group)
        for member in list(known.members):
            member.peer.send_oneway(notification)
            yield
        self._call_later(GAP_S, lambda: self._end_gap(group))

    def _end_gap(self, group: str) -> None:
        if self._notified.pop(group):
            self._put(group)
            if not self._is_scheduled:
                self._continue()

    def _continue(self) -> None:
        """Notify up to `NOTIFIED_PER_TURN` members; the next turn of the loop notifies the rest."""
        self._is_scheduled = False
        notified = 0
        while self._work:
            for _ in self._work[0]:
                notified += 1
                if notified >= NOTIFIED_PER_TURN:
                    self._is_scheduled = True
                    self._call_later(0, self._continue)
                    return
            self._work.popleft()
