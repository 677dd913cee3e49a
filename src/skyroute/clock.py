"""The only file that reads the system's clocks.

Pure code takes the time as an argument; servers, clients and `remoting` read it here.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """The source of time of a server or client."""

    def monotonic(self) -> float:
        """Return monotonic seconds, for leases, idle times and timeouts."""
        ...

    def wall(self) -> float:
        """Return seconds since the epoch, for logs, files and messages."""
        ...

    def computed(self) -> float:
        """Return seconds for which this thread has had a processor."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
    computed = staticmethod(time.thread_time)
