"""Controller mode: a broker gets its id and its role from a controller, and changes its role at run time.

The order of a start: find the leading controller; apply for an id, or read the granted one; register; send a heartbeat,
because only living brokers are elected; ask for an election if there is no master. Until then the broker is fenced:
it is in no route and accepts no messages.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.replication.controller_client import ControllerClient
from skyroute.broker.replication.epoch_file import BrokerIdentity, EpochFile, IdentityFiles
from skyroute.broker.replication.log_follower import LogFollower
from skyroute.broker.replication.log_sender import LogSender
from skyroute.broker.replication.sync_state import SyncState
from skyroute.broker.store.message_store import MessageStore
from skyroute.clock import Clock
from skyroute.errors import SkyrouteError
from skyroute.remoting.errors import RefusedError
from skyroute.settings.errors import ConfigError
from skyroute.wire.auto_switch import Epoch, SlaveHello
from skyroute.wire.calls.controller import (
    ElectionRequest,
    IdApplication,
    ReplicaHeartbeat,
    ReplicaRegistration,
    SyncSetChange,
)
from skyroute.wire.calls.controller_responses import MasterFields, SyncStateFields
from skyroute.wire.codes import ResponseCode

log = logging.getLogger(__name__)

START_RETRY_S: Final = 2.0
"""Pause before a failed start is tried again."""
APPLY_RETRY_S: Final = 1.0
"""Longest random pause before another application for an id, so that brokers that start together do not collide."""
TICK_S: Final = 1.0
NOTICE_GAP_S: Final = 0.005
NOTICE_GAP_MAX_S: Final = 0.1
"""Pause after a question that brought no new role, doubled after each: forged notices must not become a load on the
controller. The first one is short: a slave that loses its master asks just before the election."""


class RoleHooks(Protocol):
    """What changes in the rest of the broker with its role."""

    async def fence(self) -> None:
        """Accept no messages, and stop what only masters do."""

    async def lead(self, epoch: int) -> None:
        """Serve as master: register with id 0, deliver delayed messages, check transactions."""

    async def follow(self, broker_id: int, master_address: str, epoch: int) -> None:
        """Serve as slave of a master: register with the own id, keep tables in step with the master's."""

    def confirm(self, position: int | None) -> None:
        """Let consumers read the log up to a position; None: all of it."""

    async def find_log_port(self, master_address: str) -> str:
        """Return the address of a master's replication port."""

    async def read_record(self, master_address: str, position: int) -> bytes | None:
        """Return the record at a position of a master's log, empty if there is none; None if it does not say."""


class ControllerMode:
    """The role of this broker, as the controller gives it."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: Identity,
        client: ControllerClient,
        store: MessageStore,
        epoch_file: EpochFile,
        identity_files: IdentityFiles,
        hooks: RoleHooks,
        clock: Clock,
        on_arrived: Callable[[dict[tuple[str, int], None]], None],
    ) -> None:
        self._config = config
        self._identity = identity
        self._client = client
        self._store = store
        self._epoch_file = epoch_file
        self._files = identity_files
        self._hooks = hooks
        self._clock = clock
        self._on_arrived = on_arrived
        self.sender = LogSender(store, epoch_file, config, clock, self._note_progress)
        self._follower: tuple[LogFollower, asyncio.Task[None]] | None = None
        self._changing = asyncio.Lock()
        self._set_checks = asyncio.Event()
        """Set when the sync state set may have to change."""
        self._role_checks = asyncio.Event()
        """Set by a notice of a new master, and by a lost one."""
        self._has_role = False
        """Whether the change to the role of this epoch is complete."""
        self.on_acked: Callable[[], None] | None = None
        """Called when slaves have acknowledged, or the sync state set has changed."""
        self.broker_id: int | None = None
        """The id that the controller granted; None before."""
        self.master_id: int | None = None
        self.master_address = ""
        self.master_epoch = 0

    def __repr__(self) -> str:
        return f"<ControllerMode id={self.broker_id} master={self.master_id} epoch={self.master_epoch}>"

    @property
    def is_master(self) -> bool:
        return self.sender.state is not None

    @property
    def state(self) -> SyncState | None:
        """The sync state set while this broker is master."""
        return self.sender.state

    @property
    def in_sync_count(self) -> int:
        """Number of replicas in sync, the master included; 0 if this broker is not master.

        A member that is silent as long as a dead broker, or for two heartbeats of replication, is not in sync.
        """
        if self.state is None:
            return 0
        config = self._config
        silence_s = max(config.controller_lease_s, 2 * config.ha_heartbeat_s)
        return self.state.in_sync_count(self._clock.monotonic() - silence_s)

    @property
    def epoch_file(self) -> EpochFile:
        return self._epoch_file

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)

    # Start and background work

    async def run(self) -> None:
        """Join the group, and keep the role up to date, until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._tick())
                await self._join_group()
                tasks.create_task(self._beat())
                tasks.create_task(self._watch_role())
                tasks.create_task(self._watch_sync_set())
        finally:
            await self._stop_following()

    async def stop(self) -> None:
        """Close all connections. Called after `run` was cancelled."""
        await self.sender.stop()
        self._client.close()

    async def _join_group(self) -> None:
        last_reason = ""
        while True:
            try:
                await self._join_once()
            except (SkyrouteError, OSError) as error:
                if isinstance(error, ConfigError):
                    raise
                level = logging.DEBUG if str(error) == last_reason else logging.WARNING
                last_reason = str(error)
                log.log(level, "not in the group yet, tried again broker=%s reason=%s", self._identity.name, error)
                await asyncio.sleep(START_RETRY_S)
            else:
                return

    async def _join_once(self) -> None:
        await self._client.connect_all()
        await self._client.find_leader()
        if self.broker_id is None:
            self.broker_id = await self._get_id()
        master, sync = await self._register()
        await self._client.beat(self._heartbeat())
        if master.broker_id is None:
            master, sync = await self._elect()
        await self._apply(master, sync)

    async def _get_id(self) -> int:
        """Return the granted id, or apply for one.

        Raises:
            ConfigError: the granted id is of another broker name or cluster.
        """
        own, files = self._identity, self._files
        granted = files.granted()
        if granted is not None:
            if granted[:2] != (own.cluster, own.name):
                raise ConfigError(
                    f"{files.path} belongs to broker {granted.broker_name} of cluster {granted.cluster}, and the "
                    f"settings say {own.name} of {own.cluster}: correct brokerName and brokerClusterName, or remove "
                    "the store folder"
                )
            return granted.broker_id
        while True:
            applied = files.applied()
            if applied is None or applied[:2] != (own.cluster, own.name):
                number = await self._client.next_id(own.cluster, own.name)
                applied = BrokerIdentity(own.cluster, own.name, number, f"{own.address};{self._now_ms()}")
                files.apply(applied)
            try:
                await self._client.apply(IdApplication(*applied))
            except RefusedError as error:
                if error.code != ResponseCode.CONTROLLER_BROKER_ID_INVALID:
                    raise
                files.drop_application()
                await asyncio.sleep(random.random() * APPLY_RETRY_S)
                continue
            files.grant(applied)
            log.info("id granted broker=%s id=%d", own.name, applied.broker_id)
            return applied.broker_id

    async def _register(self) -> tuple[MasterFields, SyncStateFields]:
        own = self._identity
        assert self.broker_id is not None, "the id is known before a registration"
        registration = ReplicaRegistration(own.cluster, own.name, self.broker_id, own.address)
        return await self._client.register(registration, self._now_ms())

    async def _elect(self) -> tuple[MasterFields, SyncStateFields]:
        own = self._identity
        request = ElectionRequest(own.cluster, own.name, self.broker_id, designate=False)
        return await self._client.elect(request, self._now_ms())

    def _heartbeat(self) -> ReplicaHeartbeat:
        own, config = self._identity, self._config
        return ReplicaHeartbeat(
            *(own.cluster, own.name, self.broker_id, own.address),
            epoch=self._epoch_file.epochs.last_number,
            max_offset=self._store.max_position,
            confirm_offset=self.sender.confirmed if self.follower is None else self.follower.confirmed,
            priority=config.election_priority,
            timeout_s=config.controller_lease_s,
        )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._config.heartbeat_interval_s)
            await self._client.beat(self._heartbeat())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.sender.tick(self._clock.monotonic())
            self._expire_epochs()

    def _expire_epochs(self) -> None:
        epochs = self._epoch_file.epochs
        kept = epochs.expire(self._store.min_position)
        if kept != epochs:
            try:
                self._epoch_file.replace(kept)
            except SkyrouteError as error:
                log.warning("epochs of removed files not dropped reason=%s", error)

    async def _watch_role(self) -> None:
        """Ask for the role after a notice, after the loss of the master, and at an interval: a notice may be lost."""
        pause_s = NOTICE_GAP_S
        while True:
            try:
                async with asyncio.timeout(self._config.role_check_interval_s):
                    await self._role_checks.wait()
            except TimeoutError:
                await self._check_role()
                pause_s = NOTICE_GAP_S
                continue
            self._role_checks.clear()
            before = self.master_epoch
            if self._client.has_several:
                with suppress(SkyrouteError):  # the controller that led before may be gone
                    await self._client.find_leader()
            await self._check_role()
            if self.master_epoch == before:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, NOTICE_GAP_MAX_S)
            else:
                pause_s = NOTICE_GAP_S

    async def _check_role(self) -> None:
        """Take over the role that the controller says."""
        try:
            master, sync = await self._client.replica_info(self._identity.name)
            if master.broker_id is None and (master.master_epoch or 0) > self.master_epoch:
                master, sync = await self._elect_again()
        except RefusedError as error:
            log.debug("role not known reason=%s", error)
            if error.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
                await self._register_again()
            return
        except (SkyrouteError, OSError) as error:
            log.debug("role not known reason=%s", error)
            return
        try:
            await self._apply(master, sync)
        except (SkyrouteError, OSError) as error:
            log.warning("role not changed, tried again epoch=%s reason=%s", master.master_epoch, error)

    async def _elect_again(self) -> tuple[MasterFields, SyncStateFields]:
        """Ask for an election, because the group has lost its master; a master that is not elected again steps down."""
        try:
            return await self._elect()
        except RefusedError as error:
            async with self._changing:
                if self.is_master:
                    log.warning("no longer master broker=%s reason=%s", self._identity.name, error)
                    await self._hooks.fence()
                    self.sender.resign()
            raise

    async def _register_again(self) -> None:
        try:
            await self._apply(*await self._register())
        except (SkyrouteError, OSError) as error:
            log.warning("not registered at the controller reason=%s", error)

    # Roles

    def notice(self, master: MasterFields) -> None:
        """Ask the controller for the role, because of a notice of a new master (1008), which anyone could send."""
        if (master.master_epoch or 0) > self.master_epoch:
            self._role_checks.set()

    async def _apply(self, master: MasterFields, sync: SyncStateFields) -> None:
        """Take over role and sync state set, if they are newer."""
        async with self._changing:
            epoch = master.master_epoch or 0
            if master.broker_id is None or epoch < self.master_epoch:
                return
            if epoch == self.master_epoch and self._has_role:
                self._take_sync_set(sync)
                return
            self._has_role = False
            was_master = self.is_master
            if master.broker_id == self.broker_id:
                await self._lead(epoch, sync, goes_on=was_master)
            else:
                await self._follow(master.broker_id, master.address or "", epoch)
            self._has_role = True

    async def _lead(self, epoch: int, sync: SyncStateFields, *, goes_on: bool) -> None:
        assert self.broker_id is not None, "a broker without an id is not elected"
        if not goes_on:
            await self._stop_following()
            self._complete_log()
        start = self._store.max_position if self._epoch_file.epochs else self._store.min_position
        self._epoch_file.replace(self._epoch_file.epochs.begin(Epoch(epoch, start)))
        state = SyncState(self.broker_id, sync.members | {self.broker_id}, sync.epoch)
        self.master_epoch, self.master_id, self.master_address = epoch, self.broker_id, self._identity.address
        self.sender.lead(state)
        self._note_progress()
        log.info("master broker=%s id=%d epoch=%d position=%d", self._identity.name, self.broker_id, epoch, start)
        await self._hooks.lead(epoch)

    def _complete_log(self) -> None:
        """Drop a record whose end the old master did not send."""
        self._store.finish_raw(self._now_ms())
        self._epoch_file.replace(self._epoch_file.epochs.cut(self._store.max_position + 1))

    async def _follow(self, master_id: int, address: str, epoch: int) -> None:
        assert self.broker_id is not None, "only registered brokers get a role"
        is_same = self._follower is not None and (master_id, address) == (self.master_id, self.master_address)
        if not is_same:
            await self._hooks.fence()
            self.sender.resign()
            await self._stop_following()
        self.master_epoch, self.master_id, self.master_address = epoch, master_id, address
        log.info(
            "slave broker=%s id=%d master=%d address=%s epoch=%d",
            *(self._identity.name, self.broker_id, master_id, address, epoch),
        )
        if not is_same:
            self._begin_following()  # at once: a name server may not respond
        await self._hooks.follow(self.broker_id, address, epoch)

    def _begin_following(self) -> None:
        assert self.broker_id is not None
        config = self._config
        follower = LogFollower(
            self._store,
            self._epoch_file,
            config,
            self._clock,
            SlaveHello(self.broker_id, from_last_file=config.sync_from_last_file, is_learner=config.is_learner),
            find_address=lambda: self._hooks.find_log_port(self.master_address),
            read_record=lambda position: self._hooks.read_record(self.master_address, position),
            on_arrived=self._on_arrived,
            on_confirmed=self._hooks.confirm,
            on_failed=self._role_checks.set,
        )
        self._follower = follower, asyncio.get_running_loop().create_task(follower.run())

    async def _stop_following(self) -> None:
        if self._follower is not None:
            _, task = self._follower
            self._follower = None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def follower(self) -> LogFollower | None:
        return None if self._follower is None else self._follower[0]

    @property
    def is_connected(self) -> bool:
        """Whether a master sends to this broker."""
        return self._follower is not None and bool(self._follower[0].master)

    # Sync state set

    def _note_progress(self) -> None:
        """Confirm what all members have, and see whether the set must change."""
        state = self.state
        if state is None:
            return
        if self._wanted(state) is not None and not state.asked:
            self._set_checks.set()
        confirmed = state.confirm(self._store.max_position)
        is_limited = self._config.all_ack_in_sync_set and bool(state.to_acknowledge)
        self._hooks.confirm(confirmed if is_limited else None)
        if self.on_acked is not None:
            self.on_acked()

    def _wanted(self, state: SyncState) -> frozenset[int] | None:
        now = self._clock.monotonic()
        return state.wanted(self._epoch_file.epochs, self._store.max_position, now, self._config.slave_lag_max_s)

    def _take_sync_set(self, sync: SyncStateFields) -> None:
        state = self.state
        if state is None:
            return
        before = state.members
        if state.take(sync.members, sync.epoch) and state.members != before:
            log.info("sync state set members=%s epoch=%d", sorted(sync.members), sync.epoch)
        self._note_progress()

    async def _watch_sync_set(self) -> None:
        """Ask the controller for a change of the set when one is due, and at an interval."""
        while True:
            try:
                async with asyncio.timeout(self._config.sync_set_check_interval_s):
                    await self._set_checks.wait()
            except TimeoutError:
                pass
            self._set_checks.clear()
            await self._change_sync_set()

    async def _change_sync_set(self) -> None:
        state = self.state
        wanted = None if state is None else self._wanted(state)
        if state is None or wanted is None:
            return
        state.asked |= wanted
        change = SyncSetChange(self._identity.name, state.own_id, self.master_epoch, wanted, state.epoch)
        try:
            sync = await self._client.change_sync_set(change, self._now_ms())
        except (SkyrouteError, OSError) as error:
            # The controller may have stored it all the same: `asked` stays until its set is known.
            log.warning("sync state set not changed wanted=%s reason=%s", sorted(wanted), error)
            if isinstance(error, RefusedError):
                state.note_refusal(wanted, self._clock.monotonic())
            await asyncio.sleep(TICK_S)
            await self._check_role()
            self._set_checks.set()
        else:
            self._take_sync_set(sync)
