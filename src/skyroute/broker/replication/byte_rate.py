"""Bytes per second of a replication connection."""


class ByteRate:
    """Counts the bytes of the current second, and keeps the rate of the last one."""

    def __init__(self, now: float) -> None:
        self._start = now
        self._bytes = 0
        self.per_s = 0

    def in_second(self, now: float) -> int:
        """Return the bytes since the current second began."""
        elapsed = now - self._start
        if elapsed >= 1.0:
            self.per_s = int(self._bytes / elapsed)
            self._start, self._bytes = now, 0
        return self._bytes

    def add(self, size: int, now: float) -> None:
        """Count bytes."""
        self.in_second(now)
        self._bytes += size
