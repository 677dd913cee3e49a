"""Queues that one member of a group has for itself: what keeps ordered messages in order."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from skyroute.message.queue_ref import QueueRef

LOCK_LIFE_S: Final = 60.0
"""How long a lock lasts that is not asked for again."""
LOCKS_MAX: Final = 100_000
"""How many there are at most. One too many is not given, and a client asks again for what it did not get."""
GROUP_LOCKS_MAX: Final = 20_000
"""How many of them one group may have."""


class _Lock(NamedTuple):
    client_id: str
    asked_at: float


class QueueLocks:
    """Who has which queue. Nothing of it outlives the process: clients ask again every 20 s."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[QueueRef, _Lock]] = {}
        self._count = 0

    def __repr__(self) -> str:
        return f"<QueueLocks {self._count} of {len(self._groups)} groups>"

    def __len__(self) -> int:
        return self._count

    def lock(self, group: str, client_id: str, queues: Iterable[QueueRef], now: float) -> list[QueueRef]:
        """Give a client what it has already and what nobody has, and return which of the queues are now its own."""
        locks = self._groups.get(group, {})
        mine = _Lock(client_id, now)
        given: list[QueueRef] = []
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
            given.append(queue)
        return given

    def unlock(self, group: str, client_id: str, queues: Iterable[QueueRef]) -> None:
        """Take back what a client has; what others have stays theirs."""
        locks = self._groups.get(group, {})
        for queue in queues:
            held = locks.get(queue)
            if held is not None and held.client_id == client_id:
                del locks[queue]
                self._count -= 1
        if not locks:
            self._groups.pop(group, None)

    def is_locked_by(self, group: str, queue: QueueRef, client_id: str, now: float) -> bool:
        """Return whether a queue is this client's own."""
        held = self._groups.get(group, {}).get(queue)
        return held is not None and held.client_id == client_id and not _has_expired(held, now)

    def holds_any(self, group: str, now: float) -> bool:
        """Return whether any member of a group has a queue for itself: then the group consumes in order."""
        return any(not _has_expired(held, now) for held in self._groups.get(group, {}).values())

    def expire(self, now: float) -> None:
        """Forget the locks that no longer hold."""
        for group, locks in list(self._groups.items()):
            expired = [queue for queue, held in locks.items() if _has_expired(held, now)]
            for queue in expired:
                del locks[queue]
            self._count -= len(expired)
            if not locks:
                del self._groups[group]


def _has_expired(lock: _Lock, now: float) -> bool:
    return now - lock.asked_at > LOCK_LIFE_S
