"""How much may be under way at once."""

import asyncio
from collections import deque


class InFlight:
    """A gate that lets in so many at a time, and so many bytes; the rest wait in line.

    A single piece larger than all the bytes is let in when it is alone.
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
        """Go in if there is room and nobody waits."""
        if self._waiting or not self._has_room(size):
            return False
        self.count += 1
        self.bytes += size
        return True

    async def enter(self, size: int) -> None:
        """Go in as soon as there is room, after all who came before."""
        if self.try_enter(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._admit()  # those behind us may be small enough
            else:
                self.leave(size)  # our turn came as we were told to give up
            raise

    def leave(self, size: int) -> None:
        """Make room, and let in who waits for it."""
        self.count -= 1
        self.bytes -= size
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.done():  # given up
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
