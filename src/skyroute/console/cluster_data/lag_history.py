"""The lag of groups whose pages are open, and which consumer held which queue."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from skyroute.message.queue_ref import QueueRef

GROUPS_MAX: Final = 200
"""Above this number, the least recently used group is evicted."""
LAGS_MAX: Final = 360
"""Half an hour, at one poll every five seconds."""
LAGS_APART_S: Final = 2.0
"""Several people may have the same page open."""
FORGET_S: Final = 60.0
"""A history that no page used for this long begins again: a chart must have no gaps."""
OWNERS_S: Final = 20.0
"""How long the queues of consumers are cached: consumers are not asked at every refresh of a page."""


@dataclass(slots=True)
class LagHistory:
    """The lag of one group over time. Times are monotonic."""

    used_s: float
    lags: deque[int] = field(default_factory=lambda: deque(maxlen=LAGS_MAX))
    lag_s: float = float("-inf")
    owners: Mapping[QueueRef, str] = field(default_factory=dict)
    owners_s: float = float("-inf")

    def add_lag(self, lag: int, now_s: float) -> None:
        """Add the current lag, unless one was added within `LAGS_APART_S`."""
        if now_s >= self.lag_s + LAGS_APART_S:
            self.lags.append(lag)
            self.lag_s = now_s

    def set_owners(self, owners: Mapping[QueueRef, str], now_s: float) -> None:
        """Cache which consumer holds which queue."""
        self.owners, self.owners_s = owners, now_s

    def has_owners(self, now_s: float) -> bool:
        """Return whether the cached owners are still valid."""
        return now_s < self.owners_s + OWNERS_S


class LagHistories:
    """The histories of groups whose pages are open, by the group's name."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, LagHistory] = OrderedDict()

    def find(self, group: str, now_s: float) -> LagHistory:
        """Return the history of a group, a new one if there is none or it is too old."""
        found = self._groups.pop(group, None)
        if found is None or found.used_s + FORGET_S < now_s:
            found = LagHistory(now_s)
        found.used_s = now_s
        self._groups[group] = found
        while len(self._groups) > GROUPS_MAX:
            self._groups.popitem(last=False)
        return found
