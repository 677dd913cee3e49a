"""The slave's side of replication in controller mode: cuts what differs from the master's log, and follows it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from skyroute.broker.config import BrokerConfig
from skyroute.broker.replication.epoch_file import EpochFile
from skyroute.broker.replication.epochs import Epochs, common_end
from skyroute.broker.store.errors import ForeignLogError
from skyroute.broker.store.message_store import MessageStore
from skyroute.clock import Clock
from skyroute.errors import SkyrouteError
from skyroute.remoting.address import split_address
from skyroute.wire.auto_switch import (
    FrameHeader,
    MasterHello,
    MasterStream,
    SlaveHello,
    encode_ack,
    encode_slave_hello,
)

log = logging.getLogger(__name__)

READ_BYTES: Final = 1024 * 1024
UNREAD_BYTES_MAX: Final = 64 * 1024
"""Acknowledgements that the master has not read, above which no more are sent."""
CONNECT_S: Final = 3.0
RETRY_S: Final = 0.2
RETRY_MAX_S: Final = 5.0
"""Pause after a failed connection; doubled after each, up to the longest."""


class LogFollower:
    """Follows the log of a master, until cancelled. It is the only writer of the store meanwhile."""

    def __init__(
        self,
        store: MessageStore,
        epoch_file: EpochFile,
        config: BrokerConfig,
        clock: Clock,
        hello: SlaveHello,
        *,
        find_address: Callable[[], Awaitable[str]],
        read_record: Callable[[int], Awaitable[bytes | None]],
        on_arrived: Callable[[dict[tuple[str, int], None]], None],
        on_confirmed: Callable[[int], None],
        on_failed: Callable[[], None],
    ) -> None:
        self._store = store
        self._epoch_file = epoch_file
        self._config = config
        self._clock = clock
        self._hello = hello
        self._find_address = find_address
        self._read_record = read_record
        self._on_arrived = on_arrived
        self._on_confirmed = on_confirmed
        self._on_failed = on_failed
        self.confirmed = 0
        """Position up to which all members of the sync state set have the log, as far as this log has it."""
        self.master = ""
        """Address of the master's replication port, while connected."""
        self.failure = ""
        """Why the last connection ended."""

    def __repr__(self) -> str:
        return f"<LogFollower id={self._hello.broker_id} master={self.master or 'none'}>"

    async def run(self) -> None:
        """Connect to the master and follow it; connect again after a failure."""
        pause_s = RETRY_S
        while True:
            try:
                await self._follow()
            except (SkyrouteError, OSError) as error:
                reason = str(error) or type(error).__name__
            else:
                reason = "the connection ended"
            level = logging.DEBUG if reason == self.failure else logging.WARNING
            log.log(level, "replication interrupted master=%s reason=%s", self.master or "unknown", reason)
            pause_s = RETRY_S if self.master else min(2 * pause_s, RETRY_MAX_S)
            self.failure, self.master = reason, ""
            self._on_failed()
            await asyncio.sleep(pause_s)

    async def _follow(self) -> None:
        """Follow until the connection ends.

        Raises:
            OSError, SkyrouteError: always; its text says why.
        """
        address = await self._find_address()
        host, port = split_address(address)
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(encode_slave_hello(self._hello))
            await self._receive(reader, writer, address)
        finally:
            writer.transport.abort()

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        stream, heard_at, now = MasterStream(), self._clock.monotonic(), self._clock.monotonic
        has_agreed = False
        while True:
            try:
                async with asyncio.timeout(self._config.ha_heartbeat_s):
                    data = await reader.read(READ_BYTES)
            except TimeoutError:
                if now() - heard_at > self._config.ha_silence_s:
                    raise ConnectionError(f"the master sent nothing for {now() - heard_at:.0f} s") from None
            else:
                if not data:
                    raise ConnectionError("the master closed the connection")
                heard_at = now()
                for found in stream.feed(data):
                    if isinstance(found, MasterHello):
                        self._agree(found)
                        await self._compare()
                        has_agreed, self.master = True, address
                        log.info("following master=%s position=%d", address, self._store.max_position)
                    else:
                        self._take(*found)
            if has_agreed:
                if writer.transport.get_write_buffer_size() < UNREAD_BYTES_MAX:
                    writer.write(encode_ack(self._store.max_position))
                await self._dispatch()
                self._on_confirmed(self.confirmed)

    def _agree(self, master: MasterHello) -> None:
        """Cut the log where it differs from the master's.

        Raises:
            ForeignLogError: it cannot be cut there; nothing is changed.
        """
        store, own = self._store, self._epoch_file.epochs
        size = store.max_position - store.min_position
        if not size:  # it can follow any master, also if it was one and got no messages
            self._epoch_file.replace(Epochs())
            return
        if not own:
            raise ForeignLogError(
                f"this log has {size} bytes and no epochs, so nothing shows that they are the master's: "
                "empty the store folder to replicate everything"
            )
        end = common_end(own, store.max_position, Epochs(master.epochs), master.log_end)
        if end is None:
            raise ForeignLogError(
                f"this log and the master's have no common epoch (own {own.entries[-3:]}, master's "
                f"{master.epochs[-3:]}): empty the store folder to replicate everything"
            )
        if end < store.max_position and end == master.log_end and master.epochs[-1].number == own.last_number:
            raise ForeignLogError(
                f"the master's log ends at {end}, this one at {store.max_position}, both in epoch {own.last_number}: "
                "the master has lost records, nothing was changed; elect this broker (electMaster), or empty its store"
            )
        self._drop_unknown_epochs(end, master)
        self._cut(min(end, store.whole_end))  # only here: the master has what is cut, and sends it again

    async def _compare(self) -> None:
        """Compare the newest record with the master's: a master that lost records in an epoch may have written others.

        Raises:
            ForeignLogError: they differ; nothing is changed.
        """
        newest, end = self._store.newest_record(), self._store.max_position
        if newest is None:
            return
        position, record = newest
        theirs = await self._read_record(position)
        is_kept = end % self._config.commit_log_file_bytes > 0  # else the master may have removed the record's file
        if theirs is not None and theirs != record and (theirs or is_kept):
            raise ForeignLogError(
                f"the record at {position} differs from the master's: this log has another history, nothing was "
                "changed; elect this broker (electMaster), or empty its store"
            )

    def _drop_unknown_epochs(self, end: int, master: MasterHello) -> None:
        """Drop epochs behind the common records that the master does not have: their numbers could keep others out."""
        own = self._epoch_file.epochs
        kept = Epochs(tuple(each for each in own if each.start < end or each in master.epochs))
        if kept != own:
            self._epoch_file.replace(kept)

    def _cut(self, end: int) -> None:
        store = self._store
        if end < store.max_position:
            log.warning("log cut at the last common record position=%d bytes=%d", end, store.max_position - end)
            store.truncate_to(end, int(self._clock.wall() * 1000))
            self._epoch_file.replace(self._epoch_file.epochs.cut(end))

    def _take(self, header: FrameHeader, data: bytes) -> None:
        """Append a part of the master's log.

        Raises:
            ForeignLogError: it does not continue this log.
        """
        store, epochs = self._store, self._epoch_file.epochs
        if header.position != store.max_position and store.max_position > store.min_position:
            raise ForeignLogError(
                f"the master sends {len(data)} bytes at {header.position}, and this log ends at {store.max_position}: "
                "nothing was changed"
            )
        if header.epoch.number > epochs.last_number and header.epoch.start <= header.position:
            self._epoch_file.replace(epochs.follow(header.epoch))
        if data:
            store.append_raw(header.position, data)
        self.confirmed = min(header.confirmed, store.max_position)

    async def _dispatch(self) -> None:
        has_more = True
        while has_more:
            arrived, has_more = self._store.dispatch_raw()
            if arrived:
                self._on_arrived(arrived)
            if has_more:
                await asyncio.sleep(0)
