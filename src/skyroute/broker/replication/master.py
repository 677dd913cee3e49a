"""The master's side of classic replication: sends the log to slaves, and counts what they acknowledge.

A slave reports the end of its log; the first report says where to begin.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final, NamedTuple

from skyroute.broker.config import BrokerConfig
from skyroute.broker.replication.slave_line import SlaveLine
from skyroute.broker.store.message_store import MessageStore
from skyroute.clock import Clock
from skyroute.remoting.errors import BindError
from skyroute.remoting.log_backoff import LogBackoff

log = logging.getLogger(__name__)

SLAVES_MAX: Final = 64
"""Replication connections of one master that have reported."""
STRANGERS_MAX: Final = 64
"""Replication connections without a report. One more takes the place of the oldest of the host that has most."""
HOSTS_MAX: Final = 1_000
"""Hosts for which a master remembers how much of the log it has sent to them."""
ACCEPTED_A_TURN: Final = 64
SCAN_S: Final = 0.5
"""Interval of the scan for heartbeats and silent slaves."""


class SlaveState(NamedTuple):
    """A slave as operators see it."""

    address: str
    acked: int
    sent: int
    behind_bytes: int
    behind_s: float
    """Time since it last had the whole log; 0 if it has."""
    in_sync: bool
    bytes_per_s: int


class HaMaster:
    """Serves the port for slaves. `on_acknowledged` is called after every report.

    `may_replicate` tells whether access control lets an IP address copy all messages: slaves prove nothing there.
    """

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        clock: Clock,
        may_replicate: Callable[[str], bool] | None = None,
    ) -> None:
        self.store = store
        self.config = config
        self.clock = clock
        self._server: asyncio.Server | None = None
        self._has_stopped = False
        self._lines: list[SlaveLine] = []
        """Connections that have reported."""
        self._strangers: list[SlaveLine] = []
        """Connections without a report, the oldest first."""
        self._log_end_at_start = store.max_position
        self.proven_end = -1
        """No slave has more of the log than this."""
        self._sent_to: dict[str, int] = {}
        """Position up to which slaves on a host got the log on connections that are closed."""
        self._closed_log = LogBackoff()
        self._may_replicate = may_replicate
        self._wake: asyncio.Handle | None = None
        self.on_acknowledged: Callable[[], None] | None = None
        self.on_lines_change: Callable[[bool], None] | None = None
        """Called with whether there is a slave, when that changes."""
        self.port = 0

    def __repr__(self) -> str:
        return f"<HaMaster port={self.port} slaves={len(self._lines)}>"

    # The port

    async def listen(self, host: str, port: int) -> None:
        """Open the port.

        Raises:
            BindError: the port cannot be used.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: SlaveLine(self, self.clock.monotonic()), host, port, backlog=ACCEPTED_A_TURN
            )
        except OSError as error:
            raise BindError(f"cannot listen on {host}:{port} for slaves: {error.strerror}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    def admit(self, line: SlaveLine) -> bool:
        """Take a new connection, or close it; idle ones make room for it."""
        self._strangers.append(line)
        if self._has_stopped:
            line.close("this broker stops")
        elif self._may_replicate is not None and not self._may_replicate(line.host):
            line.close("refused by access control; list its address in brokerSourceAddresses")
        elif len(self._strangers) > STRANGERS_MAX:
            host = Counter(each.host for each in self._strangers).most_common(1)[0][0]
            oldest = next(each for each in self._strangers if each.host == host)
            oldest.close(f"{STRANGERS_MAX} connections have not reported yet, and this one is the oldest of its host")
        return not line.is_closed

    def follow(self, line: SlaveLine) -> bool:
        """Count a connection as a slave's, after its first report; false if there is no room, and it is closed.

        A host that has most of the places gives one to other hosts.
        """
        if len(self._lines) >= SLAVES_MAX:
            hosts = Counter(each.host for each in self._lines)
            host, count = hosts.most_common(1)[0]
            if count <= hosts[line.host] + 1:
                line.close(f"{len(self._lines)} slaves are connected (expected at most {SLAVES_MAX})")
                return False
            silent = min((each for each in self._lines if each.host == host), key=lambda each: each.reported_at)
            silent.close(f"its host has {count} of {SLAVES_MAX} places, and {line.host} needs one")
        self._strangers.remove(line)
        self._lines.append(line)
        log.info("slave follows address=%s from=%d", line.address, line.position)
        if len(self._lines) == 1 and self.on_lines_change is not None:
            self.on_lines_change(True)  # noqa: FBT003 - a callback has no keywords
        return True

    def sent_to(self, host: str) -> int:
        """Return the position up to which a host may have the log from this master."""
        return max(
            self._log_end_at_start,
            self._sent_to.get(host, 0),
            *(each.sent_end for each in self._lines if each.host == host),
        )

    def forget(self, line: SlaveLine, reason: str) -> None:
        """Drop a closed connection. Those of strangers are logged less and less often."""
        is_slave = line in self._lines
        (self._lines if is_slave else self._strangers).remove(line)
        if is_slave:
            self._sent_to[line.host] = max(self.sent_to(line.host), line.sent_end)
            if len(self._sent_to) > HOSTS_MAX:
                del self._sent_to[next(iter(self._sent_to))]
        suppressed = self._closed_log.suppressed(line.host, self.clock.monotonic())
        if is_slave or suppressed is not None:
            log.warning(
                "slave lost address=%s acked=%d suppressed=%d reason=%s",
                *(line.address, line.acked, suppressed or 0, reason),
            )
        if is_slave and not self._lines and self.on_lines_change is not None:
            self.on_lines_change(False)  # noqa: FBT003 - a callback has no keywords

    async def run(self) -> None:
        """Send heartbeats and close silent connections, until cancelled."""
        while True:
            await asyncio.sleep(SCAN_S)
            now = self.clock.monotonic()
            for line in [*self._lines, *self._strangers]:
                line.scan(now)

    def stop(self) -> None:
        """Close the port and all connections, also those that the system has accepted already."""
        self._has_stopped = True
        if self._server is not None:
            self._server.close()
            self._server = None
        for line in [*self._lines, *self._strangers]:
            line.close("this broker stops")

    # The log

    def appended(self) -> None:
        """Send new bytes at the end of this turn of the loop."""
        if self._wake is None:
            self._wake = asyncio.get_running_loop().call_soon(self._send_all)

    def _send_all(self) -> None:
        self._wake = None
        for line in list(self._lines):
            line.send_now()

    def acknowledged(self, line: SlaveLine) -> None:
        """Notify the waiting sends that a slave has reported."""
        self.proven_end = max(self.proven_end, line.proven)
        if self.on_acknowledged is not None:
            self.on_acknowledged()

    # Counting

    def _counted(self) -> list[SlaveLine]:
        """Return one connection per slave.

        An older connection from the same host is a slave's lost one, unless a report came since the newer one opened.
        """
        newest: dict[str, float] = {}
        for line in self._lines:
            newest[line.host] = max(newest.get(line.host, 0.0), line.opened_at)
        return [line for line in self._lines if line.reported_at >= newest[line.host]]

    def reached(self, slaves: int) -> int:
        """Return the position up to which this number of slaves have the log; -1 if there are fewer."""
        if slaves <= 0:
            return self.store.max_position
        proven = sorted((line.proven for line in self._counted()), reverse=True)
        return proven[slaves - 1] if slaves <= len(proven) else -1

    @property
    def in_sync(self) -> int:
        """Number of brokers in sync; this one counts."""
        return 1 + sum(each.in_sync for each in self.slaves())

    def slaves(self) -> list[SlaveState]:
        """Return all slaves, each once."""
        end, gap, now = self.store.max_position, self.config.ha_max_gap_bytes, self.clock.monotonic()
        return [
            SlaveState(
                *(line.address, line.acked, line.position, end - line.acked),
                behind_s=now - line.caught_up_at if line.acked < end else 0.0,
                in_sync=end - line.acked < gap,
                bytes_per_s=line.rate.per_s,
            )
            for line in self._counted()
        ]
