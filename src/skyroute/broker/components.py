"""The components of a broker: which there are, how they start, and what is saved at the end."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from typing import Any

from skyroute.access.resources import Action
from skyroute.broker.acting.acting_master import ActingMaster
from skyroute.broker.acting.escape import EscapeWriter
from skyroute.broker.acting.returning_master import ReturningMaster
from skyroute.broker.appender import Appender
from skyroute.broker.clients.change_notifications import ChangeNotifications
from skyroute.broker.clients.client_expiry import SCAN_S, ClientExpiryScan
from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.clients.queue_locks import QueueLocks
from skyroute.broker.cluster.mapping_cleanup import MappingCleanup
from skyroute.broker.cluster.peer_brokers import PeerBrokers
from skyroute.broker.cluster.registrar import Registrar
from skyroute.broker.cluster.topic_propagation import TopicPropagation
from skyroute.broker.cluster.topic_routes import TopicRoutes
from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.flush_wait import Flushing
from skyroute.broker.delivery.long_polling import LongPolling
from skyroute.broker.handlers.access_checks import RequireTopic, SharedRetryTopics
from skyroute.broker.handlers.offsets import bytes_in_memory
from skyroute.broker.housekeeping import TABLES_S, Retention, every, save_all
from skyroute.broker.identity import Identity
from skyroute.broker.pop.acknowledging import Acknowledgements
from skyroute.broker.pop.in_flight import InFlight
from skyroute.broker.pop.long_polling import PopLongPolling
from skyroute.broker.pop.ordered_queues import OrderedQueues
from skyroute.broker.pop.pop_subscriptions import PopSubscriptions
from skyroute.broker.pop.popping import Popping
from skyroute.broker.pop.revival import Revival
from skyroute.broker.pop.revive_log import ReviveLog
from skyroute.broker.pop.taken_log import TakenLog
from skyroute.broker.pop.taken_messages import TakenMessages
from skyroute.broker.replication.acknowledgement import Acknowledgement
from skyroute.broker.replication.master import HaMaster
from skyroute.broker.replication.metadata_sync import MetadataSync
from skyroute.broker.replication.slave import HaSlave
from skyroute.broker.roles import Roles
from skyroute.broker.scheduling.delay_levels import DelayLevels
from skyroute.broker.scheduling.scheduled_delivery import Alarm
from skyroute.broker.scheduling.timer_check import TimerCheck
from skyroute.broker.scheduling.timers import Timers
from skyroute.broker.stats import Stats
from skyroute.broker.store.errors import StoreClosedError
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.tables.lost_topics import reconcile_topics, topics_with_queues
from skyroute.broker.tables.queue_mappings import QueueMappings
from skyroute.broker.tables.request_modes import RequestModes
from skyroute.broker.tables.table_file import TableFile
from skyroute.broker.tables.topics import Topics
from skyroute.broker.transactions import Transactions
from skyroute.clock import Clock
from skyroute.enforcement.enforcer import Enforcer
from skyroute.files.disk import Disk
from skyroute.files.errors import StorageError
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.dispatch import Peer
from skyroute.remoting.signing import Signer
from skyroute.remoting.stepwise import StepRunner
from skyroute.remoting.tls import client_context
from skyroute.wire.calls.assignment import POP_MODE
from skyroute.wire.calls.groups import PopProgress

log = logging.getLogger(__name__)


class Components:
    """The components of a running broker. Each owns its state."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: Identity,
        clock: Clock,
        close_connection: Callable[[int], None],
        disk: Disk | None = None,
        polling: BusyPolling | None = None,
        enforcer: Enforcer | None = None,
    ) -> None:
        # First, so that wrong TLS settings are found before the store is opened.
        tls = client_context(config.tls.client, test_mode=config.tls.test_mode) if config.tls.client.enabled else None
        folder = config.store_folder / "config"
        self.config = config
        self.identity = identity
        self.clock = clock
        self.enforcer = enforcer
        signer = config.signer()
        now_ms = self.now_ms
        polling = polling or BusyPolling()
        self.step_runner = StepRunner(polling, clock)
        """For responses that may take seconds."""
        self.prompt_runner = StepRunner(polling, clock)
        """For requests with short client timeouts: long batches, heartbeats, locks and acknowledgements."""
        self.topics = Topics(JsonFile(folder / "topics.json", disk), config, now_ms)
        self.groups = Groups(JsonFile(folder / "subscriptionGroup.json", disk), config, now_ms)
        self.offsets = ConsumerOffsets(JsonFile(folder / "consumerOffset.json", disk), now_ms)
        self.request_modes = RequestModes(JsonFile(folder / "messageRequestMode.json", disk))
        self.queue_mappings = QueueMappings(
            JsonFile(folder / "topicQueueMapping.json", disk), config.broker_name, now_ms
        )
        self.clients = ConnectedClients()
        self.locks = QueueLocks()
        self.notifications = ChangeNotifications(self.clients, self.groups, config)
        self.client_expiry = ClientExpiryScan(
            self.clients, self.locks, self.notifications, close_connection, config, clock
        )
        self.stats = Stats(clock)
        self.long_polling = LongPolling(clock.monotonic)
        self.topics.load()  # before the store, which may have to create batch queues again
        self._had_queues = topics_with_queues(config.store_folder)
        """Topics with queues before recovery, which may restore messages of deleted topics."""
        self.store = MessageStore.open(
            config.store_folder,
            config.store_settings(),
            now_ms=now_ms(),
            disk=disk,
            is_batch_topic=self.topics.is_batch_topic,
            follows=config.is_slave,
        )
        self.flushing = Flushing(
            self.store,
            interval_s=config.flush_interval_s,
            timeout_s=lambda: config.sync_flush_timeout_s,
            on_flushed=self._wake_pulls,
        )
        self.long_polling.wake_after_flush = config.sync_flush
        self.appender = Appender(
            self.store, long_polling=self.long_polling, flushing=self.flushing, stats=self.stats, now_ms=now_ms
        )
        delay_file, save_ms = JsonFile(folder / "delayOffset.json", disk), config.delay_save_interval_ms
        self.delays = DelayLevels(self.store, self.appender, delay_file, save_ms=save_ms)
        self.timers = Timers(
            self.store,
            self.appender,
            TimerCheck(folder / "timercheck", config.timer_precision_ms, disk),
            enabled=config.timers_enabled,
            delay_max_s=lambda: config.timer_delay_max_s,
            precision_ms=config.timer_precision_ms,
        )
        self.appender.use(self.delays, self.timers)
        self.registrar = Registrar(
            config.name_servers, identity, self.topics, config, clock, tls, signer, self.queue_mappings
        )
        self.peers = PeerBrokers(config.name_servers, clock.monotonic, tls, signer)
        self.topic_propagation = TopicPropagation(config.name_servers, identity, tls, signer)
        self.topic_routes = TopicRoutes(self.peers, clock.monotonic)
        self.mapping_cleanup = MappingCleanup(
            self.queue_mappings, self.store, self.peers, self.topic_routes, config.broker_name
        )
        self.transactions = Transactions(
            self.store,
            self.appender,
            offsets=self.offsets,
            topics=self.topics,
            clients=self.clients,
            config=config,
            identity=identity,
            announce=self.registrar.announce,
            may_send=self._may_send if self.require is not None else None,
        )
        self.retention = Retention(self.store, config, clock)
        self._offsets_file = folder / "consumerOffset.json"
        self.taken_log = TakenLog(folder, disk or Disk())
        self._use_pop(JsonFile(folder / "consumerOrderInfo.json", disk))
        self._use_replicas(tls, signer, disk)

    def _use_replicas(self, tls: ssl.SSLContext | None, signer: Signer | None, disk: Disk | None) -> None:
        config, clock = self.config, self.clock
        self.log_end_at_start = self.store.max_position
        self.ha_master = HaMaster(self.store, config, clock, self._may_replicate)
        self.ha_master.on_lines_change = self._send_new_messages
        self.acknowledgement = Acknowledgement(self.ha_master, config)
        self.ha_slave: HaSlave | None = None
        self.metadata_sync: MetadataSync | None = None
        self.acting: ActingMaster | None = None
        """On a slave with `enableSlaveActingMaster`."""
        self.roles: Roles | None = None
        """The role that a controller gives; None outside controller mode."""
        if config.is_sync_master:
            acknowledgement = self.acknowledgement
            self.appender.use_replicas(
                acknowledgement.wait_for, check=acknowledgement.check, are_needed=acknowledgement.is_needed
            )
        if config.is_slave:
            self._follow(tls, signer)
        if config.controller_mode_enabled:
            self.roles = self._controlled(tls, signer, disk)
            self.roles.mode.sender.may_replicate = self._may_replicate

    def _wake_pulls(self) -> None:
        # A message that was stored during a flush is visible after the next one only.
        self.long_polling.wake(is_complete=self.store.flushed_position >= self.store.max_position)

    def _controlled(self, tls: ssl.SSLContext | None, signer: Signer | None, disk: Disk | None) -> Roles:
        self.metadata_sync = self._metadata_sync(lambda: roles.master_address, tls, signer)
        roles = Roles(
            *(self.config, self.identity, self.store, self.appender),
            topics=self.topics,
            registrar=self.registrar,
            metadata_sync=self.metadata_sync,
            load_progress=self._load_progress,
            master_tasks=self._master_tasks,
            long_polling=self.long_polling,
            end_polls=self._end_polls,
            on_arrived=self._on_arrived,
            clock=self.clock,
            tls=tls,
            signer=signer,
            disk=disk,
        )
        return roles

    def _end_polls(self) -> None:
        self.long_polling.end_all()
        self.pop_polling.end_all()

    def _use_pop(self, order_file: JsonFile) -> None:
        now_ms, alarm = self.now_ms, Alarm()
        self.in_flight = InFlight()
        self.pop_polling = PopLongPolling(self.clock.monotonic, self.long_polling)
        self.pop_subscriptions = PopSubscriptions()
        self.ordered_queues = OrderedQueues(order_file, self.pop_polling.wake_topic)
        self.revive_log = ReviveLog(
            *(self.store, self.appender, self.timers, self.offsets, self.in_flight, self.taken_log, self.identity)
        )
        self.acknowledgements = Acknowledgements(
            offsets=self.offsets,
            in_flight=self.in_flight,
            revive_log=self.revive_log,
            taken_log=self.taken_log,
            ordered=self.ordered_queues,
            now_ms=now_ms,
            wake_revival=alarm.set,
        )
        self.taken_messages = TakenMessages(self.taken_log, self.store, self.offsets, self.in_flight)
        self.popping = Popping(
            self.store,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            in_flight=self.in_flight,
            revive_log=self.revive_log,
            taken=self.taken_messages,
            acknowledgements=self.acknowledgements,
            ordered=self.ordered_queues,
            stats=self.stats,
            config=self.config,
            identity=self.identity,
            now_ms=now_ms,
            young_bytes=bytes_in_memory(),
            wake_revival=alarm.set,
        )
        self.offsets.on_reset = self.taken_messages.forget
        self.notifications.on_change = self._share_queues
        self.revival = Revival(
            self.store,
            self.appender,
            self.acknowledgements,
            topics=self.topics,
            groups=self.groups,
            offsets=self.offsets,
            in_flight=self.in_flight,
            revive_log=self.revive_log,
            ordered=self.ordered_queues,
            announce=self.registrar.announce,
            config=self.config,
            identity=self.identity,
            monotonic=self.clock.monotonic,
            alarm=alarm,
        )

    def _share_queues(self, group: str) -> None:
        """End the waiting pops of a group whose members share the queues of a topic, and have changed."""
        known = self.clients.consumers(group)
        for topic in known.subscriptions if known is not None else ():
            mode = self.request_modes.all().get((topic, group))
            if mode is not None and mode.mode == POP_MODE and mode.shared_queues > 0:
                self.pop_polling.share(group, topic)

    def pop_progress(self, group: str, topic: str) -> PopProgress | None:
        """Return what a group popped of a topic; None if nothing is in flight, and no pop waits."""
        in_flight = self.in_flight.count(group, topic) + self.ordered_queues.in_flight(topic, group)
        waiting = self.pop_polling.waiting_of(group, topic)
        return PopProgress(in_flight, waiting) if in_flight or waiting else None

    def _follow(self, tls: ssl.SSLContext | None, signer: Signer | None) -> None:
        self.appender.refusal = StoreClosedError(f"{self.config.broker_name} is a slave, and writes nothing itself")
        self.ha_slave = slave = HaSlave(
            self.store, self.config, self.clock, tls=tls, signer=signer, on_arrived=self._on_arrived
        )
        if self.config.acting_master_enabled:
            self.acting = acting = self._acting_master(slave)
            self.metadata_sync = self._metadata_sync(lambda: acting.master_address, tls, signer)
        else:
            self.metadata_sync = self._metadata_sync(lambda: slave.master_address, tls, signer)
        self.registrar.on_reply = lambda reply: slave.set_master(reply.master_address, reply.master_ha_address)

    def _acting_master(self, slave: HaSlave) -> ActingMaster:
        escape = EscapeWriter(
            *(self.store, self.topic_routes, self.peers, self.identity, self.revive_log), now_ms=self.now_ms
        )
        return ActingMaster(
            *(self.config, self.identity, self.peers, slave, self.appender, escape),
            delays=self.delays,
            timers=self.timers,
            transactions=self.transactions,
            revival=self.revival,
            revive_log=self.revive_log,
            offsets=self.offsets,
            monotonic=self.clock.monotonic,
        )

    async def take_over_from_slaves(self) -> None:
        """Take over what slaves did while this master was away. Called before it registers."""
        if not self.config.acting_master_enabled or not self._writes or self.roles is not None:
            return
        returning = ReturningMaster(
            *(self.identity, self.peers),
            delays=self.delays,
            timers=self.timers,
            offsets=self.offsets,
            ha_address=lambda: self.registrar.own.ha_address,
            log_end_at_start=self.log_end_at_start,
        )
        if await returning.take_over():
            self._load_progress()

    def _metadata_sync(
        self, master_address: Callable[[], str | None], tls: ssl.SSLContext | None, signer: Signer | None
    ) -> MetadataSync:
        return MetadataSync(
            *(self.topics, self.groups, self.offsets, self.request_modes, self.queue_mappings),
            *(self.delays, self.timers, self.clock),
            announce=self.registrar.announce,
            master_address=master_address,
            tls=tls,
            signer=signer,
        )

    def _send_new_messages(self, has_slaves: bool) -> None:  # noqa: FBT001 - a callback has no keywords
        self.appender.on_append = self.ha_master.appended if has_slaves else None

    def _on_arrived(self, arrived: dict[tuple[str, int], None]) -> None:
        for topic, queue_id in arrived:
            self.long_polling.arrived(topic, queue_id)
        if self.metadata_sync is not None:
            self.metadata_sync.note_arrived(arrived)

    @property
    def _writes(self) -> bool:
        """Whether this broker appends messages: it is a master."""
        return self.ha_slave is None and (self.roles is None or self.roles.is_master)

    def has_master(self) -> bool | None:
        """Return whether a master sends to this broker; None if it is master itself."""
        if self.roles is not None:
            return None if self.roles.is_master else self.roles.mode.is_connected
        return None if self.ha_slave is None else self.ha_slave.is_connected

    def now_ms(self) -> int:
        return int(self.clock.wall() * 1000)

    def load(self) -> None:
        """Load all tables.

        Raises:
            StorageError: a file is damaged or cannot be read.
        """
        for table in (self.groups, self.offsets, self.request_modes, self.queue_mappings, self.ordered_queues):
            table.load()
        recovered = self.store.recovered
        if recovered is not None and not recovered.was_clean:
            log.info("recovered after a crash records=%d bytes_cut=%d", recovered.records, recovered.bytes_cut)
        if self._writes and self.roles is None:
            self.taken_messages.load(self._offsets_file)
        else:  # another broker of the group may have been master since
            self.taken_log.close(remove=True)
        if self._writes:
            reconcile_topics(self.topics, self.store, self._had_queues)
            self._load_progress()

    def _load_progress(self) -> None:
        """Read the progress of what only masters do."""
        for work in (self.delays, self.timers, self.transactions):
            work.load()
        for _ in self.taken_messages.log_all():
            pass

    def _master_tasks(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Give the background tasks of a master, which append messages."""
        yield self.delays.run()
        yield self.timers.run()
        if self.config.timers_enabled:
            yield self.revival.run()
        yield self.transactions.run()
        yield every(self.config.mapping_cleanup_interval_s, self.mapping_cleanup.clean)

    def background(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Give the background tasks."""
        config = self.config
        yield self.long_polling.run()
        yield self.flushing.run()
        if self.roles is not None:
            yield self.roles.mode.run()
        elif self.ha_slave is not None and self.metadata_sync is not None:
            yield self.ha_slave.run()
            yield self.metadata_sync.run()
            if self.acting is not None:
                yield self.acting.run()
        else:
            yield from self._master_tasks()
            yield self.ha_master.run()
        yield self.pop_polling.run()
        yield self.stats.run()
        yield every(SCAN_S, self.client_expiry.scan)
        yield every(config.retention_interval_s, self.retention.clean)
        yield every(config.offset_save_interval_s, self.save_offsets)
        yield every(TABLES_S, self._save_tables)

    async def save_offsets(self) -> None:
        """Write the consumer offsets to the disk, and start the log of what is taken after that."""
        is_logged = self._writes and self.taken_log.has_entries
        if is_logged:
            for _ in self.taken_messages.log_all():
                await asyncio.sleep(0)
        await self.offsets.table_file.save()
        if is_logged:
            self.taken_log.drop_previous()

    async def _save_tables(self) -> None:
        for _ in self.ordered_queues.clean(self._exist, self.now_ms()):
            await asyncio.sleep(0)
        tables = (self.topics, self.groups, self.request_modes, self.queue_mappings, self.ordered_queues)
        await save_all([table.table_file for table in tables])

    def _exist(self, topic: str, group: str) -> bool:
        return self.topics.get(topic) is not None and self.groups.get(group) is not None

    def on_disconnect(self, connection: int) -> None:
        """Drop the suspended pulls and the clients of a closed connection."""
        self.long_polling.drop(connection)
        self.pop_polling.drop(connection)
        self.notifications.put(self.clients.drop(connection))

    async def close(self) -> None:
        """Flush everything to the disk, and close the store."""
        if self.acting is not None:
            await self.acting.stand_down()
        await self.topic_propagation.stop()
        await self.peers.stop()
        await self.flushing.stop()
        writes = self._writes
        with suppress(StorageError):  # `store.close` raises it again
            if writes:
                self.transactions.write_op_messages()
                if self.config.timers_enabled:
                    self.popping.close()
            self.store.flush()
        if self.roles is not None:
            await self.roles.stop()
        await self._finish_writes()
        with ExitStack() as closing:  # last to first; a failure does not stop the others
            closing.callback(self.store.close)
            closing.callback(self.taken_log.close, remove=writes)
            if writes:
                closing.callback(self.timers.close)
                closing.callback(self.delays.close)
            else:  # the progress is the master's
                closing.callback(self.delays.table_file.save_now)
            for table_file in self._table_files:
                closing.callback(table_file.save_now)

    async def kill(self) -> None:
        """Stop as a crash does, without writing."""
        if self.acting is not None:
            await self.acting.kill()
        if self.roles is not None:
            await self.roles.stop()
        await self.registrar.kill()
        await self.topic_propagation.stop()
        await self.peers.stop()
        await self.flushing.stop()
        await self._finish_writes()
        self.taken_log.close(remove=False)
        self.store.kill()

    @property
    def _table_files(self) -> tuple[TableFile, ...]:
        changing = (self.offsets, self.ordered_queues)
        tables = (self.topics, self.groups, self.request_modes, self.queue_mappings, *changing)
        return tuple(table.table_file for table in tables)

    async def _finish_writes(self) -> None:
        for table_file in (*self._table_files, self.delays.table_file):
            await table_file.finish_writes()

    @property
    def require(self) -> RequireTopic | None:
        return None if self.enforcer is None or self.enforcer.gate is None else self.enforcer.require

    @property
    def shared_retries(self) -> SharedRetryTopics | None:
        enforcer = self.enforcer
        if enforcer is None or enforcer.gate is None:
            return None
        return SharedRetryTopics(self.offsets.groups_of, enforcer.reader)

    @property
    def _may_replicate(self) -> Callable[[str], bool] | None:
        return None if self.enforcer is None or self.enforcer.gate is None else self.enforcer.allows_replication

    def _may_send(self, peer: Peer, topic: str) -> bool:
        return self.enforcer is None or self.enforcer.allows(peer, topic, Action.PUB)
