"""The role of a broker in controller mode: what runs on masters only, and what sends wait for."""

import logging
import ssl
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

from skyroute.broker.appender import Appender
from skyroute.broker.cluster.registrar import Registrar
from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.flush_wait import Flushed
from skyroute.broker.delivery.long_polling import LongPolling
from skyroute.broker.delivery.replica_wait import ReplicaWait
from skyroute.broker.identity import Identity
from skyroute.broker.replication.acknowledgement import NOT_ENOUGH
from skyroute.broker.replication.controller_client import ControllerClient
from skyroute.broker.replication.controller_mode import ControllerMode
from skyroute.broker.replication.epoch_file import EpochFile, IdentityFiles
from skyroute.broker.replication.metadata_sync import MetadataSync
from skyroute.broker.store.errors import StoreClosedError
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.lost_topics import restore_topics
from skyroute.broker.tables.topics import Topics
from skyroute.clock import Clock
from skyroute.files.disk import Disk
from skyroute.remoting.address import join_address
from skyroute.remoting.background import Background
from skyroute.remoting.client import connect
from skyroute.remoting.errors import ConnectError, RefusedError
from skyroute.remoting.signing import Signer
from skyroute.wire.calls.query import encode_view
from skyroute.wire.calls.replication import decode_group_addresses, encode_group_addresses_query
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

MASTER_ID: Final = 0
"""The id under which every master registers with name servers."""
ALL_MEMBERS: Final = -1
"""In place of a number of slaves: all members of the sync state set."""
CALL_S: Final = 3.0


class Roles:
    """Changes the role of a broker, as its controller says."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: Identity,
        store: MessageStore,
        appender: Appender,
        *,
        topics: Topics,
        registrar: Registrar,
        metadata_sync: MetadataSync,
        load_progress: Callable[[], None],
        master_tasks: Callable[[], Iterable[Coroutine[Any, Any, None]]],
        long_polling: LongPolling,
        end_polls: Callable[[], None],
        on_arrived: Callable[[dict[tuple[str, int], None]], None],
        clock: Clock,
        tls: ssl.SSLContext | None,
        signer: Signer | None,
        disk: Disk | None,
    ) -> None:
        self._config = config
        self._identity = identity
        self._store = store
        self._appender = appender
        self._topics = topics
        self._registrar = registrar
        self._metadata_sync = metadata_sync
        self._load_progress = load_progress
        self._master_tasks = master_tasks
        self._long_polling = long_polling
        self._end_polls = end_polls
        self._tls = tls
        self._signer = signer
        self._tasks = Background()
        self._is_registered = False
        self.master_address: str | None = None
        """Address of the master while this broker is a slave."""
        self._serves_as_master = False
        self._waits = ReplicaWait(lambda: config.slave_timeout_s)
        self.mode = ControllerMode(
            config,
            identity,
            ControllerClient(config.controllers, tls=tls, signer=signer),
            store,
            EpochFile(config.epoch_file, disk),
            IdentityFiles(config.identity_file, disk),
            self,
            clock,
            on_arrived,
        )
        self.mode.on_acked = self._note_acks
        appender.refusal = StoreClosedError(f"{config.broker_name} is not the master of its group")
        appender.use_replicas(self.wait_for, check=self.check, are_needed=self.are_slaves_needed)
        appender.on_append = self.mode.sender.wake
        self._refusal = appender.refusal

    def __repr__(self) -> str:
        return f"<Roles {'master' if self._serves_as_master else 'not master'} {self.mode!r}>"

    @property
    def is_master(self) -> bool:
        """Whether this broker accepts messages."""
        return self._serves_as_master

    @property
    def log_address(self) -> str:
        """Address of the replication port, as other brokers reach it."""
        host = self._config.advertised_ha_host or self._identity.address.rpartition(":")[0].strip("[]")
        return join_address(host, self.mode.sender.port)

    async def listen(self, port: int) -> None:
        """Open the replication port."""
        await self.mode.sender.listen(self._config.bind_address, port)

    async def stop(self) -> None:
        """End all work of the role. `ControllerMode.run` has ended before."""
        await self.fence()
        await self.mode.stop()

    # What a change of role changes

    async def fence(self) -> None:
        """Accept no messages, and end the work of masters."""
        if self._serves_as_master:
            self._serves_as_master = False
            self._end_polls()  # consumers wait for messages that the next master gets
        self._appender.refusal = self._refusal
        self._waits.stop()
        await self._tasks.end()

    async def lead(self, epoch: int) -> None:
        """Serve as master of an epoch."""
        if not self._serves_as_master:
            await self._tasks.end()  # the table of topics is no longer the old master's
            restore_topics(self._topics, self._store)
            self._appender.refusal = None
            self._load_progress()
            for task in self._master_tasks():
                self._tasks.spawn(task)
            self._serves_as_master = True
        self.master_address = None
        await self._register(MASTER_ID, epoch)

    async def follow(self, broker_id: int, master_address: str, epoch: int) -> None:
        """Serve as slave of a master."""
        self.master_address = master_address
        await self._tasks.end()
        self._tasks.spawn(self._metadata_sync.run())
        await self._register(broker_id, epoch)

    async def _register(self, broker_id: int, epoch: int) -> None:
        self._topics.begin_epoch(epoch)
        own = self._registrar.own
        own.broker_id, own.ha_address = broker_id, self.log_address
        if self._is_registered:
            await self._registrar.register()
        else:
            self._is_registered = True
            await self._registrar.start()

    def confirm(self, position: int | None) -> None:
        """Let consumers read the log up to a position; None: all of it."""
        self._store.confirm(position)
        self._long_polling.wake_after_flush = position is not None or self._config.sync_flush
        self._long_polling.wake(is_complete=position is None or position >= self._store.max_position)

    async def find_log_port(self, master_address: str) -> str:
        """Return the address of a master's replication port.

        Raises:
            RemotingError, RefusedError: the master does not respond with it.
        """
        response = await self._ask(master_address, encode_group_addresses_query())
        if response.code != ResponseCode.SUCCESS:
            raise RefusedError(response.code, response.remark or "no remark")
        address = decode_group_addresses(response).master_ha_address
        if not address:
            raise ConnectError(f"{master_address} has no replication port")
        return address

    async def read_record(self, master_address: str, position: int) -> bytes | None:
        """Return the record at a position of a master's log, empty if there is none; None if it does not say.

        Raises:
            RemotingError: the master does not respond.
        """
        response = await self._ask(master_address, encode_view("", position))
        if response.code == ResponseCode.SUCCESS:
            return response.body
        return b"" if response.code == ResponseCode.SYSTEM_ERROR else None

    async def _ask(self, address: str, request: Request) -> Response:
        channel = await connect(address, tls=self._tls, timeout_s=CALL_S, signer=self._signer)
        try:
            return await channel.call(request, CALL_S)
        finally:
            channel.close()

    # What the appender asks

    def check(self) -> None:
        """Check that enough replicas are in sync for another message.

        Raises:
            RefusedError: fewer are than `minInSyncReplicas`.
        """
        least = self._config.min_in_sync_replicas
        if least <= 1 and self.mode.is_master:
            return
        in_sync = self.mode.in_sync_count
        if in_sync < least:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"{NOT_ENOUGH}: {in_sync} in sync (expected minInSyncReplicas={least})"
            )

    def are_slaves_needed(self) -> bool:
        """Return whether sends wait for slaves."""
        return self._config.all_ack_in_sync_set or self._config.in_sync_replicas > 1

    def wait_for(self, log_end: int, then: Callable[[Flushed], None]) -> None:
        """Call `then` once enough slaves have the log up to a position, or the timeout is over."""
        slaves = ALL_MEMBERS if self._config.all_ack_in_sync_set else self._slaves_needed()
        if self.mode.state is None:
            then(Flushed.NOT_REPLICATED)
        elif self._reached(slaves) >= log_end:
            then(Flushed.DONE)
        else:
            self._waits.wait_for(log_end, slaves, then)

    def _slaves_needed(self) -> int:
        config, replicas = self._config, self._config.in_sync_replicas
        if config.auto_in_sync_replicas and replicas > 1:
            replicas = max(min(replicas, self.mode.in_sync_count), config.min_in_sync_replicas)
        return replicas - 1

    def _note_acks(self) -> None:
        self._waits.advance(self._reached)

    def _reached(self, slaves: int) -> int:
        state = self.mode.state
        if state is None:
            return 0
        end = self._store.max_position
        return state.confirm(end) if slaves == ALL_MEMBERS else state.reached(slaves, end)
