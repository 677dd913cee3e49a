"""A broker's state as numbers. Brokers tell it as texts, under Apache's names, and not all of them tell everything."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skyroute.client.admin.cluster import BrokerInfo

DISK_NEARLY_FULL: Final = 0.8
"""Brokers take no messages beyond nine tenths, unless they are set up otherwise."""


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """What goes through a broker, and how full it is; None: it does not tell."""

    broker: BrokerInfo
    version: str | None
    into: float | None
    """Messages stored a second, over the last ten seconds."""
    out: float | None
    """Messages given to consumers a second."""
    into_today: int | None
    out_today: int | None
    disk: float | None
    """How much of the disk is used, of 1."""
    started_ms: int | None
    damaged_ranges: int = 0
    """Damaged places in its log; 0 where it does not tell, as Apache's brokers."""
    damaged_bytes: int = 0
    cut_bytes: int = 0
    """Bytes behind the end of its log that a start has set aside."""

    @property
    def disk_nearly_full(self) -> bool:
        return self.disk is not None and self.disk >= DISK_NEARLY_FULL


def read_load(broker: BrokerInfo) -> BrokerLoad:
    """Read the numbers out of a broker's state."""
    state = broker.state
    out = _number(state, "getTransferredTps")
    disk, started = _number(state, "commitLogDiskRatio"), _number(state, "bootTimestamp")
    return BrokerLoad(
        broker,
        state.get("brokerVersionDesc"),
        _number(state, "putTps"),
        _number(state, "getTransferedTps") if out is None else out,  # brokers before 5.0 have one r less
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
    """Return a count; 0 if it is missing."""
    text = state.get(key, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0


def _number(state: Mapping[str, str], key: str) -> float | None:
    """Return the first number under a name: of rates, which are given over several spans of time, the latest."""
    try:
        return float(state[key].split()[0])
    except (KeyError, IndexError, ValueError):
        return None
