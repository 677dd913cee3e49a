"""Groups whose page somebody looks at: how their lag went since, and who held which queue of late."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from skyroute.message.queue_ref import QueueRef

GROUPS_MAX: Final = 200
"""Those looked at longest ago make room for others."""
LAGS_MAX: Final = 360
"""Half an hour, at one look in five seconds."""
LAGS_APART_S: Final = 2.0
"""Several people may look at the same group."""
FOLLOWED_S: Final = 60.0
"""A group that nobody looked at for so long begins anew: a chart has no gaps."""
OWNERS_S: Final = 20.0
"""How long what members say of their queues holds, so that they are not asked at every look."""


@dataclass(slots=True)
class FollowedGroup:
    """What a page keeps of one group from look to look. Times are monotonic."""

    seen_s: float
    lags: deque[int] = field(default_factory=lambda: deque(maxlen=LAGS_MAX))
    lag_s: float = float("-inf")
    owners: Mapping[QueueRef, str] = field(default_factory=dict)
    owners_s: float = float("-inf")

    def note_lag(self, lag: int, now_s: float) -> None:
        """Add how many messages wait now, unless that was asked a moment ago."""
        if now_s >= self.lag_s + LAGS_APART_S:
            self.lags.append(lag)
            self.lag_s = now_s

    def note_owners(self, owners: Mapping[QueueRef, str], now_s: float) -> None:
        """Keep who holds which queue."""
        self.owners, self.owners_s = owners, now_s

    def has_owners(self, now_s: float) -> bool:
        """Whether members need not be asked again yet."""
        return now_s < self.owners_s + OWNERS_S


class FollowedGroups:
    """The groups that are looked at, by name."""

    def __init__(self) -> None:
        self._groups: OrderedDict[str, FollowedGroup] = OrderedDict()

    def find(self, group: str, now_s: float) -> FollowedGroup:
        """Return what is kept of a group that is looked at now."""
        found = self._groups.pop(group, None)
        if found is None or found.seen_s + FOLLOWED_S < now_s:
            found = FollowedGroup(now_s)
        found.seen_s = now_s
        self._groups[group] = found
        while len(self._groups) > GROUPS_MAX:
            self._groups.popitem(last=False)
        return found
