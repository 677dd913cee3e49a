"""Which brokers are alive: the last heartbeat of each, in memory.

A broker is alive from its heartbeat until its connection closes or a scan finds that its time is over. Nothing else
makes it dead: after a stall of this process, heartbeats wait unread, and the scan is postponed.

Heartbeats of one id may come over two connections. If the first one falls silent, the broker has reconnected. If both
go on, the second sender may be a stranger: its heartbeats do not count, and its end does not make the broker dead.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from skyroute.controller.state import LiveReplicas, Progress

TIMEOUT_S: Final = 10.0
"""How long a broker is alive after a heartbeat that does not say it; Apache's default as well."""

TIMEOUT_S_MAX: Final = 300.0
"""Longest time that a broker can ask for."""

BROKERS_MAX: Final = 100_000
"""Maximum number of brokers that are alive; heartbeats of more are ignored."""

UNKNOWN_A_CONNECTION: Final = 100
"""Maximum number of brokers of one connection, at a controller that does not know which ones are registered."""


class ReplicaKey(NamedTuple):
    """A broker in controller mode."""

    cluster: str
    broker_name: str
    broker_id: int


@dataclass(slots=True)
class _Lease:
    holder: int
    expires_at: float
    yields_at: float
    """When another connection may take over from a silent holder."""
    progress: Progress
    heir: "_Lease | None" = None
    """Lease of another connection, with a heartbeat after the last one of the holder; it replaces a closed holder."""
    is_disputed: bool = False
    """Whether the holder went on beside another sender: there is no heir any more."""


class Heartbeats:
    """The living brokers of all groups. `holder` is the number of a connection."""

    def __init__(self, now: float, settle_s: float = TIMEOUT_S) -> None:
        self._settle_s = settle_s
        self._settles_at = now + settle_s
        self._groups: defaultdict[tuple[str, str], dict[int, _Lease]] = defaultdict(dict)
        self._keys_of: defaultdict[int, set[ReplicaKey]] = defaultdict(set)
        self._count = 0
        self._has_ignored = False
        """Whether a heartbeat was ignored because there were too many."""

    def __len__(self) -> int:
        return self._count

    def listen_again(self, now: float) -> None:
        """Start over: a controller that was not leading has not heard every broker."""
        self._settles_at = now + self._settle_s

    def is_settled(self, now: float) -> bool:
        """Return whether every living broker had the time to be heard."""
        return now >= self._settles_at

    def keep(self, is_registered: Callable[[ReplicaKey], bool], now: float) -> None:
        """Forget the brokers that are not registered. Called by a controller that begins to lead.

        If heartbeats were ignored, it listens again: those of registered brokers may be among them.
        """
        for key in [key for key, _ in self._leases() if not is_registered(key)]:
            self._remove(key)
        if self._has_ignored:
            self._has_ignored = False
            self.listen_again(now)

    def beat(
        self,
        key: ReplicaKey,
        progress: Progress,
        *,
        holder: int,
        now: float,
        timeout_s: float = TIMEOUT_S,
        is_registered: bool = True,
    ) -> bool:
        """Note a heartbeat. Returns False if it is ignored because too many brokers are alive.

        A broker is not registered if this controller cannot tell: only the leader knows.
        """
        timeout_s = min(timeout_s, TIMEOUT_S_MAX) if timeout_s > 0 else TIMEOUT_S
        new = _Lease(holder, now + timeout_s, now + timeout_s / 2, progress)
        lease = self._groups.get(key[:2], {}).get(key.broker_id)
        if lease is None:
            may_add = is_registered or len(self._keys_of.get(holder, ())) < UNKNOWN_A_CONNECTION
            is_noted = may_add and self._add(key, new)
            self._has_ignored |= not is_noted
            return is_noted
        if lease.holder == holder:
            new.is_disputed = lease.is_disputed or lease.heir is not None
            self._replace(key, lease, new)
        elif now >= lease.yields_at:
            self._replace(key, lease, new)
        elif not lease.is_disputed:
            self._set_heir(key, lease, new)
        return True

    def is_at_another(self, key: ReplicaKey, holder: int) -> bool:
        """Return whether a broker is alive on another connection."""
        lease = self._groups.get(key[:2], {}).get(key.broker_id)
        return lease is not None and lease.holder != holder

    def presume(self, key: ReplicaKey, *, holder: int, now: float) -> None:
        """Take a broker as alive that was just elected and has not sent a heartbeat yet."""
        if key.broker_id not in self._groups.get(key[:2], {}):
            self._add(key, _Lease(holder, now + TIMEOUT_S, now + TIMEOUT_S / 2, Progress()))

    def _add(self, key: ReplicaKey, lease: _Lease) -> bool:
        if self._count >= BROKERS_MAX:
            return False
        self._groups[key[:2]][key.broker_id] = lease
        self._keys_of[lease.holder].add(key)
        self._count += 1
        return True

    def drop_holder(self, holder: int) -> tuple[ReplicaKey, ...]:
        """Remove the brokers of a closed connection, and return them. One that has reconnected stays."""
        removed = []
        for key in sorted(self._keys_of.get(holder, ())):
            lease = self._groups[key[:2]][key.broker_id]
            if lease.holder != holder:
                self._set_heir(key, lease, None)
            elif lease.heir is not None:
                self._replace(key, lease, lease.heir)
            else:
                self._remove(key)
                removed.append(key)
        return tuple(removed)

    def expire(self, now: float) -> tuple[ReplicaKey, ...]:
        """Remove the brokers whose time is over, and return them."""
        keys = tuple(sorted(key for key, lease in self._leases() if lease.expires_at < now))
        for key in keys:
            self._remove(key)
        return keys

    def live(self, cluster: str, broker_name: str, now: float) -> LiveReplicas:
        """Return the living replicas of a group."""
        leases = self._groups.get((cluster, broker_name), {})
        return LiveReplicas({broker_id: lease.progress for broker_id, lease in leases.items()}, self.is_settled(now))

    def _leases(self) -> Iterator[tuple[ReplicaKey, _Lease]]:
        for (cluster, broker_name), leases in self._groups.items():
            for broker_id, lease in leases.items():
                yield ReplicaKey(cluster, broker_name, broker_id), lease

    def _replace(self, key: ReplicaKey, lease: _Lease, new: _Lease) -> None:
        self._set_heir(key, lease, None)
        if new.holder != lease.holder:
            self._unlink(key, lease.holder)
            self._keys_of[new.holder].add(key)
        self._groups[key[:2]][key.broker_id] = new

    def _set_heir(self, key: ReplicaKey, lease: _Lease, heir: _Lease | None) -> None:
        if lease.heir is not None:
            self._unlink(key, lease.heir.holder)
        if heir is not None:
            self._keys_of[heir.holder].add(key)
        lease.heir = heir

    def _remove(self, key: ReplicaKey) -> None:
        lease = self._groups[key[:2]].pop(key.broker_id)
        self._set_heir(key, lease, None)
        self._unlink(key, lease.holder)
        self._forget_if_empty(key)
        self._count -= 1

    def _unlink(self, key: ReplicaKey, holder: int) -> None:
        self._keys_of[holder].discard(key)
        if not self._keys_of[holder]:
            del self._keys_of[holder]

    def _forget_if_empty(self, key: ReplicaKey) -> None:
        if not self._groups[key[:2]]:
            del self._groups[key[:2]]
