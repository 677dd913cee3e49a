"""Generates the unique ids of messages."""

import os
import random
from collections.abc import Callable
from datetime import datetime
from itertools import count
from typing import Final

from skyroute.message.message_id import encode_unique_id, month_start, unique_id_prefix

COUNTER_CHARS: Final = 4
"""The counter of an id, different for all ids of one millisecond."""


class MessageIds:
    """Unique ids of one process: IP address, process id, time within the month, counter.

    `wall` returns the seconds since the epoch.
    """

    def __init__(self, ip: str, wall: Callable[[], float]) -> None:
        self._prefix = unique_id_prefix(ip, os.getpid(), random.getrandbits(32))
        self._wall = wall
        self._count = count(random.getrandbits(16)).__next__
        self._month_start_s = 0.0
        self._month_end_s = 0.0
        self._last_ms = -1
        self._head = ""

    def next(self) -> str:
        """Return a new id."""
        now_s = self._wall()
        if not self._month_start_s <= now_s < self._month_end_s:
            self._begin_month(now_s)
        into_month_ms = int((now_s - self._month_start_s) * 1000)
        if into_month_ms != self._last_ms:
            # Only the counter differs within a millisecond.
            self._last_ms = into_month_ms
            self._head = encode_unique_id(self._prefix, into_month_ms, 0)[:-COUNTER_CHARS]
        return f"{self._head}{self._count() & 0xFFFF:04X}"

    def _begin_month(self, now_s: float) -> None:
        start = month_start(datetime.fromtimestamp(now_s).astimezone())
        following = start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
        self._month_start_s, self._month_end_s = start.timestamp(), following.timestamp()
