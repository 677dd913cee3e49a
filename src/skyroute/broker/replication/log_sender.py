"""The master's side of replication in controller mode: sends the log to slaves, and counts what they have."""

import asyncio
import logging
import os
from collections.abc import Callable
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
"""Connections to the replication port at the same time; more are closed."""
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
        self.position: int | None = None
        """The next byte of the log to send; None before the first acknowledgement."""
        self.heard_at = now
        self.sent_at = now

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
        self.heard_at = self._sender.now()
        try:
            for found in self._stream.feed(data):
                if isinstance(found, SlaveHello):
                    self._transport.write(self._sender.accept(self, found))
                else:
                    self._acknowledge(found)
        except ReplicationProtocolError as error:
            self.close(str(error))

    def _acknowledge(self, end: int) -> None:
        if self.follower is None:  # closing
            return
        log_end = self._sender.store.max_position
        if end > log_end:
            self.close(f"its log ends at {end}, behind the end of this log at {log_end}")
            return
        if self.position is None:
            self.position = self._first_position(end)
            if self.position >= log_end:
                self.beat()  # has the epoch, which the slave would learn with the next record only
        self._sender.note_ack(self.follower, end)
        self.send_more()

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
        self._connections: set[SlaveConnection] = set()
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
        self._connections.add(connection)
        if self.may_replicate is not None and not self.may_replicate(connection.host):
            connection.close("refused by access control; list its address in brokerSourceAddresses")
        elif self.state is None:
            connection.close("this broker is not master")
        elif len(self._connections) > SLAVES_MAX:
            connection.close(f"{SLAVES_MAX} connections are open")

    def log_close(self, connection: SlaveConnection, reason: str) -> None:
        """Log a closed connection. An address that no slave uses is logged less and less often."""
        suppressed = self._close_log.suppressed(connection.host, self.now())
        if connection.follower is not None or suppressed is not None:
            log.warning(
                "replication connection closed slave=%s suppressed=%d reason=%s",
                *(connection.address, suppressed or 0, reason),
            )

    def accept(self, connection: SlaveConnection, hello: SlaveHello) -> bytes:
        """Return the response to a slave's handshake. A slave that connects again replaces its old connection.

        Raises:
            ReplicationProtocolError: it cannot be a slave of this broker.
        """
        state = self.state
        if state is None or hello.broker_id == state.own_id:
            raise ReplicationProtocolError(f"a slave has the id {hello.broker_id}, which is this broker's")
        for other in self._connections:
            if other is not connection and other.follower is not None and other.follower.broker_id == hello.broker_id:
                other.close("the slave has connected again")
                other.follower = None
        connection.follower = Follower(hello.broker_id, is_learner=hello.is_learner, caught_up_at=self.now())
        state.followers[hello.broker_id] = connection.follower
        log.info("slave connected slave=%s id=%d learner=%s", connection.address, hello.broker_id, hello.is_learner)
        return encode_master_hello(MasterHello(self.store.max_position, self.epochs.entries))

    def remove(self, connection: SlaveConnection, reason: str) -> None:
        """Forget a closed connection."""
        self._connections.discard(connection)
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
            if now - connection.heard_at > self._config.ha_silence_s:
                connection.close(f"nothing received for {now - connection.heard_at:.0f} s")
            elif connection.follower is None and now - connection.heard_at > HELLO_S:
                connection.close(f"no handshake in {HELLO_S:.0f} s")
            elif now - connection.sent_at > self._config.ha_heartbeat_s - 1.0:
                connection.beat()

    def slaves(self) -> list[tuple[str, Follower, int]]:
        """Return address, progress and next position of each connected slave."""
        return [
            (each.address, each.follower, each.position or 0) for each in self._connections if each.follower is not None
        ]
