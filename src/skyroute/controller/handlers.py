"""Requests of brokers and operators to a controller."""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Final, TypeVar

from skyroute.clock import Clock
from skyroute.controller import rules
from skyroute.controller.config import ControllerConfig
from skyroute.controller.errors import Refusal, RequestRefusedError
from skyroute.controller.events import Cause
from skyroute.controller.groups import Groups, Rule
from skyroute.controller.heartbeats import Heartbeats, ReplicaKey
from skyroute.controller.leadership import Leadership
from skyroute.controller.rules import Election, GroupView, MasterInfo, Outcome, SyncState
from skyroute.controller.state import GroupState, LiveReplicas, Progress
from skyroute.remoting.dispatch import Answer, Handler, OrderedResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.settings.updates import update_settings
from skyroute.wire.calls.controller import (
    ElectionRequest,
    decode_cleanup,
    decode_election_request,
    decode_id_application,
    decode_id_query,
    decode_replica_heartbeat,
    decode_replica_query,
    decode_replica_registration,
    decode_sync_set_change,
    decode_sync_state_query,
)
from skyroute.wire.calls.controller_responses import (
    ControllerFields,
    MasterFields,
    ReplicaFields,
    SyncStateFields,
    encode_controllers,
    encode_election,
    encode_grant,
    encode_next_id,
    encode_registered,
    encode_replica_info,
    encode_sync_set_changed,
    encode_sync_states,
)
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

A = TypeVar("A")

RESPONSE_CODES: Final = {
    Refusal.STALE_MASTER_EPOCH: ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
    Refusal.STALE_SYNC_SET_EPOCH: ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
    Refusal.NOT_MASTER: ResponseCode.CONTROLLER_INVALID_MASTER,
    Refusal.UNKNOWN_REPLICA: ResponseCode.CONTROLLER_INVALID_REPLICAS,
    Refusal.NO_MASTER: ResponseCode.CONTROLLER_MASTER_NOT_AVAILABLE,
    Refusal.REPLICA_NOT_ALIVE: ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
    Refusal.NOT_LEADER: ResponseCode.CONTROLLER_NOT_LEADER,
    Refusal.UNKNOWN_GROUP: ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
    Refusal.CLEANUP_REFUSED: ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
    Refusal.NOT_REGISTERED: ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
    Refusal.ELECTION_FAILED: ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
    Refusal.SYNC_SET_REFUSED: ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    Refusal.ID_REFUSED: ResponseCode.CONTROLLER_BROKER_ID_INVALID,
}

_HEARD: Final = Response(ResponseCode.SUCCESS, "Heart beat success")


def _by_leader(handle: "_LeaderHandler") -> "_LeaderHandler":
    """Make a handler refuse unless this controller leads, and answer a refusal of the rules with its code."""

    @wraps(handle)
    def handle_if_leading(self: "ControllerHandlers", request: Request, peer: Peer) -> Answer:
        with _refusals():
            self.require_leader()
            return handle(self, request, peer)

    return handle_if_leading


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except RequestRefusedError as error:
        raise RefusedError(RESPONSE_CODES[error.refusal], str(error)) from error


@dataclass(frozen=True, slots=True)
class ControllerHandlers:
    """All requests that a controller answers."""

    groups: Groups
    heartbeats: Heartbeats
    leadership: Leadership
    config: ControllerConfig
    clock: Clock
    lane: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the one query that is answered in steps."""

    def by_code(self) -> dict[int, Handler]:
        """Return the handlers by request code."""
        return {
            RequestCode.BROKER_HEARTBEAT: self.heartbeat,
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self.change_sync_set,
            RequestCode.CONTROLLER_ELECT_MASTER: self.elect,
            RequestCode.CONTROLLER_REGISTER_BROKER: self.register,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self.get_replica_info,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self.get_controllers,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self.get_sync_states,
            RequestCode.UPDATE_CONTROLLER_CONFIG: self.update_config,
            RequestCode.GET_CONTROLLER_CONFIG: self.get_config,
            RequestCode.CLEAN_BROKER_DATA: self.remove_replicas,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self.get_next_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self.grant_id,
        }

    def require_leader(self) -> None:
        """Check that this controller decides.

        Raises:
            RequestRefusedError: another one does.
        """
        if not self.leadership.is_leader:
            leader = self.leadership.leader_address or "unknown"
            raise RequestRefusedError(Refusal.NOT_LEADER, f"this controller does not lead; the leader is {leader}")

    # Brokers

    def heartbeat(self, request: Request, peer: Peer) -> Response:
        beat = decode_replica_heartbeat(request)
        if beat.broker_id is None:
            return Response(ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId")
        key = ReplicaKey(beat.cluster, beat.broker_name, beat.broker_id)
        is_registered = self.groups.has(key)
        if self.leadership.is_leader and not is_registered:
            if peer.count_refusal():
                log.warning("heartbeat ignored peer=%s reason=%s %d is not registered", peer.address, *key[1:])
            return _HEARD
        is_noted = self.heartbeats.beat(
            key,
            Progress(beat.epoch, beat.max_offset, beat.priority),
            holder=peer.connection,
            now=self.clock.monotonic(),
            timeout_s=beat.timeout_s,
            is_registered=is_registered,
        )
        if not is_noted and peer.count_refusal():
            log.warning("heartbeat ignored peer=%s reason=too many brokers are alive", peer.address)
        return _HEARD

    @_by_leader
    def get_next_id(self, request: Request, _peer: Peer) -> Answer:
        cluster, broker_name = decode_id_query(request)
        return encode_next_id(cluster, broker_name, rules.next_broker_id(self.groups.find(broker_name)))

    @_by_leader
    def grant_id(self, request: Request, _peer: Peer) -> Answer:
        asked = decode_id_application(request)
        return self._decide(
            asked.broker_name,
            lambda group: rules.grant_id(group, asked.cluster, asked.broker_name, asked.broker_id, asked.check_code),
            lambda _: encode_grant(asked.cluster, asked.broker_name),
        )

    @_by_leader
    def register(self, request: Request, peer: Peer) -> Answer:
        asked = decode_replica_registration(request)
        key = ReplicaKey(asked.cluster, asked.broker_name, asked.broker_id)

        def respond(view: GroupView) -> Response:
            master = None if view.master is None else _master(view.master)
            return encode_registered(asked.cluster, asked.broker_name, master, _sync(view.sync))

        return self._decide(
            asked.broker_name,
            lambda group: rules.register(
                *(group, asked.cluster, asked.broker_name, asked.broker_id, asked.address, self._live(group)),
                is_at_another=self.heartbeats.is_at_another(key, peer.connection),
            ),
            respond,
        )

    @_by_leader
    def elect(self, request: Request, peer: Peer) -> Answer:
        asked = decode_election_request(request)
        return self._decide(
            asked.broker_name,
            lambda group: self._elect(group, asked),
            lambda election: self._respond_elected(asked, election, peer),
        )

    def _respond_elected(self, asked: ElectionRequest, election: Election, peer: Peer) -> Response:
        if election.master is None:
            raise RequestRefusedError(Refusal.NO_MASTER, f"no replica of {asked.broker_name} can be master")
        if not election.is_new:
            remark = f"the master {election.master.broker_id} of {asked.broker_name} stays"
            code = ResponseCode.CONTROLLER_MASTER_STILL_EXIST
            return encode_election(_master(election.master), election.sync.members, None, code=code, remark=remark)
        group = self.groups.find(asked.broker_name)
        cluster = asked.cluster if group is None else group.cluster
        winner = election.master.broker_id
        if not asked.designate and winner is not None and winner == asked.broker_id and not peer.gone:
            self.heartbeats.presume(
                ReplicaKey(cluster, asked.broker_name, winner),
                holder=peer.connection,
                now=self.clock.monotonic(),
            )
        members = (cluster, asked.broker_name, election.members)
        return encode_election(_master(election.master), election.sync.members, members)

    def _elect(self, group: GroupState | None, asked: ElectionRequest) -> Outcome[Election]:
        is_operator = asked.designate or asked.broker_id is None
        return rules.elect(
            *(group, asked.broker_name, asked.broker_id, self._live(group)),
            designate=asked.designate,
            allow_unclean=self.config.unclean_election_enabled,
            cause=Cause.OPERATOR if is_operator else Cause.BROKER,
        )

    @_by_leader
    def change_sync_set(self, request: Request, _peer: Peer) -> Answer:
        asked = decode_sync_set_change(request)
        return self._decide(
            asked.broker_name,
            lambda group: rules.change_sync_set(
                *(group, asked.broker_name, asked.master, asked.master_epoch),
                SyncState(asked.members, asked.sync_set_epoch),
                self._live(group),
            ),
            lambda sync: encode_sync_set_changed(_sync(sync)),
        )

    @_by_leader
    def get_replica_info(self, request: Request, _peer: Peer) -> Answer:
        broker_name = decode_replica_query(request)
        view = rules.view(self.groups.find(broker_name), broker_name)
        assert view.master is not None
        master = MasterFields(view.master.broker_id, view.master.address, view.master.master_epoch)
        return encode_replica_info(master, _sync(view.sync))

    def _decide(self, broker_name: str, rule: Rule[A], respond: Callable[[A], Response]) -> Answer:
        """Respond at once if nothing is to be stored: a task for each would let one peer delay all others."""
        outcome = self.groups.decide(broker_name, rule)
        return self._change(broker_name, rule, respond) if outcome is None else respond(outcome.answer)

    async def _change(self, broker_name: str, rule: Rule[A], respond: Callable[[A], Response]) -> Response:
        with _refusals():
            return respond(await self.groups.change(broker_name, rule))

    # Operators

    def get_controllers(self, _request: Request, _peer: Peer) -> Response:
        known = self.leadership
        return encode_controllers(
            ControllerFields(known.group, known.leader_id, known.leader_address, known.is_leader, known.peers)
        )

    @_by_leader
    def get_sync_states(self, request: Request, _peer: Peer) -> Answer:
        found = ((name, self.groups.find(name)) for name in decode_sync_state_query(request))
        steps = encode_sync_states(
            (name, _master(rules.master_of(group)), self._replicas(group))
            for name, group in found
            if group is not None and not group.is_empty
        )
        try:
            next(steps)
        except StopIteration as end:
            response: Response = end.value
            return response
        return self._go_on(steps)

    async def _go_on(self, steps: Generator[None, None, Response]) -> Response:
        async with self.lane:
            while True:
                await asyncio.sleep(0)
                try:
                    next(steps)
                except StopIteration as end:
                    response: Response = end.value
                    return response

    def _replicas(self, group: GroupState) -> list[ReplicaFields]:
        return [
            ReplicaFields(each.broker_id, each.address, each.is_alive, each.is_in_sync)
            for each in rules.replicas_of(group, self._live(group))
        ]

    @_by_leader
    def remove_replicas(self, request: Request, peer: Peer) -> Answer:
        asked = decode_cleanup(request)

        def respond(_: None) -> Response:
            log.info("replicas removed by operator peer=%s broker=%s", peer.address, asked.broker_name)
            return Response()

        return self._decide(
            asked.broker_name,
            lambda group: rules.remove_replicas(
                group, asked.broker_name, asked.broker_ids, self._live(group), allow_living=asked.allow_living
            ),
            respond,
        )

    def get_config(self, _request: Request, _peer: Peer) -> Response:
        return Response(body=self.config.render().encode())

    def update_config(self, request: Request, peer: Peer) -> Answer:
        return OrderedResponse(self._update_config(request, peer))

    async def _update_config(self, request: Request, peer: Peer) -> Response:
        await update_settings(self.config, request, peer)
        return Response()

    def _live(self, group: GroupState | None) -> LiveReplicas:
        if group is None:
            return LiveReplicas({})
        return self.heartbeats.live(group.cluster, group.broker_name, self.clock.monotonic())


_LeaderHandler = Callable[[ControllerHandlers, Request, Peer], Answer]


def _master(master: MasterInfo) -> MasterFields:
    return MasterFields(master.broker_id, master.address, master.master_epoch, master.sync_set_epoch)


def _sync(sync: SyncState) -> SyncStateFields:
    return SyncStateFields(sync.members, sync.epoch)
