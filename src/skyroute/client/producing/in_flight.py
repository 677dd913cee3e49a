"""Limits the number and the bytes of sends in flight."""

import asyncio
from collections import deque


class InFlight:
    """A semaphore on two resources: a number of sends, and their bytes. Waiters are served in order.

    A send larger than `bytes_max` enters alone.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self.count = 0
        self.bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __repr__(self) -> str:
        return f"<InFlight {self.count}/{self._count_max} {self.bytes}/{self._bytes_max} bytes>"

    def try_enter(self, size: int) -> bool:
        """Enter if there is room and no other send waits."""
        if self._waiting or not self._has_room(size):
            return False
        self.count += 1
        self.bytes += size
        return True

    async def enter(self, size: int) -> None:
        """Enter as soon as there is room, after all earlier waiters."""
        if self.try_enter(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._admit()  # the next waiter may be small enough
            else:
                self.leave(size)  # it was admitted and cancelled at the same time
            raise

    def leave(self, size: int) -> None:
        """Leave, and admit waiters that fit now."""
        self.count -= 1
        self.bytes -= size
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.done():  # cancelled
                self._waiting.popleft()
                continue
            if not self._has_room(wanted):
                return
            self._waiting.popleft()
            self.count += 1
            self.bytes += wanted
            turn.set_result(None)

    def _has_room(self, size: int) -> bool:
        return self.count == 0 or (self.count < self._count_max and self.bytes + size <= self._bytes_max)
