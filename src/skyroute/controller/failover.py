"""Replaces dead masters: at once when a connection closes, and in a scan for brokers that are silent."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from skyroute.clock import Clock
from skyroute.controller.config import ControllerConfig
from skyroute.controller.errors import RequestRefusedError
from skyroute.controller.events import Cause
from skyroute.controller.groups import Groups
from skyroute.controller.heartbeats import Heartbeats, ReplicaKey
from skyroute.controller.leadership import Leadership
from skyroute.controller.rules import Election, Outcome, elect, needs_election
from skyroute.controller.state import GroupState, LiveReplicas
from skyroute.errors import SkyrouteError
from skyroute.remoting.stall_detection import StallDetector

log = logging.getLogger(__name__)

LATE_S: Final = 1.0
"""How late a scan may be before this process counts as stalled."""
LATE_SCANS_MAX: Final = 3
"""Maximum number of scans in a row that are postponed because they are late."""
TICK_S: Final = 0.5
"""How often this process notes that it runs, to find out that it was stalled."""
DEAD_A_TURN: Final = 100
"""Dead brokers that are replaced in one turn of the loop. Thousands may have one connection, or end at once."""


@dataclass(slots=True)
class Failover:
    """Elects new masters. `spawn` runs a coroutine in the background."""

    groups: Groups
    heartbeats: Heartbeats
    leadership: Leadership
    config: ControllerConfig
    clock: Clock
    spawn: Callable[[str, Cause, int | None], None]
    """Runs `replace_master` in the background."""
    _stalls: StallDetector = field(init=False)
    _ran_at: float = field(init=False)
    _dead: deque[tuple[ReplicaKey, Cause]] = field(default_factory=deque)
    """Brokers found dead that are not replaced yet, in a later turn of the loop."""

    def __post_init__(self) -> None:
        self._ran_at = self.clock.monotonic()
        interval_s = self.config.scan_interval_s
        self._stalls = StallDetector(
            interval_s, min(interval_s, LATE_S), self.clock.monotonic(), in_a_row_max=LATE_SCANS_MAX
        )

    def live(self, group: GroupState) -> LiveReplicas:
        """Return the living replicas of a group now."""
        return self.heartbeats.live(group.cluster, group.broker_name, self.clock.monotonic())

    def on_disconnect(self, connection: int) -> None:
        """Note that the brokers of a connection are dead, and replace those that are masters."""
        self._check_stall()
        self._replace_dead(self.heartbeats.drop_holder(connection), Cause.MASTER_DISCONNECTED)

    def _check_stall(self) -> None:
        """Listen again after a stall: brokers that gave up a connection meanwhile have a new one, not read yet."""
        now = self.clock.monotonic()
        if now - self._ran_at > TICK_S + LATE_S:
            log.warning("controller was stalled seconds=%.1f; no election until brokers are heard", now - self._ran_at)
            self.heartbeats.listen_again(now)
        self._ran_at = now

    def scan(self, now: float) -> None:
        """Note which brokers are silent, and replace those that are masters."""
        self._ran_at = now
        if self._stalls.holds_back(now):
            log.warning("heartbeat scan late seconds=%.1f; postponed to the next scan", self._stalls.late_s)
            return
        self._replace_dead(self.heartbeats.expire(now), Cause.MASTER_SILENT)

    def scan_masters(self) -> None:
        """Find groups with a dead master, also those whose failure was not seen by this process."""
        if not self.leadership.is_leader:
            return
        for name, stored in list(self.groups.all().items()):
            if needs_election(stored.state, self.live(stored.state)):
                self.spawn(name, Cause.MASTER_DEAD, None)

    def _replace_dead(self, keys: Iterable[ReplicaKey], cause: Cause) -> None:
        goes_on = bool(self._dead)
        self._dead.extend((key, cause) for key in keys)
        if not goes_on:
            self._replace_some()

    def _replace_some(self) -> None:
        """Replace the masters among the first brokers found dead; the rest follows in the next turn."""
        for _ in range(min(len(self._dead), DEAD_A_TURN)):
            key, cause = self._dead.popleft()
            reason = "connection closed" if cause is Cause.MASTER_DISCONNECTED else "no heartbeat in time"
            log.info("broker not alive broker=%s id=%d reason=%s", key.broker_name, key.broker_id, reason)
            group = self.groups.find(key.broker_name)
            if self.leadership.is_leader and group is not None and needs_election(group, self.live(group)):
                self.spawn(key.broker_name, cause, key.broker_id)
        if self._dead:
            asyncio.get_running_loop().call_soon(self._replace_some)

    async def replace_master(self, broker_name: str, cause: Cause, dead_id: int | None) -> None:
        """Elect a new master for a group if it still needs one; log an error if that fails.

        A broker that was just found dead does not count as back: a heartbeat that follows at once may be a stranger's.
        """
        tries_max = self.config.election_tries_max
        for tries in range(1, tries_max + 1):
            try:
                without = dead_id if tries == 1 else None
                await self.groups.change(broker_name, partial(self._elect, broker_name, cause, without))
            except RequestRefusedError as error:
                log.warning("election refused broker=%s reason=%s", broker_name, error)
                return
            except SkyrouteError as error:
                log.warning("election failed broker=%s try=%d reason=%s", broker_name, tries, error)
            else:
                return

    def _elect(
        self, broker_name: str, cause: Cause, dead_id: int | None, group: GroupState | None
    ) -> Outcome[Election | None]:
        if group is None:
            return Outcome(group, None)
        alive = self.live(group).without(dead_id)
        if not needs_election(group, alive):
            return Outcome(group, None)  # the broker is back, or another request elected a master
        outcome = elect(
            *(group, broker_name, None, alive),
            allow_unclean=self.config.unclean_election_enabled,
            cause=cause,
        )
        return Outcome(outcome.group, outcome.answer, outcome.events)

    async def run_ticks(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._check_stall()

    async def run_settles(self) -> None:
        """Find out about changes of which it is not known whether they are stored."""
        while True:
            await asyncio.sleep(TICK_S)
            for name in self.groups.unsure:
                with suppress(SkyrouteError):  # tried again
                    await self.groups.settle(name)

    async def run_scans(self) -> None:
        while True:
            await asyncio.sleep(self.config.scan_interval_s)
            self.scan(self.clock.monotonic())

    async def run_master_scans(self) -> None:
        """Scan at the end of the listening time and then in intervals."""
        await asyncio.sleep(self.config.settle_s)
        while True:
            self.scan_masters()
            await asyncio.sleep(self.config.master_scan_interval_s)
