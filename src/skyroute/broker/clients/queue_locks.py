"""Locks of queues by consumers, which keep ordered messages in order."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from skyroute.message.queue_ref import QueueRef

LOCK_LIFE_S: Final = 60.0
"""Time after which a lock expires that is not renewed."""
LOCKS_MAX: Final = 100_000
"""Locks of all groups. Beyond it a lock is not granted, and the client tries again."""
GROUP_LOCKS_MAX: Final = 20_000
"""Locks of one group."""


class _Lock(NamedTuple):
    client_id: str
    renewed_at: float


class QueueLocks:
    """Locks by group and queue, in memory only: clients renew them every 20 s."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[QueueRef, _Lock]] = {}
        self._count = 0

    def __repr__(self) -> str:
        return f"<QueueLocks {self._count} of {len(self._groups)} groups>"

    def __len__(self) -> int:
        return self._count

    def lock(self, group: str, client_id: str, queues: Iterable[QueueRef], now: float) -> list[QueueRef]:
        """Renew the locks of a client and lock free queues; return the queues that it holds."""
        locks = self._groups.get(group, {})
        mine = _Lock(client_id, now)
        granted: list[QueueRef] = []
        for queue in dict.fromkeys(queues):
            held = locks.get(queue)
            if held is None:
                if self._count >= LOCKS_MAX or len(locks) >= GROUP_LOCKS_MAX:
                    continue
                self._groups[group] = locks
                self._count += 1
            elif held.client_id != client_id and not _has_expired(held, now):
                continue
            locks[queue] = mine
            granted.append(queue)
        return granted

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueRef]) -> None:
        """Unlock queues that this client holds."""
        locks = self._groups.get(group, {})
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._groups.pop(group, None)

    def is_locked_by(self, group: str, queue: QueueRef, client_id: str, now: float) -> bool:
        """Return whether this client holds a queue."""
        held = self._groups.get(group, {}).get(queue)
        return held is not None and held.client_id == client_id and not _has_expired(held, now)

    def holds_any(self, group: str, now: float) -> bool:
        """Return whether a group has a locked queue, that is, consumes in order."""
        return any(not _has_expired(held, now) for held in self._groups.get(group, {}).values())

    def expire(self, now: float) -> None:
        """Remove expired locks."""
        for group, locks in list(self._groups.items()):
            expired = [queue for queue, held in locks.items() if _has_expired(held, now)]
            for queue in expired:
                del locks[queue]
            self._count -= len(expired)
            if not locks:
                del self._groups[group]


def _has_expired(lock: _Lock, now: float) -> bool:
    return now - lock.renewed_at > LOCK_LIFE_S
