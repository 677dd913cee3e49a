"""The slave's side of classic replication: appends the master's log to its own, byte for byte.

Before it follows, a slave compares its log with the master's: a slave that is ahead, or has another history, refuses
and changes nothing. The protocol itself would let such logs grow together silently.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from enum import Enum
from typing import Final

from skyroute.broker.config import BrokerConfig
from skyroute.broker.replication.byte_rate import ByteRate
from skyroute.broker.replication.master_line import HistoryError, MasterLine
from skyroute.broker.store.errors import ForeignLogError
from skyroute.broker.store.message_store import MessageStore
from skyroute.clock import Clock
from skyroute.errors import SkyrouteError
from skyroute.remoting.address import split_address
from skyroute.remoting.client import Channel, connect
from skyroute.remoting.signing import Signer
from skyroute.wire.calls.query import encode_view
from skyroute.wire.calls.settings import (
    decode_broker_state,
    decode_settings,
    encode_broker_settings_query,
    encode_broker_state_query,
)
from skyroute.wire.codes import ResponseCode

log = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.2
RETRY_S: Final = 5.0
"""Time before the next connection: after one that was lost, and the longest, as with Apache's slaves."""
REPORT_S: Final = 5.0
"""Longest time between two reports."""
CONNECT_S: Final = 3.0


class HaState(Enum):
    """State of a slave's connection, under the names of Apache's tools."""

    READY = "READY"
    TRANSFER = "TRANSFER"
    SHUTDOWN = "SHUTDOWN"


class HaSlave:
    """Follows a master. `on_arrived` gets the queues with new messages."""

    def __init__(
        self,
        store: MessageStore,
        config: BrokerConfig,
        clock: Clock,
        *,
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
        on_arrived: Callable[[dict[tuple[str, int], None]], None],
    ) -> None:
        self.store = store
        self._config = config
        self._clock = clock
        self._tls = tls
        self._signer = signer
        self._on_arrived = on_arrived
        self.ha_address = config.ha_master_address or None
        self.master_address: str | None = None
        """`host:port` of the master for requests."""
        self._known = asyncio.Event()
        self._line: MasterLine | None = None
        self.reported_at_ms = 0
        """When this slave last reported."""
        self.state = HaState.READY
        self._read_at = 0.0
        self.read_at_ms = 0
        """When the last bytes came."""
        self.master_end = 0
        """End of the master's log, as far as this slave knows it."""
        self.refusal: str | None = None
        """Why this slave does not follow; None if it does or tries to."""
        self._rate = ByteRate(clock.monotonic())

    def __repr__(self) -> str:
        return f"<HaSlave of={self.ha_address} {self.state.value} end={self.store.max_position}>"

    @property
    def is_connected(self) -> bool:
        """Whether the master sends."""
        return self.state is HaState.TRANSFER

    @property
    def bytes_per_s(self) -> int:
        """Bytes from the master in the last whole second."""
        self._rate.in_second(self._clock.monotonic())
        return self._rate.per_s

    @property
    def behind_bytes(self) -> int:
        """How far this log is behind the master's, as far as this slave knows it."""
        return max(self.master_end - self.store.max_position, 0)

    def set_master(self, address: str | None, ha_address: str | None) -> None:
        """Note the addresses of the master; None if it is away."""
        if address and address != self.master_address:
            log.info("master found address=%s ha_address=%s", address, ha_address)
        self.master_address = address or self.master_address
        if ha_address and not self._config.ha_master_address:
            self.ha_address = ha_address
        if self.ha_address:
            self._known.set()

    async def run(self) -> None:
        """Follow the master, until cancelled. A lost connection is opened again."""
        if self.ha_address:
            self._known.set()
        try:
            await self._follow_for_ever()
        finally:
            if self._line is not None:
                self._line.cancel_dispatch()

    async def _follow_for_ever(self) -> None:
        said, pause_s = "", RETRY_S
        while True:
            await self._known.wait()
            self._line = None
            try:
                await self._follow(self.ha_address or "")
                reason = "the master closed the connection"
            except (HistoryError, ForeignLogError) as error:
                reason = self.refusal = str(error)
            except (SkyrouteError, OSError, ValueError) as error:  # a master may send any number, or text for one
                reason = str(error) or type(error).__name__
            self.state = HaState.READY
            if reason != said:  # the same reason may repeat for days
                log.warning(
                    "slave does not follow master=%s end=%d reason=%s",
                    *(self.ha_address, self.store.max_position, reason),
                )
                said = reason
            pause_s = RETRY_FIRST_S if self._was_lost else 2 * pause_s
            pause_s = min(pause_s, RETRY_S)
            await asyncio.sleep(pause_s)

    @property
    def _was_lost(self) -> bool:
        """Whether the last connection ended although this slave could have followed it further."""
        return self._line is not None and self._line.was_lost

    # The comparison

    async def _compare(self) -> None:
        """Check that this log is a beginning of the master's.

        Raises:
            HistoryError: it is not.
            SkyrouteError: the master could not be asked.
        """
        if self.master_address is None:
            return
        channel = await connect(self.master_address, tls=self._tls, timeout_s=CONNECT_S, signer=self._signer)
        try:
            await self._compare_files(channel)
            await self._compare_logs(channel)
        finally:
            channel.close()

    async def _compare_files(self, channel: Channel) -> None:
        response = await channel.call(encode_broker_settings_query(), CONNECT_S)
        if response.code != ResponseCode.SUCCESS:
            return  # access control may hide the settings
        theirs = decode_settings(response.body).get("mappedFileSizeCommitLog")
        if theirs and theirs != str(self._config.commit_log_file_bytes):
            raise HistoryError(
                f"the master has mappedFileSizeCommitLog={theirs}, and this slave "
                f"{self._config.commit_log_file_bytes}: set the same value"
            )

    async def _compare_logs(self, channel: Channel) -> None:
        store, end = self.store, self.store.max_position
        response = await channel.call(encode_broker_state_query(), CONNECT_S)
        if response.code == ResponseCode.SUCCESS:
            state = decode_broker_state(response.body)
            low, high = int(state.get("commitLogMinOffset", 0)), int(state.get("commitLogMaxOffset", end))
            self.master_end = max(high, 0)
            if end == store.min_position:
                return
            if end > high:
                raise HistoryError(
                    f"this slave's log ends at {end}, behind the master's, which ends at {high}: nothing was changed; "
                    "make this broker the master, or empty its store"
                )
            if end < low:
                raise HistoryError(
                    f"this slave's log ends at {end}, and the master's begins at {low}: empty the store of this slave"
                )
        newest = store.newest_record()
        if newest is None:
            return
        position, record = newest
        response = await channel.call(encode_view("", position), CONNECT_S)
        if response.code == ResponseCode.SUCCESS and response.body != record:
            raise HistoryError(
                f"the record at {position} differs from the master's: this slave has another history; "
                "nothing was changed; empty its store to follow this master"
            )

    # The connection

    async def _follow(self, address: str) -> None:
        """Connect and follow, until the connection ends."""
        await self._compare()
        self.refusal = None
        host, port = split_address(address)
        line = self._line = MasterLine(self)
        try:
            async with asyncio.timeout(CONNECT_S):
                await asyncio.get_running_loop().create_connection(lambda: line, host, port)
            self.state = HaState.TRANSFER
            log.info("slave follows master=%s from=%d", address, self.store.max_position)
            self._read_at = self._clock.monotonic()
            while not line.ended.is_set():
                await self._wait_and_report(line)
            if line.failure is not None:
                raise line.failure
        finally:
            self.state = HaState.READY
            line.close()

    async def _wait_and_report(self, line: MasterLine) -> None:
        try:
            async with asyncio.timeout(REPORT_S):
                await line.ended.wait()
        except TimeoutError:
            if self._clock.monotonic() - self._read_at > self._config.ha_silence_s:
                raise TimeoutError(f"no byte from the master for {self._config.ha_silence_s:g} s") from None
            line.report()

    # What the connection calls

    def note_read(self, size: int) -> None:
        """Note that bytes came from the master."""
        self._read_at = self._clock.monotonic()
        self.read_at_ms = int(self._clock.wall() * 1000)
        self._rate.add(size, self._read_at)

    def note_master_end(self, position: int) -> None:
        """Note that the master's log ends here or later."""
        self.master_end = max(self.master_end, position)

    def note_report(self) -> int:
        """Return the end of this log for a report that is about to be sent."""
        self.reported_at_ms = int(self._clock.wall() * 1000)
        return 0 if self.store.max_position == self.store.min_position else self.store.max_position

    def dispatch(self) -> bool:
        """Make some whole records visible, for a few milliseconds; return whether to call again."""
        arrived, has_more = self.store.dispatch_raw()
        if arrived:
            self._on_arrived(arrived)
        return has_more
