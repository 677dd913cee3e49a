"""The master's side of replication in controller mode: sends the log to slaves, and counts what they have.

Slaves prove nothing: a connection takes the place of a slave once it acknowledges, and what it claims to have counts
as far as this master can have sent it.
"""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, cast

from skyroute.broker.config import BrokerConfig
from skyroute.broker.replication.epoch_file import EpochFile
from skyroute.broker.replication.epochs import Epochs
from skyroute.broker.replication.sync_state import Follower, SyncState
from skyroute.broker.store.message_store import MessageStore
from skyroute.clock import Clock
from skyroute.files.errors import StorageError
from skyroute.remoting.errors import BindError
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.wire.auto_switch import (
    BODY_BYTES_MAX,
    Epoch,
    FrameHeader,
    MasterHello,
    ReplicationProtocolError,
    SlaveHello,
    SlaveStream,
    encode_frame_header,
    encode_master_hello,
)

log = logging.getLogger(__name__)

SLAVES_MAX: Final = 100
"""Connections that have acknowledged. A host that has most of them gives places to other hosts."""
STRANGERS_MAX: Final = 64
"""Connections that have not acknowledged. One more takes the place of the oldest of the host that has most."""
HOSTS_MAX: Final = 1_000
"""Hosts for which a master remembers how much of the log it has sent to them."""
TURN_BYTES: Final = 1024 * 1024
"""Bytes of the log that one slave gets per turn of the loop."""
UNSENT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes that wait for a slow slave before the log is no longer read for it."""
HELLO_S: Final = 10.0
"""A connection without a handshake is closed after this time."""


class SlaveConnection(asyncio.Protocol):
    """One slave: its handshake, its acknowledgements, and the log from its end on."""

    def __init__(self, sender: "LogSender", now: float) -> None:
        self._sender = sender
        self._stream = SlaveStream()
        self._transport = cast("asyncio.Transport", None)  # asyncio sets it before anything else is called
        self._is_paused = False
        self._is_scheduled = False
        self.host = self.address = "unknown"
        self.follower: Follower | None = None
        """Set by the handshake."""
        self.position: int | None = None
        """The next byte of the log to send; None before the first acknowledgement."""
        self._claimed = self._proven = 0
        """The end of the log in the first acknowledgement, and how much of all that is acknowledged was sent."""
        self._unread_bytes = 0
        """Unsent bytes when the slave last read some."""
        self.opened_at = self.heard_at = self.sent_at = self._read_at = now

    def __repr__(self) -> str:
        return f"<SlaveConnection {self.address} {self.follower}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        peer = transport.get_extra_info("peername")
        if peer:
            self.host, self.address = str(peer[0]), f"{peer[0]}:{peer[1]}"
        self._sender.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sender.remove(self, str(exc or "closed by the slave"))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.send_more()

    def data_received(self, data: bytes) -> None:
        end: int | None = None
        try:
            for found in self._stream.feed(data):
                self.heard_at = self._sender.now()
                if isinstance(found, SlaveHello):
                    self._transport.write(self._sender.accept(self, found))
                else:
                    end = found  # the newest counts
        except ReplicationProtocolError as error:
            self.close(str(error))
        if end is not None:
            self._acknowledge(end)

    def _acknowledge(self, end: int) -> None:
        if self.follower is None or self._transport.is_closing():
            return
        log_end = self._sender.store.max_position
        if self.position is None:
            if end > log_end:
                self.close(f"its log ends at {end}, behind the end of this log at {log_end}")
                return
            self._claimed, self._proven = end, min(end, self._sender.sent_to(self.host))
            if not self._sender.follow(self, self.follower):
                return
            self.position = self._first_position(end)
            if self.position >= log_end:
                self.beat()  # has the epoch, which the slave would learn with the next record only
        elif end > max(self.position, self._claimed):
            self.close(f"the slave reports {end}, and only {self.position} was sent to it")
            return
        elif end > self._claimed:
            self._proven = max(self._proven, min(end, self.sent_end))
        self._sender.note_ack(self.follower, min(end, self._proven))
        self.send_more()

    @property
    def sent_end(self) -> int:
        """The position up to which the system has taken the log, or a little less."""
        return 0 if self.position is None else self.position - self._transport.get_write_buffer_size()

    def _first_position(self, end: int) -> int:
        store = self._sender.store
        if end:
            return end
        hello = self._stream.hello
        if hello is not None and hello.from_last_file:
            size = store.settings.log_segment_bytes
            return max(store.max_position - store.max_position % size, store.min_position)
        return store.min_position

    def send_more(self) -> None:
        """Send what the slave does not have, for one turn of the loop."""
        self._is_scheduled = False
        budget = TURN_BYTES
        try:
            while budget > 0 and not self._is_paused and not self._transport.is_closing():
                sent = self._send_part()
                if not sent:
                    return
                budget -= sent
        except StorageError as error:
            self.close(str(error))
            return
        if budget <= 0 and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.send_more)

    def _send_part(self) -> int:
        """Send one frame; return its size, 0 if the slave has everything."""
        sender, position = self._sender, self.position
        if position is None or self.follower is None or position >= sender.store.max_position:
            return 0
        found = sender.store.log_range(position, sender.frame_bytes)
        epoch = sender.epochs.at(position)
        if found is None or epoch is None:
            self.close(f"this log has no record at {position} any more: empty the slave's store")
            return 0
        descriptor, offset, size = found
        if epoch[1] is not None:
            size = min(size, epoch[1] - position)
        data = os.pread(descriptor, size, offset)
        if len(data) != size:
            self.close(f"the log has {len(data)} bytes at {position} (expected {size})")
            return 0
        self._write_frame(position, data, epoch[0])
        self.position = position + size
        self.follower.sent_at, self.follower.sent_end = self.sent_at, sender.store.max_position
        return size

    def beat(self) -> None:
        """Send a heartbeat, which also has the confirmed position."""
        epoch = None if self.position is None else self._sender.epochs.at(self.position)
        if self.position is not None and epoch is not None:  # a later epoch would stand for records it does not have
            self._write_frame(self.position, b"", epoch[0])

    def _write_frame(self, position: int, data: bytes, epoch: Epoch) -> None:
        header = FrameHeader(position, len(data), epoch, self._sender.confirmed)
        self._transport.write(encode_frame_header(header) + data)
        self.sent_at = self._sender.now()

    def check(self, now: float, silence_s: float, heartbeat_s: float) -> None:
        """Close a silent connection; send a heartbeat if nothing was sent for a while."""
        unread = self._transport.get_write_buffer_size()
        if unread < self._unread_bytes or not self._is_paused:
            self._read_at = now
        self._unread_bytes = unread
        if self.follower is None and now - self.opened_at > HELLO_S:
            self.close(f"no handshake in {HELLO_S:.0f} s")
        elif now - (self.heard_at if self.position is not None else self.opened_at) > silence_s:
            self.close(f"nothing received for {silence_s:g} s")
        elif now - self._read_at > silence_s:
            self.close(f"the slave has read nothing for {silence_s:g} s")
        elif now - self.sent_at > heartbeat_s and not self._is_paused:
            self.beat()

    def close(self, reason: str) -> None:
        """Close the connection, with a log line."""
        if not self._transport.is_closing():
            self._sender.log_close(self, reason)
        self._transport.abort()


class LogSender:
    """The replication port of a broker in controller mode. It accepts slaves while this broker is master.

    `on_progress` is called when a slave has acknowledged or was lost.
    """

    def __init__(
        self,
        store: MessageStore,
        epoch_file: EpochFile,
        config: BrokerConfig,
        clock: Clock,
        on_progress: Callable[[], None],
    ) -> None:
        self.store = store
        self._epoch_file = epoch_file
        self._config = config
        self._clock = clock
        self._on_progress = on_progress
        self._server: asyncio.Server | None = None
        self._connections: dict[SlaveConnection, None] = {}
        """The oldest first."""
        self._log_end_at_lead = 0
        """Up to here, slaves may have the log from an earlier master."""
        self._sent_to: dict[str, int] = {}
        """Position up to which slaves on a host got the log on connections that are closed."""
        self._is_woken = False
        self._close_log = LogBackoff()
        self.state: SyncState | None = None
        """Set while this broker is master."""
        self.may_replicate: Callable[[str], bool] | None = None
        """Whether access control lets an IP address replicate; None: all may."""
        self.port = 0

    def __repr__(self) -> str:
        return f"<LogSender port={self.port} slaves={len(self._connections)}>"

    @property
    def epochs(self) -> Epochs:
        return self._epoch_file.epochs

    @property
    def confirmed(self) -> int:
        """Position up to which all members of the sync state set have the log."""
        return 0 if self.state is None else self.state.confirm(self.store.max_position)

    @property
    def frame_bytes(self) -> int:
        return min(self._config.ha_transfer_bytes, BODY_BYTES_MAX - 64)

    def now(self) -> float:
        """Return the monotonic time."""
        return self._clock.monotonic()

    async def listen(self, host: str, port: int) -> None:
        """Open the port.

        Raises:
            BindError: the port cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: SlaveConnection(self, self.now()), host, port)
        except OSError as error:
            raise BindError(f"cannot open the replication port {host}:{port}: {error.strerror}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    def lead(self, state: SyncState) -> None:
        """Accept slaves, as the master of a new epoch."""
        self._drop_all("a new epoch begins")
        self._log_end_at_lead = self.store.max_position
        self._sent_to.clear()
        self.state = state

    def resign(self) -> None:
        """Close the connections of all slaves, and accept no more."""
        self.state = None
        self._drop_all("this broker is no longer master")

    def _drop_all(self, reason: str) -> None:
        for connection in list(self._connections):
            connection.close(reason)

    async def stop(self) -> None:
        """Close the port and all connections."""
        self.state = None
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.close("the broker stops")
        await asyncio.sleep(0)

    # Connections

    def add(self, connection: SlaveConnection) -> None:
        """Note a new connection, or close it."""
        self._connections[connection] = None
        if self.may_replicate is not None and not self.may_replicate(connection.host):
            connection.close("refused by access control; list its address in brokerSourceAddresses")
        elif self.state is None:
            connection.close("this broker is not master")
        else:
            strangers = [each for each in self._connections if each.position is None]
            if len(strangers) > STRANGERS_MAX:
                host, _ = _crowded_host(strangers)
                oldest = next(each for each in strangers if each.host == host)
                oldest.close(f"{STRANGERS_MAX} connections have not acknowledged, and this is the oldest of its host")

    def log_close(self, connection: SlaveConnection, reason: str) -> None:
        """Log a closed connection. An address that no slave uses is logged less and less often."""
        suppressed = self._close_log.suppressed(connection.host, self.now())
        if connection.position is not None or suppressed is not None:
            log.warning(
                "replication connection closed slave=%s suppressed=%d reason=%s",
                *(connection.address, suppressed or 0, reason),
            )

    def accept(self, connection: SlaveConnection, hello: SlaveHello) -> bytes:
        """Return the response to a slave's handshake.

        Raises:
            ReplicationProtocolError: it cannot be a slave of this broker.
        """
        state = self.state
        if state is None or hello.broker_id == state.own_id:
            raise ReplicationProtocolError(f"a slave has the id {hello.broker_id}, which is this broker's")
        connection.follower = Follower(hello.broker_id, is_learner=hello.is_learner, caught_up_at=self.now())
        return encode_master_hello(MasterHello(self.store.max_position, self.epochs.entries))

    def follow(self, connection: SlaveConnection, follower: Follower) -> bool:
        """Let a connection be a slave's, after its first acknowledgement; false if there is no room, and it is closed.

        It replaces the slave's old connection.
        """
        state = self.state
        if state is None:
            return False
        others = [each for each in self._connections if each.position is not None and each.follower is not None]
        for other in others:
            if other.follower is not None and other.follower.broker_id == follower.broker_id:
                other.close("the slave has connected again")
                other.follower = None
                others.remove(other)
                break
        if len(others) >= SLAVES_MAX:
            host, count = _crowded_host(others)
            if count <= sum(each.host == connection.host for each in others) + 1:
                connection.close(f"{len(others)} slaves are connected (expected at most {SLAVES_MAX})")
                return False
            silent = min((each for each in others if each.host == host), key=lambda each: each.heard_at)
            silent.close(f"its host has {count} of {SLAVES_MAX} places, and {connection.host} needs one")
        state.followers[follower.broker_id] = follower
        log.info(
            "slave connected slave=%s id=%d learner=%s", connection.address, follower.broker_id, follower.is_learner
        )
        return True

    def sent_to(self, host: str) -> int:
        """Return the position up to which a host may have the log."""
        open_ends = (each.sent_end for each in self._connections if each.host == host)
        return max(self._log_end_at_lead, self._sent_to.get(host, 0), *open_ends)

    def remove(self, connection: SlaveConnection, reason: str) -> None:
        """Forget a closed connection."""
        if connection.position is not None:
            self._sent_to[connection.host] = self.sent_to(connection.host)
            if len(self._sent_to) > HOSTS_MAX:
                del self._sent_to[next(iter(self._sent_to))]
        self._connections.pop(connection, None)
        follower, connection.follower = connection.follower, None
        state = self.state
        if follower is not None and state is not None and state.followers.get(follower.broker_id) is follower:
            del state.followers[follower.broker_id]
            log.info("slave lost slave=%s id=%d reason=%s", connection.address, follower.broker_id, reason)
            self._on_progress()

    def note_ack(self, follower: Follower, end: int) -> None:
        """Note the end of a slave's log."""
        if self.state is not None:
            self.state.note_ack(follower, end, self.store.max_position, self.now())
            self._on_progress()

    # Sending

    def wake(self) -> None:
        """Send new records at the end of this turn of the loop."""
        if self._connections and not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._send_all)

    def _send_all(self) -> None:
        self._is_woken = False
        for connection in list(self._connections):
            connection.send_more()

    def tick(self, now: float) -> None:
        """Send heartbeats, and close silent connections. Called every second."""
        for connection in list(self._connections):
            connection.check(now, self._config.ha_silence_s, self._config.ha_heartbeat_s - 1.0)

    def slaves(self) -> list[tuple[str, Follower, int]]:
        """Return address, progress and next position of each connected slave."""
        return [
            (each.address, each.follower, each.position)
            for each in self._connections
            if each.follower is not None and each.position is not None
        ]


def _crowded_host(connections: Collection[SlaveConnection]) -> tuple[str, int]:
    """Return the host that has most connections, and how many."""
    return Counter(each.host for each in connections).most_common(1)[0]
