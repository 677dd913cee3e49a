"""A slave that acts for its missing master: it delivers what is due, and other brokers store it.

It acts while it has the smallest id of its group at the name servers and receives nothing from its master. Before it
begins, it asks the master itself: one whose connections were lost is away for name servers, and delivers all the same.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from skyroute.broker.acting.escape import EscapeWriter
from skyroute.broker.appender import Appender
from skyroute.broker.cluster.peer_brokers import PeerBrokers
from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.pop.revival import Revival
from skyroute.broker.pop.revive_log import EARLY_MS, ReviveLog
from skyroute.broker.replication.slave import HaSlave
from skyroute.broker.scheduling.delay_levels import DelayLevels
from skyroute.broker.scheduling.timers import Timers
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.transactions import Transactions
from skyroute.errors import SkyrouteError
from skyroute.files.errors import StorageError
from skyroute.remoting.background import Background
from skyroute.remoting.errors import RefusedError, RemotingError
from skyroute.routing.topology import MASTER_ID
from skyroute.wire.calls.route import decode_member_group, encode_member_group_query
from skyroute.wire.calls.settings import encode_broker_state_query
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Response

log = logging.getLogger(__name__)

DRAIN_S: Final = 4.0
"""A returning master waits at most this long for messages that are on their way to other brokers.

Longer than `slaveTimeout`: a broker that has stored a message may respond only then.
"""
MASTER_RESPONDS_S: Final = 1.0
"""A master that does not respond for this long is dead. A closed port tells it at once."""
EARLY_STEPS: Final = 100
"""Steps of redelivery while a returning master waits."""
RETURN_S: Final = 30.0
"""After its notice, a returning master has this long to register."""


def decode_members(response: Response) -> dict[int, str]:
    """Decode the members of a broker group.

    Raises:
        RefusedError, BodyError: the name server does not give them.
    """
    if response.code != ResponseCode.SUCCESS:
        raise RefusedError(response.code, response.remark or "no remark")
    return decode_member_group(response.body)


class ActingMaster:
    """Decides whether this slave acts, and starts and ends the work of the master."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: Identity,
        peers: PeerBrokers,
        slave: HaSlave,
        appender: Appender,
        escape: EscapeWriter,
        *,
        delays: DelayLevels,
        timers: Timers,
        transactions: Transactions,
        revival: Revival,
        revive_log: ReviveLog,
        offsets: ConsumerOffsets,
        monotonic: Callable[[], float],
    ) -> None:
        self._config = config
        self._identity = identity
        self._peers = peers
        self._slave = slave
        self._appender = appender
        self.escape = escape
        self._delays = delays
        self._timers = timers
        self._transactions = transactions
        self._revival = revival
        self._revive_log = revive_log
        self._offsets = offsets
        self._monotonic = monotonic
        self._work = Background()
        self._sending = Background()
        self._changing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._ends_hand_over = asyncio.Event()
        self._handed_over = asyncio.Event()
        self._returns_until: float | None = None
        self._has_master = False
        self.is_acting = False

    def __repr__(self) -> str:
        return f"<ActingMaster {'acts' if self.is_acting else 'does not act'} {self.escape!r}>"

    @property
    def master_address(self) -> str | None:
        """Address of the registered master, whose tables are this slave's; None while it is away or returns."""
        return self._slave.master_address if self._has_master and not self.is_acting else None

    def notice(self) -> None:
        """Look at the group at once: a name server says that its smallest id has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Look at the group at an interval and after notices, until cancelled."""
        while True:
            try:
                await self.look()
            except SkyrouteError as error:
                log.warning("role not changed reason=%s", error)
            try:
                async with asyncio.timeout(self._config.heartbeat_interval_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def look(self) -> None:
        """Ask the name servers who is in the group, and act or stop. Without a response, nothing changes."""
        own = self._identity
        members = await self._peers.call_name_server(encode_member_group_query(own.cluster, own.name), decode_members)
        if members is None:
            return
        self._has_master = MASTER_ID in members
        if self._has_master:
            self._returns_until = None
        returns = self._returns_until is not None and self._monotonic() < self._returns_until
        acts = own.broker_id == min(members, default=None) and not self._slave.is_connected and not returns
        if acts and not self.is_acting:
            if not await self._master_responds():
                await self._begin()
        elif not acts:
            await self.stand_down()

    async def _master_responds(self) -> bool:
        address = self._slave.master_address
        if address is None:
            return False
        try:
            async with asyncio.timeout(MASTER_RESPONDS_S):
                await self._peers.call_address(address, encode_broker_state_query())
        except (TimeoutError, RemotingError):
            return False
        return True

    async def hand_over(self, master_address: str | None) -> None:
        """Stop acting, because the master returns: it takes over the progress before it registers."""
        self._has_master = False
        self._returns_until = self._monotonic() + RETURN_S
        await self.stand_down(master_address)

    async def _begin(self) -> None:
        async with self._changing:
            log.warning("acting as master begins broker=%s id=%d", self._identity.name, self._identity.broker_id)
            await self._appender.until_visible()  # what the master delivered last must be found
            self.escape.begin()
            self._appender.escape = self.escape
            self._revive_log.reset()
            for table in (self._delays, self._timers, self._offsets):
                table.claim()
            for progress in (self._delays, self._timers, self._transactions):
                progress.load()
            self.is_acting = True
            self._sending.spawn(self.escape.run())
            self._work.spawn(self._delays.run())
            self._work.spawn(self._timers.run())
            if self._config.timers_enabled:
                self._work.spawn(self._revival.run())
            self._ends_hand_over.clear()
            self._handed_over.clear()
            self._work.spawn(self._hand_over_transactions())

    async def _hand_over_transactions(self) -> None:
        """Send the open transactions to other brokers, which check them with their producers.

        One whose topic no other group has waits for the master, and so do those behind it: progress has no gaps.
        """
        sent = 0
        try:
            for draft in self._transactions.hand_over():
                if not self.escape.was_delivered(draft):
                    if not await self.escape.send(draft, self._ends_hand_over):
                        break
                    sent += 1
        finally:
            self._handed_over.set()
        if sent:
            log.info("open transactions sent to other brokers count=%d", sent)
            await self._offsets.table_file.save()  # so that a restart does not send them again

    async def kill(self) -> None:
        """Stop as a crash does, without writing."""
        await self._work.end()
        await self._sending.end()

    async def stand_down(self, master_address: str | None = None) -> None:
        """Stop acting, and save the progress. A returning master gets what no other broker has taken."""
        async with self._changing:
            if not self.is_acting:
                return
            self._ends_hand_over.set()
            with suppress(TimeoutError):  # a send that is cancelled may have been stored, and would be repeated
                async with asyncio.timeout(DRAIN_S):
                    await self._handed_over.wait()
            await self._work.end()
            # Check points that were due, of messages that become visible a second later.
            now_ms = self._appender.now_ms()
            early_ms = now_ms + EARLY_MS + self._config.timer_precision_ms
            if self._config.timers_enabled:
                for _ in range(EARLY_STEPS):
                    if self._revival.step(early_ms) > early_ms:
                        break
                    await asyncio.sleep(0)
            is_complete = await self.escape.drain(DRAIN_S)
            await self._sending.end()
            if not is_complete and master_address is not None:
                is_complete = await self.escape.give_back(master_address)
            if is_complete:
                self._delays.note_all()
                save_timers = self._timers.close
            else:
                log.warning("messages not sent to another broker yet, the master delivers them: %r", self.escape)
                self._delays.note(now_ms)
                save_timers = None
            self._appender.escape = None
            self.is_acting = False
            try:
                await self._delays.table_file.save()
                if save_timers is not None:
                    await asyncio.to_thread(save_timers)
                await self._offsets.table_file.save()
            except StorageError as error:
                log.warning("progress not saved reason=%s", error)
            log.warning("acting as master ends broker=%s id=%d", self._identity.name, self._identity.broker_id)
