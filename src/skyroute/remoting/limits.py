"""The limits of a server's connections, and the byte counts that are held against them."""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from skyroute.remoting.client_meters import ClientLimits
from skyroute.wire.frame import FRAME_BYTES_MAX

log = logging.getLogger(__name__)

CLOSE_LINES_MAX: Final = 50
CLOSE_WINDOW_S: Final = 10.0
"""Maximum number of log lines about closed connections in each window of this length."""


@dataclass(frozen=True, slots=True)
class Limits:
    """All limits of a server's connections."""

    connections_max: int = 50_000
    frame_bytes_max: int = FRAME_BYTES_MAX
    exempt: Mapping[int, int] = field(default_factory=dict)
    """Request codes whose frames may be longer, with their maximum length."""
    buffered_bytes_max: int = 1 << 30
    """Maximum size of incomplete and waiting frames of all connections."""
    unsent_bytes_max: int = 1 << 30
    """Maximum size of the responses of all connections that their peers have not read."""
    write_high_bytes: int = 64 * 1024
    write_low_bytes: int = 32 * 1024
    idle_s: float = 120.0
    opening_s: float = 10.0
    """Maximum time between the first byte and the first request or the end of the TLS handshake."""
    listen_backlog: int = 1024
    send_buffer_bytes: int = 0
    receive_buffer_bytes: int = 0
    """Sizes of the socket buffers; 0 means the system's default."""
    clients: ClientLimits = field(default_factory=ClientLimits)
    """Limits for each client address."""
    trusts_proxy: Callable[[str], bool] = field(default=lambda address: False)
    """Whether to trust a PROXY header from this IP address."""


class ByteBudget:
    """The sum of all connections' byte counts, with its limit."""

    __slots__ = ("freed", "limit", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.total = 0
        self.freed = 0
        """Sum of all decreases since the start."""


class ByteCount:
    """One connection's part of a `ByteBudget`."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.size = 0

    def set(self, size: int) -> bool:
        """Change the count; return false if it grew and the sum is now above the limit."""
        budget, grown = self._budget, size - self.size
        self.size = size
        budget.total += grown
        if grown < 0:
            budget.freed -= grown
        return grown <= 0 or budget.total <= budget.limit


@dataclass(slots=True)
class CloseLog:
    """Logs connections that are closed for an error of the peer, with at most `CLOSE_LINES_MAX` lines per window."""

    lines: int = 0
    window_began_at: float = -math.inf

    def add(self, address: str, reason: str | None, now: float) -> None:
        """Log a connection, unless there is no reason."""
        if reason is None:
            return
        if now - self.window_began_at > CLOSE_WINDOW_S:
            if self.lines > CLOSE_LINES_MAX:
                log.warning("connections closed without a line each count=%d", self.lines - CLOSE_LINES_MAX)
            self.lines, self.window_began_at = 0, now
        self.lines += 1
        if self.lines <= CLOSE_LINES_MAX:
            log.warning("connection closed peer=%s reason=%s", address, reason)
