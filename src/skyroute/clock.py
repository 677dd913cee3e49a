"""The one file that reads the system's clocks.

Code that decides something takes the time as an argument; the roles and `remoting` read it here and pass it down.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Where the edge of a server reads the time."""

    def monotonic(self) -> float:
        """Seconds that never step back: for leases, idle times and timeouts."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch: for what people and peers read."""
        ...


class SystemClock:
    """The machine's own clocks."""

    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)
