"""A broker's load as numbers, read from its state: texts under Apache's names, some of which may be missing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skyroute.client.admin.cluster import BrokerInfo

DISK_NEARLY_FULL: Final = 0.8
"""Disk usage of a warning. By default, brokers refuse messages above 0.9."""


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """Rates and disk usage of a broker; None: missing in its state."""

    broker: BrokerInfo
    version: str | None
    into: float | None
    """Messages stored per second, over the last ten seconds."""
    out: float | None
    """Messages delivered per second."""
    into_today: int | None
    out_today: int | None
    disk: float | None
    """Used share of the disk, from 0 to 1."""
    started_ms: int | None
    damaged_ranges: int = 0
    """Damaged ranges of the commit log; 0 for Apache's brokers, which do not report them."""
    damaged_bytes: int = 0
    cut_bytes: int = 0
    """Bytes after the end of the commit log that the start moved away."""

    @property
    def disk_nearly_full(self) -> bool:
        return self.disk is not None and self.disk >= DISK_NEARLY_FULL


def read_load(broker: BrokerInfo) -> BrokerLoad:
    """Return the load in a broker's state."""
    state = broker.state
    out = _number(state, "getTransferredTps")
    disk, started = _number(state, "commitLogDiskRatio"), _number(state, "bootTimestamp")
    return BrokerLoad(
        broker,
        state.get("brokerVersionDesc"),
        _number(state, "putTps"),
        _number(state, "getTransferedTps") if out is None else out,  # brokers before 5.0 spell it with one r
        _today(state, "Put"),
        _today(state, "Get"),
        None if disk is None or disk < 0 else disk,
        None if started is None else int(started),
        *(_count(state, f"commitLog{what}") for what in ("DamagedRanges", "DamagedBytes", "CutBytes")),
    )


def _today(state: Mapping[str, str], what: str) -> int | None:
    morning, now = _number(state, f"msg{what}TotalTodayMorning"), _number(state, f"msg{what}TotalTodayNow")
    return None if morning is None or now is None else int(now - morning)


def _count(state: Mapping[str, str], key: str) -> int:
    """Return a count, or 0 if it is missing or invalid."""
    text = state.get(key, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


def _number(state: Mapping[str, str], key: str) -> float | None:
    """Return the first number of a value. Rates have several, for time spans of increasing length."""
    try:
        return float(state[key].split()[0])
    except (KeyError, IndexError, ValueError):
        return None
